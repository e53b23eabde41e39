{{/*
What the four services have in common: an account, a ConfigMap, a Deployment, a disruption budget.
Each takes (dict "root" $ "component" "api").
*/}}

{{- define "slipway.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
  {{- with (index .root.Values .component).serviceAccountAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}

{{- define "slipway.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
data:
  {{- include "slipway.environment" . | nindent 2 }}
{{- end -}}

{{- define "slipway.deployment" -}}
{{- $values := index .root.Values .component -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (deepCopy $values.settings) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
spec:
  replicas: {{ $values.replicas }}
  revisionHistoryLimit: 3
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  selector:
    matchLabels:
      {{- include "slipway.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "slipway.labels" . | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        {{- /* Settings are read at the start only: pods are replaced when one changes. */}}
        checksum/settings: {{ printf "%s%s" (include "slipway.environment" .) .root.Values.externalRedis.url | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "slipway.component" . }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      {{- /* A service ends by itself when its drain time is over; the rest is for it to be told and to exit. */}}
      terminationGracePeriodSeconds: {{ add 5 (ceil $settings.drainTimeoutS) }}
      {{- include "slipway.podSpec" (dict "root" .root "values" $values) | nindent 6 }}
      {{- $own := dict "labelSelector" (dict "matchLabels" (include "slipway.selector" . | fromYaml)) }}
      {{- $soft := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
      topologySpreadConstraints:
        {{- range default (list $soft) $values.topologySpreadConstraints }}
        {{- /* One that selects nothing would spread nothing. */}}
        - {{- merge (deepCopy .) $own | toYaml | nindent 10 }}
        {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "slipway.image" (dict "image" .root.Values.image "tag" .root.Chart.AppVersion) }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [slipway-{{ .component }}]
          envFrom:
            - configMapRef:
                name: {{ include "slipway.component" . }}
          env:
            - name: SLIPWAY_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            {{- with include "slipway.redisSecret" .root | fromYaml }}
            - name: SLIPWAY_REDIS_URL
              valueFrom:
                secretKeyRef:
                  name: {{ .name }}
                  key: {{ .key }}
            {{- end }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
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
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            {{- toYaml .root.Values.containerSecurityContext | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: 64Mi
{{- end -}}

{{/* Where a pod may run and as whom: of (dict "root" $ "values" the part's own). */}}
{{- define "slipway.podSpec" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "slipway.disruptionBudget" -}}
{{- $values := index .root.Values .component -}}
{{- /* For one replica it would only keep nodes from being drained. */}}
{{- if and $values.podDisruptionBudget.enabled (gt (int $values.replicas) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "slipway.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}

{{/* Bindings of the roles that rbac.yaml of a service defines. */}}
{{- define "slipway.clusterRoleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "slipway.clusterMetadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "slipway.component" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "slipway.component" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{- define "slipway.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "slipway.component" . }}
subjects:
  - kind: ServiceAccount
    name: {{ include "slipway.component" . }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
