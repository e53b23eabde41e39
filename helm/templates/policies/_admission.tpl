{{/*
A ValidatingAdmissionPolicy and its binding. Takes (dict "root" $ "name" "nodes" "accounts" (list "api") "rules" [...]
"objectSelector" {...} "conditions" [...] "variables" [...] "validations" [...]). It judges only
requests of those accounts of ours, so a mistake in it can block only Slipway.
*/}}
{{- define "slipway.admissionPolicy" -}}
{{- $of := dict "root" .root "component" (printf "policy-%s" .name) -}}
{{- $users := list -}}
{{- range .accounts -}}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.root.Release.Namespace (include "slipway.component" (dict "root" $.root "component" .))) -}}
{{- end -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "slipway.clusterMetadata" $of | nindent 2 }}
spec:
  failurePolicy: Fail
  {{- with .parameters }}
  paramKind:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  matchConstraints:
    resourceRules:
      {{- toYaml .rules | nindent 6 }}
    {{- with .objectSelector }}
    objectSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  matchConditions:
    - name: ours
      expression: request.userInfo.username in {{ toJson $users }}
    {{- with .conditions }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .variables }}
  variables:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  validations:
    {{- toYaml .validations | nindent 4 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "slipway.clusterMetadata" $of | nindent 2 }}
spec:
  policyName: {{ include "slipway.component" $of }}
  {{- if .parameters }}
  paramRef:
    selector: {}
    parameterNotFoundAction: Allow
  {{- end }}
  validationActions: [Deny]
{{- end -}}

{{/*
A field of an allocation that only two kinds of callers may set: the api, which checks the permission of its own caller,
and users who may create allocations/<subresource> in the workspace. Takes (dict "root" $ "name" "limits" "condition"
(dict "name" "..." "expression" "...") "subresource" "limits" "message" "..."); the condition says when a write changes
the field. It judges all callers except the api.
*/}}
{{- define "slipway.rightPolicy" -}}
{{- if and .root.Values.admissionPolicies.enabled (.root.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1") }}
{{- $of := dict "root" .root "component" (printf "policy-%s" .name) }}
{{- $api := printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "slipway.component" (dict "root" .root "component" "api")) }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "slipway.clusterMetadata" $of | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [slipway.dev]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [allocations]
  matchConditions:
    - name: not-by-the-api
      expression: request.userInfo.username != {{ toJson $api }}
    - {{- toYaml .condition | nindent 6 }}
  validations:
    - expression: >-
        authorizer.group('slipway.dev').resource('allocations').subresource('{{ .subresource }}').namespace(request.namespace)
        .check('create').allowed()
      message: >-
        {{ .message }}: it takes the right to create allocations/{{ .subresource }} in this namespace
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "slipway.clusterMetadata" $of | nindent 2 }}
spec:
  policyName: {{ include "slipway.component" $of }}
  validationActions: [Deny]
{{- end }}
{{- end -}}
