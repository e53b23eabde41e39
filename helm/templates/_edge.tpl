{{/* Whether strangers may be let to the api: it has to ask who they are, and to listen where they come in. */}}
{{- define "slipway.requireEdge" -}}
{{- $settings := .root.Values.api.settings -}}
{{- $way := default (printf "%s.enabled" .way) .setting -}}
{{- if eq $settings.auth "none" -}}
{{- fail (printf "%s: the api accepts every caller (api.settings.auth=none), so nothing may lead to it from outside; set another api.settings.auth first" $way) -}}
{{- end -}}
{{- if regexMatch "^(localhost|127[.0-9]+|\\[::1\\]):[0-9]+$" $settings.listen -}}
{{- fail (printf "%s: api.settings.listen=%s is reached from inside of its pod only; let it listen on 0.0.0.0" $way $settings.listen) -}}
{{- end -}}
{{- if not .names -}}
{{- fail (printf "%s needs host names: the api answers under names that it knows" $way) -}}
{{- end -}}
{{- end -}}
