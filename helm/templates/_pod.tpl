{{/*
The pod of a service. Takes (dict "root" $ "component" "api"), and "once" true for a run that ends by itself: no port
and no probe, because nobody looks at it.
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
    {{- /* Settings are read at the start only: pods are replaced when one changes. */}}
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
  {{- /* A service ends by itself when its drain time is over; the rest is for it to be told and to exit. */}}
  terminationGracePeriodSeconds: {{ add 5 $values.drainDelayS (ceil $settings.drainTimeoutS) }}
  {{- include "slipway.podSpec" (dict "root" .root "values" $values) | nindent 2 }}
  {{- if not .once }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "slipway.selector" . | fromYaml)) }}
  {{- $soft := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
  topologySpreadConstraints:
    {{- range default (list $soft) $values.topologySpreadConstraints }}
    {{- /* One that selects nothing would spread nothing. */}}
    - {{- merge (deepCopy .) $own | toYaml | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "slipway.image" (dict "image" .root.Values.image "tag" .root.Chart.AppVersion) }}
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
      {{- include "slipway.probes" . | nindent 6 }}
      {{- with $values.drainDelayS }}
      lifecycle:
        {{- /* Whoever still sends requests here has to hear first that this pod is going. */}}
        preStop:
          sleep: {seconds: {{ . }}}
      {{- end }}
      {{- end }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
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
        {{- if $values.tlsSecret }}
        - name: tls
          mountPath: {{ include "slipway.tlsFolder" . }}
          readOnly: true
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
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
  {{- /* Where it listens on loopback only a forwarded port gets there. */}}
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

{{/* Of whatever serves /livez and /readyz at a port named health. */}}
{{- define "slipway.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/*
Where Redis is and our login, as items of `env`; and the authority that signed its certificate, as a mount and a volume.
Takes (dict "root" $ "component" "api"): each has an account of its own.
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
