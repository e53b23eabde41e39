{{/* To the DNS server: in some clusters a pod, in others an address of the node. */}}
{{- define "slipway.egressOfNames" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end -}}
