{{- define "gpuledger.port" -}}
{{- if int .v.port -}}{{ int .v.port }}{{- else -}}{{ ternary 9835 9400 (eq .v.image.variant "smi") }}{{- end -}}
{{- end -}}

{{- define "gpuledger.scheme" -}}
{{- default (ternary "https" "http" (not (empty (get .v.web.config "tls_server_config")))) .v.web.scheme -}}
{{- end -}}

{{/* tcp if client certificates are required: the kubelet has none. */}}
{{- define "gpuledger.probeKind" -}}
{{- $tls := default dict (get .v.web.config "tls_server_config") -}}
{{- default (ternary "tcp" "http" (hasPrefix "Require" (toString (get $tls "client_auth_type")))) .v.web.probe -}}
{{- end -}}

{{/* A probe: (dict "root" $ "path" "/-/ready" "timing" dict). */}}
{{- define "gpuledger.probe" -}}
{{- if eq (include "gpuledger.probeKind" .root) "tcp" -}}
tcpSocket: {port: metrics}
{{- else -}}
httpGet: {path: {{ .path }}, port: metrics, scheme: {{ include "gpuledger.scheme" .root | upper }}}
{{- end }}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuledger.webConfigSecret" -}}
{{- if .v.web.existingSecret -}}
{{- .v.web.existingSecret -}}
{{- else if .v.web.config -}}
{{- include "gpuledger.fullname" . }}-web
{{- end -}}
{{- end -}}

{{/* Endpoint of a ServiceMonitor or PodMonitor: (dict "root" $ "monitor" values "port" name). */}}
{{- define "gpuledger.endpoint" -}}
port: {{ .port }}
path: {{ .root.v.metricsPath }}
scheme: {{ include "gpuledger.scheme" .root }}
honorLabels: {{ .monitor.honorLabels }}
{{- with .monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with .monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- range $key := list "tlsConfig" "basicAuth" "relabelings" "metricRelabelings" }}
{{- with get $.monitor $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
