{{/* Names and labels. Every name of ours comes from here. */}}

{{- define "slipway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, when it says what it is; "slipway" for a release called slipway. */}}
{{- define "slipway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "slipway.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "slipway.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The rest takes (dict "root" $ "component" "api"). */}}

{{- define "slipway.component" -}}
{{- printf "%s-%s" (include "slipway.fullname" .root) .component -}}
{{- end -}}

{{/* A Deployment's selector can never be changed: nothing that a value or a version decides may stand here. */}}
{{- define "slipway.selector" -}}
app.kubernetes.io/name: {{ include "slipway.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "slipway.labels" -}}
{{ include "slipway.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: slipway
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "slipway.metadata" -}}
name: {{ include "slipway.component" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "slipway.labels" . | nindent 2 }}
{{- end -}}

{{/* The same for what belongs to no namespace. */}}
{{- define "slipway.clusterMetadata" -}}
name: {{ include "slipway.component" . }}
labels:
  {{- include "slipway.labels" . | nindent 2 }}
{{- end -}}

{{/* image, of (dict "image" .Values.image "tag" default): a digest wins over a tag. */}}
{{- define "slipway.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}
