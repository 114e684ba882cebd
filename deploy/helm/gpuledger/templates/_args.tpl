{{/* Arguments of gpuledger. Settings that it reloads while it runs are in its configuration file, not here. */}}

{{- define "gpuledger.commonArgs" -}}
- --config=/etc/gpuledger/config/gpuledger.yaml
{{- if ne .v.source "auto" }}
- {{ printf "--source=%s" .v.source | quote }}
{{- end }}
{{- with int .v.gpu.count }}
- --gpu-count={{ . }}
{{- end }}
{{- with .v.gpu.devices }}
- {{ printf "--devices=%s" (include "gpuledger.joined" .) | quote }}
{{- end }}
- --passwd-file={{ ternary "/etc/gpuledger/passwd" "/dev/null" (and (not (empty .v.host.passwdFile)) (not .simulated)) }}
{{- end -}}

{{- define "gpuledger.stateArg" -}}
- --state-dir={{ ternary "/var/lib/gpuledger" "none" (not (empty (include "gpuledger.keepsBooks" .))) }}
{{- end -}}

{{/* Joins words with commas. Helm parses JSON numbers as floating point, so indexes are converted to integers. */}}
{{- define "gpuledger.joined" -}}
{{- $words := list -}}
{{- range . -}}
{{- $words = append $words (ternary (toString .) (toString (int64 (ternary 0 . (kindIs "string" .)))) (kindIs "string" .)) -}}
{{- end -}}
{{- join "," $words -}}
{{- end -}}

{{- define "gpuledger.serveArgs" -}}
- serve
{{ include "gpuledger.commonArgs" . }}
{{ include "gpuledger.stateArg" . }}
- --listen-address=:{{ include "gpuledger.port" . }}
{{- range .v.extraPorts }}
- --listen-address=:{{ int .port }}={{ join "," .dialects }}
{{- end }}
{{- if ne .v.metricsPath "/metrics" }}
- {{ printf "--metrics-path=%s" .v.metricsPath | quote }}
{{- end }}
{{- if .v.kubernetes.events }}
- --kubernetes-events=true
{{- end }}
{{- if include "gpuledger.webConfigSecret" . }}
- --web.config.file=/etc/gpuledger/web/{{ ternary .v.web.key "web-config.yml" (not (empty .v.web.existingSecret)) }}
{{- end }}
{{- with .v.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuledger.collectArgs" -}}
- collect
{{ include "gpuledger.commonArgs" . }}
{{ include "gpuledger.stateArg" . }}
{{- if eq .mode "collect" }}
- --every={{ .v.textfile.every }}
{{- end }}
- {{ printf "--textfile-dir=%s" (include "gpuledger.textfileDir" .) | quote }}
- --file={{ include "gpuledger.file" . }}
{{- with .v.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuledger.textfileDir" -}}
{{- default .v.textfile.directory .v.prometheus.textfileCollectorPath -}}
{{- end -}}

{{/* Name of the textfile: the same for both CronJobs, because node_exporter would export the same series from two files twice. */}}
{{- define "gpuledger.file" -}}
{{- $sessions := eq (first .writers).name "gpu-session-metrics-collector" -}}
{{- default (ternary "gpu_sessions.prom" "gpu_processes.prom" $sessions) .v.textfile.file -}}
{{- end -}}
