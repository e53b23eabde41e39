{{/*
A ValidatingAdmissionPolicy and its binding. Takes (dict "root" $ "name" "nodes" "accounts" (list "api") "rules" [...]
"conditions" [...] "variables" [...] "validations" [...]). It judges requests of those accounts of ours and nobody
else's, so a mistake in it can stop us and nobody else.
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
