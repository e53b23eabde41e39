{{/* Names and labels. All names of objects are defined here. */}}

{{- define "slipway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name if it contains the name of the chart; else both names. */}}
{{- define "slipway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "slipway.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "slipway.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The other templates take (dict "root" $ "component" "api"). */}}

{{- define "slipway.component" -}}
{{- printf "%s-%s" (include "slipway.fullname" .root) .component -}}
{{- end -}}

{{/* A Deployment's selector can never change, so nothing here may depend on a value or a version. */}}
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

{{/* The same for objects without a namespace. */}}
{{- define "slipway.clusterMetadata" -}}
name: {{ include "slipway.component" . }}
labels:
  {{- include "slipway.labels" . | nindent 2 }}
{{- end -}}

{{/*
image, of (dict "root" $ "image" .Values.valkey.image "tag" default "part" its name in files/pins.yaml): a digest has
precedence over a tag, and a tag with a pinned digest gets that digest. The registry is that of the repository, else that
of the image, else the global one that parent charts share.
*/}}
{{- define "slipway.image" -}}
{{- $name := .image.repository -}}
{{- if not (include "slipway.namesRegistry" $name) -}}
{{- with default (dig "imageRegistry" "" (default dict .root.Values.global)) .image.registry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- else if .image.registry -}}
{{- fail (printf "image.repository=%s names a registry already: leave image.registry empty, or name the registry there only" .image.repository) -}}
{{- end -}}
{{- $tag := default .tag .image.tag -}}
{{- $digest := .image.digest -}}
{{- $isPulled := and .root.Values.pinImages (not .image.allowNoRegistry) (ne .image.pullPolicy "Never") -}}
{{- with get (.root.Files.Get "files/pins.yaml" | fromYaml) .part -}}
{{- if and $isPulled (not $digest) (eq .tag $tag) (eq (base .repository) (base $.image.repository)) -}}
{{- $digest = .digest -}}
{{- end -}}
{{- end -}}
{{- if $digest -}}
{{- printf "%s@%s" $name $digest -}}
{{- else -}}
{{- printf "%s:%s" $name $tag -}}
{{- end -}}
{{- end -}}

{{/* Not empty when an image is named with its registry: the first part is a host name, as container runtimes read it. */}}
{{- define "slipway.namesRegistry" -}}
{{- if regexMatch "^(localhost|[^/]*[.:][^/]*)/" . }}yes{{ end -}}
{{- end -}}

{{/*
The image of Slipway. Without a registry no node could pull it, so the chart refuses that before anything is installed.
An installed release already has its image. When the chart is only rendered, there are no nodes: `lookup` finds nothing.
*/}}
{{- define "slipway.ownImage" -}}
{{- $image := include "slipway.image" (dict "root" . "image" .Values.image "tag" .Chart.AppVersion "part" "slipway") -}}
{{- $isPulled := not (or .Values.image.allowNoRegistry (eq .Values.image.pullPolicy "Never")) -}}
{{- $isInstall := and .Release.IsInstall (lookup "v1" "Service" "default" "kubernetes") -}}
{{- if and $isPulled $isInstall (not (include "slipway.namesRegistry" $image)) -}}
{{- fail (printf (join "\n" (list
  "\n\nThe image %s names no registry, so nodes cannot pull it. Push it to a registry first:"
  "    docker build --file image/Dockerfile --tag REGISTRY/slipway:%s . && docker push REGISTRY/slipway:%s"
  "(or copy the image file of the release there: docs/install.md), then add to this command:"
  "    --set image.registry=REGISTRY"
  "If the image is on every node already, add: --set image.allowNoRegistry=true\n")) $image .Chart.AppVersion .Chart.AppVersion) -}}
{{- end -}}
{{- $image -}}
{{- end -}}
