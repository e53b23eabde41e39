{{/*
The pod of a service. Takes (dict "root" $ "component" "api"), and "once" true for a run that ends by itself: it has no
port and no probe, because nothing probes it.
*/}}

{{- define "slipway.podTemplate" -}}
{{- $values := index .root.Values .component -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (deepCopy $values.settings) -}}
metadata:
  labels:
    {{- include "slipway.labels" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- /* Settings are read only at the start, so pods are replaced when a setting changes. */}}
    checksum/settings: {{ printf "%s%s" (include "slipway.environment" .) .root.Values.externalRedis.url | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "slipway.component" . }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- if .once }}
  restartPolicy: Never
  {{- end }}
  {{- /* A service ends by itself when its drain time is over; the additional seconds are for the signal and the exit. */}}
  terminationGracePeriodSeconds: {{ add 5 $values.drainDelayS (ceil $settings.drainTimeoutS) }}
  {{- include "slipway.podSpec" (dict "root" .root "values" $values) | nindent 2 }}
  {{- if not .once }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "slipway.selector" . | fromYaml)) }}
  {{- $soft := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
  topologySpreadConstraints:
    {{- range default (list $soft) $values.topologySpreadConstraints }}
    {{- /* A constraint without a selector would spread nothing. */}}
    - {{- merge (deepCopy .) $own | toYaml | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- with $values.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "slipway.ownImage" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [slipway-{{ .component }}]
      {{- if .once }}
      args: [--once]
      {{- end }}
      envFrom:
        - configMapRef:
            name: {{ include "slipway.component" . }}
      env:
        - name: SLIPWAY_NAMESPACE
          valueFrom:
            fieldRef:
              fieldPath: metadata.namespace
        {{- include "slipway.redisVariables" . | nindent 8 }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if not .once }}
      {{- include "slipway.ports" . | nindent 6 }}
      {{- include "slipway.probes" (dict "own" $values.probes) | nindent 6 }}
      {{- with $values.drainDelayS }}
      lifecycle:
        {{- /* Clients that still send requests to this pod must first learn that it ends. */}}
        preStop:
          sleep: {seconds: {{ . }}}
      {{- end }}
      {{- end }}
      resources:
        {{- include "slipway.resources" . | nindent 8 }}
      securityContext:
        {{- toYaml .root.Values.containerSecurityContext | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- include "slipway.redisMount" .root | nindent 8 }}
        {{- if $values.tokenSecret }}
        - name: tokens
          mountPath: {{ include "slipway.tokenFolder" . }}
          readOnly: true
        {{- end }}
        {{- if and (eq .component "api") (include "slipway.sessionKeySecret" .root) }}
        - name: session-keys
          mountPath: {{ include "slipway.sessionKeyFolder" . }}
          readOnly: true
        {{- end }}
        {{- if and (has .component (list "scheduler" "watcher")) (include "slipway.feedKeySecret" .root) }}
        - name: feed-keys
          mountPath: {{ include "slipway.feedKeyFolder" . }}
          readOnly: true
        {{- end }}
        {{- if $values.oidcSecret }}
        - name: oidc
          mountPath: {{ include "slipway.oidcFolder" . }}
          readOnly: true
        {{- end }}
        {{- if $values.tlsSecret }}
        - name: tls
          mountPath: {{ include "slipway.tlsFolder" . }}
          readOnly: true
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $values.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: tmp
      emptyDir:
        sizeLimit: 64Mi
    {{- include "slipway.redisVolume" .root | nindent 4 }}
    {{- with $values.tokenSecret }}
    - name: tokens
      secret:
        secretName: {{ . }}
    {{- end }}
    {{- if eq .component "api" }}
    {{- with include "slipway.sessionKeySecret" .root }}
    - name: session-keys
      secret:
        secretName: {{ . }}
    {{- end }}
    {{- end }}
    {{- if has .component (list "scheduler" "watcher") }}
    {{- with include "slipway.feedKeySecret" .root }}
    - name: feed-keys
      secret:
        secretName: {{ . }}
    {{- end }}
    {{- end }}
    {{- with $values.oidcSecret }}
    - name: oidc
      secret:
        secretName: {{ . }}
    {{- end }}
    {{- with $values.tlsSecret }}
    - name: tls
      secret:
        secretName: {{ . }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "slipway.ports" -}}
{{- $settings := (index .root.Values .component).settings -}}
ports:
  {{- if $settings.healthListen }}
  {{- /* A listener on loopback can be reached only by a forwarded port. */}}
  - name: http
    containerPort: {{ include "slipway.port" $settings.listen }}
  {{- end }}
  {{- with $settings.taskListen }}
  - name: tasks
    containerPort: {{ include "slipway.port" . }}
  {{- end }}
  - name: health
    containerPort: {{ include "slipway.healthPort" . }}
{{- end -}}

{{/* The probes of a container with /livez and /readyz at a port named health; `own`, such as startup, overrides them. */}}
{{- define "slipway.probes" -}}
{{- $live := dict "path" "/livez" "port" "health" -}}
{{- $ready := dict "path" "/readyz" "port" "health" -}}
{{- $all := dict
  "startup" (dict "httpGet" $live "periodSeconds" 1 "timeoutSeconds" 5 "failureThreshold" 60)
  "liveness" (dict "httpGet" $live "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 3)
  "readiness" (dict "httpGet" $ready "periodSeconds" 5 "timeoutSeconds" 5 "failureThreshold" 2) -}}
{{- range $name := list "startup" "liveness" "readiness" }}
{{- $own := default dict (get (default dict $.own) $name) }}
{{- $probe := get $all $name }}
{{- /* A probe has exactly one kind of check. */}}
{{- if or $own.exec $own.tcpSocket $own.grpc }}
{{- $probe = omit $probe "httpGet" }}
{{- end }}
{{ $name }}Probe:
  {{- mergeOverwrite (deepCopy $probe) (deepCopy $own) | toYaml | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The resources of a part's container: those of the size, overridden by the part's own values. */}}
{{- define "slipway.resources" -}}
{{- $own := default dict (index .root.Values .component).resources -}}
{{- $made := mergeOverwrite (omit (include "slipway.sizeOf" . | fromYaml) "maxMemory") (deepCopy $own) -}}
{{- range $name, $value := $own }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $made $name }}
{{- end }}
{{- end }}
{{- toYaml $made -}}
{{- end -}}

{{/* The row of a part in files/sizes.yaml. */}}
{{- define "slipway.sizeOf" -}}
{{- $sizes := .root.Files.Get "files/sizes.yaml" | fromYaml -}}
{{- get (get $sizes (default "standard" .root.Values.size)) .component | toYaml -}}
{{- end -}}

{{/*
The address of Redis and our login, as items of `env`; and the authority that signed its certificate, as a mount and a
volume. Takes (dict "root" $ "component" "api"): each component has an account of its own.
*/}}
{{- define "slipway.redisVariables" -}}
{{- $secret := include "slipway.redisSecret" .root | fromYaml -}}
{{- if .root.Values.valkey.enabled }}
- name: SLIPWAY_REDIS_URL
  value: {{ include "slipway.valkeyAddress" .root | quote }}
{{- else if $secret }}
- name: SLIPWAY_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ $secret.name }}
      key: {{ $secret.key }}
{{- end }}
{{- with include "slipway.accountsSecret" .root }}
- name: SLIPWAY_REDIS_USER
  value: {{ printf "%s%s" ($.root.Values.valkey.enabled | ternary "slipway-" $.root.Values.externalRedis.accounts.userPrefix) $.component | quote }}
- name: SLIPWAY_REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.component }}
{{- end }}
{{- if include "slipway.redisAuthority" .root }}
- name: SLIPWAY_REDIS_CA_FILE
  value: {{ include "slipway.redisFolder" .root }}/ca.crt
{{- end }}
{{- end -}}

{{- define "slipway.redisMount" -}}
{{- if include "slipway.redisAuthority" . }}
- name: redis-ca
  mountPath: {{ include "slipway.redisFolder" . }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "slipway.redisVolume" -}}
{{- with include "slipway.redisAuthority" . }}
- name: redis-ca
  secret:
    secretName: {{ . }}
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- end -}}

{{- define "slipway.redisFolder" -}}
/etc/slipway/redis
{{- end -}}
