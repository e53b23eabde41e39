{{/*
The scope of the rules of a service's account. Each takes (dict "root" $ "component" "api"). A service defines its rules
in two parts: slipway.rules.SERVICE.everywhere, which only read or do not belong to a workspace, and
slipway.rules.SERVICE.workspaces, which write there. With rbac.namespaces the latter apply in those namespaces only.
*/}}

{{- define "slipway.roles" -}}
{{- $of := . -}}
{{- $namespaces := .root.Values.rbac.namespaces -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "slipway.clusterMetadata" . | nindent 2 }}
rules:
  {{- include (printf "slipway.rules.%s.everywhere" .component) . | nindent 2 }}
  {{- if not $namespaces }}
  {{- include (printf "slipway.rules.%s.workspaces" .component) . | nindent 2 }}
  {{- end }}
---
{{ include "slipway.clusterRoleBinding" . }}
{{- range $namespaces }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "slipway.component" $of }}-workspace
  namespace: {{ . }}
  labels:
    {{- include "slipway.labels" $of | nindent 4 }}
rules:
  {{- include (printf "slipway.rules.%s.workspaces" $of.component) $of | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "slipway.component" $of }}-workspace
  namespace: {{ . }}
  labels:
    {{- include "slipway.labels" $of | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ include "slipway.component" $of }}-workspace
subjects:
  - kind: ServiceAccount
    name: {{ include "slipway.component" $of }}
    namespace: {{ $of.root.Release.Namespace }}
{{- end }}
{{- end -}}

{{/* Bindings of the roles that have the name of the component. */}}
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
