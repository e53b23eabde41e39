{{/*
From values to the environment of a service. A field of `settings` is a setting of the service, spelled as in
docs/reference/settings.md but in camelCase: `tickMinMs` is SLIPWAY_TICK_MIN_MS. The service itself checks the values
again at its start, and ends when it does not know one.
*/}}

{{/* Whom the tokens of ranks may be for, as JSON: Slipway, and those that the values list. */}}
{{- define "slipway.tokenAudiences" -}}
{{- concat (compact (list .Values.podworker.settings.taskAudience)) .Values.admissionPolicies.tokenAudiences | uniq | toJson -}}
{{- end -}}

{{/* What a service is given, as a map of YAML: the common settings, then its own; an empty one counts as unset. */}}
{{- define "slipway.environment" -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) (deepCopy (index .root.Values .component).settings) -}}
{{- if eq .component "api" -}}
{{- /* Under a name that it does not know the api answers nobody. */ -}}
{{- $ways := concat (.root.Values.ingress.enabled | ternary .root.Values.ingress.hosts list) (.root.Values.httpRoute.enabled | ternary .root.Values.httpRoute.hostnames list) -}}
{{- $_ := set $settings "hosts" (concat $settings.hosts $ways | uniq) -}}
{{- if and .root.Values.api.tokenSecret (not $settings.tokenDir) -}}
{{- $_ := set $settings "tokenDir" (include "slipway.tokenFolder" .) -}}
{{- end -}}
{{- if and (include "slipway.sessionKeySecret" .root) (not $settings.sessionKeyDir) -}}
{{- $_ := set $settings "sessionKeyDir" (include "slipway.sessionKeyFolder" .) -}}
{{- end -}}
{{- if and .root.Values.api.oidcSecret (not $settings.oidcClientSecretFile) -}}
{{- $_ := set $settings "oidcClientSecretFile" (printf "%s/client-secret" (include "slipway.oidcFolder" .)) -}}
{{- end -}}
{{- if and .root.Values.api.tlsSecret (not $settings.tlsDir) -}}
{{- $_ := set $settings "tlsDir" (include "slipway.tlsFolder" .) -}}
{{- end -}}
{{- if and .root.Values.admissionPolicies.enabled (not $settings.tokenAudiences) -}}
{{- $_ := set $settings "tokenAudiences" (fromJsonArray (include "slipway.tokenAudiences" .root)) -}}
{{- end -}}
{{- end -}}
{{- if and (has .component (list "scheduler" "watcher")) (include "slipway.feedKeySecret" .root) (not $settings.feedKeyDir) -}}
{{- $_ := set $settings "feedKeyDir" (include "slipway.feedKeyFolder" .) -}}
{{- end -}}
{{- range $field, $value := $settings -}}
{{- $standard := dict "otelEndpoint" "OTEL_EXPORTER_OTLP_ENDPOINT" "otelProtocol" "OTEL_EXPORTER_OTLP_PROTOCOL" -}}
{{- $name := default (printf "SLIPWAY_%s" (snakecase $field | upper)) (get $standard $field) -}}
{{- $text := "" -}}
{{- if kindIs "slice" $value -}}
{{- $text = join "," $value -}}
{{- else if kindIs "string" $value -}}
{{- $text = $value -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- /* Not `toString`: it writes a million as 1e+06. */ -}}
{{- $text = toJson $value -}}
{{- end -}}
{{- if ne $text "" }}
{{ $name }}: {{ $text | quote }}
{{- end -}}
{{- end -}}
{{- if eq .component "api" }}
SLIPWAY_WEBHOOK_NAMESPACE: {{ include "slipway.webhookNamespace" .root | quote }}
{{- end -}}
{{- if and (has .component (list "podworker" "api")) (not $settings.apiUrl) }}
{{- /* The task port where there is one: the api itself listens on loopback. */}}
{{- $api := .root.Values.api.settings }}
SLIPWAY_API_URL: {{ printf "http://%s.%s.svc:%s" (include "slipway.component" (dict "root" .root "component" "api")) .root.Release.Namespace (ternary (include "slipway.port" $api.taskListen) (include "slipway.servicePort" .root) (not (empty $api.taskListen))) | quote }}
{{- end -}}
{{- end -}}

{{/* Where webhooks are kept. */}}
{{- define "slipway.webhookNamespace" -}}
{{- $name := include "slipway.fullname" . -}}
{{- $namespace := default "default" .Release.Namespace -}}
{{- /* A release of another name in the same namespace has its own. */}}
{{- $place := eq $name "slipway" | ternary $namespace (printf "%s-%s" $namespace $name) -}}
{{- printf "%s-webhooks" ($place | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{/* Where the records of tokens are, in the pod of the api. */}}
{{- define "slipway.sessionKeyFolder" -}}
/etc/slipway/session-keys
{{- end -}}

{{/* The Secret with the keys that seal cookies; empty where nobody logs in, or they come by another way. */}}
{{- define "slipway.sessionKeySecret" -}}
{{- $api := .Values.api -}}
{{- if and (ne $api.settings.auth "none") (or $api.sessionKeySecret (not $api.settings.sessionKeyDir)) -}}
{{- $api.sessionKeySecret | default (include "slipway.component" (dict "root" . "component" "session-keys")) -}}
{{- end -}}
{{- end -}}

{{- define "slipway.feedKeyFolder" -}}
/etc/slipway/feed-keys
{{- end -}}

{{/* The Secret with the keys that sign the cluster feed; empty where there is no Redis, or it is not signed. */}}
{{- define "slipway.feedKeySecret" -}}
{{- if and .Values.feedKeys.enabled (include "slipway.redisSecret" . | fromYaml) -}}
{{- .Values.feedKeys.existingSecret | default (include "slipway.component" (dict "root" . "component" "feed-keys")) -}}
{{- end -}}
{{- end -}}

{{- define "slipway.tokenFolder" -}}
/etc/slipway/tokens
{{- end -}}

{{/* Where the secret of its client at the issuer is. */}}
{{- define "slipway.oidcFolder" -}}
/etc/slipway/oidc
{{- end -}}

{{/* Where its certificate is. */}}
{{- define "slipway.tlsFolder" -}}
/etc/slipway/tls
{{- end -}}

{{/* The port of a host:port. */}}
{{- define "slipway.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* Of the Service of the api: its own, or that of the pod. */}}
{{- define "slipway.servicePort" -}}
{{- default (include "slipway.port" .Values.api.settings.listen) (.Values.api.service.port | int | toString | trimPrefix "0") -}}
{{- end -}}

{{/* Where /livez and /readyz can be reached from outside of the pod. */}}
{{- define "slipway.healthPort" -}}
{{- $settings := (index .root.Values .component).settings -}}
{{- include "slipway.port" (default $settings.listen $settings.healthListen) -}}
{{- end -}}

{{/* The Secret with the URL of Redis, as a map of YAML; empty: no Redis. Of the Valkey it is for administrators. */}}
{{- define "slipway.redisSecret" -}}
{{- $external := .Values.externalRedis -}}
{{- if and .Values.valkey.enabled (or $external.url $external.existingSecret) -}}
{{- fail "choose one Redis: set valkey.enabled=false to use externalRedis" -}}
{{- end -}}
{{- if and $external.caSecret (not (or $external.url $external.existingSecret)) -}}
{{- fail "externalRedis.caSecret needs externalRedis.url or externalRedis.existingSecret" -}}
{{- end -}}
{{- if and $external.caSecret $external.url (not (hasPrefix "rediss" $external.url)) -}}
{{- fail "externalRedis.caSecret is for TLS: externalRedis.url begins with rediss" -}}
{{- end -}}
{{- if and $external.url $external.existingSecret -}}
{{- fail "externalRedis: give url or existingSecret, not both" -}}
{{- end -}}
{{- if and $external.accounts.existingSecret (not (or $external.url $external.existingSecret)) -}}
{{- fail "externalRedis.accounts.existingSecret needs externalRedis.url or externalRedis.existingSecret" -}}
{{- end -}}
{{- if .Values.valkey.enabled }}
name: {{ default (include "slipway.component" (dict "root" . "component" "valkey")) .Values.valkey.auth.existingSecret }}
key: url
{{- else if $external.existingSecret }}
name: {{ $external.existingSecret }}
key: {{ $external.existingSecretKey }}
{{- else if $external.url }}
name: {{ include "slipway.component" (dict "root" . "component" "redis") }}
key: url
{{- end -}}
{{- end -}}

{{/* The Secret with the passwords of the accounts on Redis, a key for each; empty: the URL holds the login of all. */}}
{{- define "slipway.accountsSecret" -}}
{{- if .Values.valkey.enabled -}}
{{- default (include "slipway.component" (dict "root" . "component" "valkey-accounts")) .Values.valkey.auth.accountsSecret -}}
{{- else -}}
{{- .Values.externalRedis.accounts.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* The Secret whose key ca.crt signed the certificate of Redis; empty: no TLS, or an authority that all know. */}}
{{- define "slipway.redisAuthority" -}}
{{- if not .Values.valkey.enabled -}}
{{- .Values.externalRedis.caSecret -}}
{{- else if .Values.valkey.tls.enabled -}}
{{- default (include "slipway.component" (dict "root" . "component" "valkey-tls")) .Values.valkey.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* The chart's Valkey, without a login. */}}
{{- define "slipway.valkeyAddress" -}}
{{ .Values.valkey.tls.enabled | ternary "rediss" "redis" }}://{{ include "slipway.valkeyHost" . }}:6379/0
{{- end -}}

{{- define "slipway.valkeyHost" -}}
{{ include "slipway.component" (dict "root" . "component" "valkey") }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* What the setup is given: the objects to make, as JSON. */}}
{{- define "slipway.setupEnvironment" -}}
SLIPWAY_LOG_LEVEL: {{ .Values.settings.logLevel | quote }}
SLIPWAY_LOG_FORMAT: {{ .Values.settings.logFormat | quote }}
SLIPWAY_SETUP_POOLS: {{ toJson .Values.setup.pools | quote }}
SLIPWAY_SETUP_QUEUES: {{ toJson .Values.setup.queues | quote }}
SLIPWAY_SETUP_WORKSPACES: {{ join "," .Values.setup.workspaces | quote }}
{{- end -}}
