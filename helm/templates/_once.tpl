{{/*
Serverless runs of a service: with --once it does all pending work and ends. A CronJob starts it from time to time; where
KEDA watches the work streams, a ScaledJob starts it when there is work. Takes (dict "root" $ "component" "scheduler").
*/}}

{{- define "slipway.once" -}}
{{- $values := index .root.Values .component -}}
{{- $of := dict "root" .root "component" .component "once" true -}}
{{- if dig "keda" "enabled" false $values -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledJob
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
spec:
  pollingInterval: {{ $values.keda.pollingIntervalS }}
  maxReplicaCount: {{ $values.keda.maxReplicas }}
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTargetRef:
    {{- include "slipway.onceJob" $of | nindent 4 }}
  triggers:
    {{- include "slipway.workTriggers" .root | nindent 4 }}
{{- else -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  {{- include "slipway.metadata" . | nindent 2 }}
spec:
  schedule: {{ $values.once.schedule | quote }}
  {{- /* A late run does the work of all runs that it has missed. */}}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 60
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      {{- include "slipway.onceJob" $of | nindent 6 }}
{{- end -}}
{{- end -}}

{{- define "slipway.onceJob" -}}
{{- /* The next run is the retry. */ -}}
backoffLimit: 0
activeDeadlineSeconds: {{ (index .root.Values .component).once.deadlineS }}
template:
  {{- include "slipway.podTemplate" . | nindent 2 }}
{{- end -}}

{{/* One KEDA trigger for each work stream; KEDA uses the largest result. */}}
{{- define "slipway.workTriggers" -}}
{{- $keda := .Values.podworker.keda -}}
{{- $type := .Values.valkey.enabled | ternary "redis-streams" $keda.redis.type -}}
{{- $valkey := printf "%s.%s.svc:6379" (include "slipway.component" (dict "root" . "component" "valkey")) .Release.Namespace -}}
{{- $authentication := .Values.valkey.enabled | ternary (include "slipway.component" (dict "root" . "component" "podworker")) $keda.redis.authentication -}}
{{- range $shard := until 16 }}
- type: {{ $type }}
  metadata:
    {{ eq $type "redis-streams" | ternary "address" "addresses" }}: {{ $.Values.valkey.enabled | ternary $valkey $keda.redis.addresses | quote }}
    {{- if eq $type "redis-sentinel-streams" }}
    sentinelMaster: {{ $keda.redis.sentinelMaster | quote }}
    {{- end }}
    {{- if and (not $.Values.valkey.enabled) $keda.redis.tls }}
    enableTLS: "true"
    {{- end }}
    stream: {{ printf "slipway:work:{%02d}" $shard | quote }}
    consumerGroup: podworker
    lagCount: {{ $keda.lagCount | quote }}
    activationLagCount: {{ $keda.activationLagCount | quote }}
  {{- with $authentication }}
  authenticationRef:
    name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
