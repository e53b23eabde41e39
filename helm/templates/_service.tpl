{{/*
The objects that each of the four services has: an account, a ConfigMap, the owner of its pods, a disruption budget.
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

{{/* The owner of a service's pods: a Deployment, or with `once` the object that starts them from time to time. */}}
{{- define "slipway.workload" -}}
{{- $values := index .root.Values .component -}}
{{- if dig "once" "enabled" false $values -}}
{{ include "slipway.once" . }}
{{- else -}}
{{ include "slipway.deployment" . }}
{{- end -}}
{{- end -}}

{{- define "slipway.deployment" -}}
{{- $values := index .root.Values .component -}}
{{- $scaled := or (dig "autoscaling" "enabled" false $values) (dig "keda" "enabled" false $values) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
spec:
  {{- /* The autoscaler sets the number of replicas; a number here would reset it at each upgrade. */}}
  {{- if not $scaled }}
  replicas: {{ $values.replicas }}
  {{- end }}
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
    {{- include "slipway.podTemplate" . | nindent 4 }}
{{- end -}}

{{/* The nodes on which a pod may run, and its users: takes (dict "root" $ "values" the part's own). */}}
{{- define "slipway.podSpec" -}}
{{- $secrets := list }}
{{- range concat .root.Values.image.pullSecrets .root.Values.imagePullSecrets (default list (dig "imagePullSecrets" list (default dict .root.Values.global))) }}
{{- /* Either as Kubernetes writes them, or plain names. */}}
{{- $secrets = append $secrets (kindIs "string" . | ternary . (kindIs "string" . | ternary dict .).name) }}
{{- end }}
{{- with uniq $secrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .root.Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .root.Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with default (ternary (include "slipway.fullname" .root) "" .root.Values.priorityClass.create) .values.priorityClassName }}
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
{{- $least := int $values.replicas -}}
{{- if dig "autoscaling" "enabled" false $values -}}
{{- $least = int $values.autoscaling.minReplicas -}}
{{- else if dig "keda" "enabled" false $values -}}
{{- $least = int $values.keda.minReplicas -}}
{{- end -}}
{{- /* With one replica, the budget would only prevent the drain of nodes. */}}
{{- if and $values.podDisruptionBudget.enabled (gt $least 1) (not (dig "once" "enabled" false $values)) -}}
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
