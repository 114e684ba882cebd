{{/* Settings that the chart passes as flags, and the value that holds each. */}}
{{- define "gpuledger.owned" -}}
listen_address: port or extraPorts
metrics_path: metricsPath
source: source
devices: gpu.devices
gpu_count: gpu.count
state_dir: state.dir
passwd_file: host.passwdFile
web.config.file: web.config or web.existingSecret
textfile.dir: textfile.directory
textfile.file: textfile.file
textfile.every: textfile.every
kubernetes.events: kubernetes.events
{{- end -}}

{{/* Settings of `config` that a running program cannot change: a change rolls out new pods. */}}
{{- define "gpuledger.restarting" -}}
- access.mode
- control.socket
- energy.zero_hold
- host.pids
- kubernetes.events_after
- name_service
- nvidia_smi.command
- nvidia_smi.query_field_names
- process.max_per_device
- price.basis
- procfs
- profiling.dcgm_exporter_period
- profiling.dcgm_exporter_url
- report.timezone
- simulator.seed
- simulator.speed
- sysfs
- systemd_socket
- web.limits.answer_timeout
- web.limits.body_size
- web.limits.connections
- web.limits.header_size
- web.limits.headers
- web.limits.idle_timeout
- web.limits.request_timeout
- web.limits.response_memory
- web.limits.response_timeout
- web.limits.streams
{{- end -}}

{{/* The value `config` with dotted keys. */}}
{{- define "gpuledger.flatConfig" -}}
{{- $out := dict -}}
{{- include "gpuledger.flatten" (dict "in" .v.config "prefix" "" "out" $out) -}}
{{- toYaml $out -}}
{{- end -}}

{{- define "gpuledger.flatten" -}}
{{- $at := . -}}
{{- range $key, $value := .in -}}
{{- if kindIs "map" $value -}}
{{- include "gpuledger.flatten" (dict "in" $value "prefix" (printf "%s%s." $at.prefix $key) "out" $at.out) -}}
{{- else -}}
{{- $_ := set $at.out (printf "%s%s" $at.prefix $key) $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The configuration file of gpuledger. */}}
{{- define "gpuledger.config" -}}
{{- $v := .v -}}
{{- $made := dict "kubernetes" (dict "names" $v.kubernetes.names) -}}
{{- with $v.kubernetes.podLabelAllowlist -}}
{{- $_ := set $made.kubernetes "pod_label_allowlist" . -}}
{{- end -}}
{{- if eq .mode "daemonset" -}}
{{- $_ := set $made "web" (dict "page" (ternary "off" $v.web.page (empty $v.web.page))) -}}
{{- end -}}
{{- with include "gpuledger.dialect" . -}}
{{- $_ := set $made "dialect" (splitList "," .) -}}
{{- end -}}
{{- if $v.dcgm.collectors -}}
{{- $_ := set $made "dcgm" (dict "collectors" "/etc/gpuledger/config/collectors.csv") -}}
{{- end -}}
{{- if and (include "gpuledger.onHost" .) (include "gpuledger.runsSmi" .) -}}
{{- $_ := set $made "nvidia_smi" (dict "command" "/usr/local/nvidia/bin/nvidia-smi") -}}
{{- end -}}
{{- with include "gpuledger.zeroHold" . -}}
{{- $_ := set $made "energy" (dict "zero_hold" .) -}}
{{- end -}}
{{- /* The program refuses a key that is in its section and given with a dot. */ -}}
{{- $flat := include "gpuledger.flatConfig" . | fromYaml -}}
{{- range $section, $keys := $made -}}
{{- if kindIs "map" $keys -}}
{{- range $key := keys $keys -}}
{{- if hasKey $flat (printf "%s.%s" $section $key) -}}
{{- $_ := unset $keys $key -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (mustMergeOverwrite $made (deepCopy $v.config)) -}}
{{- end -}}

{{/* true if the chart's agent looks for exporters by their usual labels and path, and these pods are exporters. */}}
{{- define "gpuledger.agentDiscovers" -}}
{{- $open := dig "features" "openAgent" dict .v.agent.config -}}
{{- if and .v.agent.enabled (eq .mode "daemonset") (not $open.targets) (ne (toString $open.autoTargets) "false") (ne (toString $open.enabled) "false") -}}
true
{{- end -}}
{{- end -}}

{{/* The agent's configuration. With a nameOverride, the exporters lack the label by which an agent finds them. */}}
{{- define "gpuledger.agentConfig" -}}
{{- $config := deepCopy .v.agent.config -}}
{{- $name := include "gpuledger.name" . -}}
{{- if and (include "gpuledger.agentDiscovers" .) (not (has $name (list "gpuledger" "dcgm-exporter" "gke-managed-dcgm-exporter"))) -}}
{{- $endpoint := dict "port" "metrics" "path" .v.metricsPath "addNodeLabel" true -}}
{{- $labels := dict "app.kubernetes.io/name" $name "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/component" .component -}}
{{- $target := dict "targetName" "gpuledger-exporter" "jobLabel" "app.kubernetes.io/name" "type" "PodMonitor" -}}
{{- $_ := set $target "namespaceSelector" (dict "matchNames" (list .Release.Namespace)) -}}
{{- $_ = set $target "selector" (dict "matchLabels" $labels) -}}
{{- $_ = set $target "endpoints" (list $endpoint) -}}
{{- $open := dict "autoTargets" true "targets" (list $target) -}}
{{- $config = mustMergeOverwrite $config (dict "features" (dict "openAgent" $open)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* energy.zero_hold for the scrape interval of these values with its timeout; empty if the program's default is long enough. */}}
{{- define "gpuledger.zeroHold" -}}
{{- $longest := 0 -}}
{{- if eq .mode "daemonset" -}}
{{- range $key := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $.v $key -}}
{{- if and $monitor.enabled $monitor.interval -}}
{{- $timeout := int (include "gpuledger.milliseconds" (default "10s" $monitor.scrapeTimeout)) -}}
{{- $longest = max $longest (add (int (include "gpuledger.milliseconds" $monitor.interval)) $timeout) -}}
{{- end -}}
{{- end -}}
{{- with and .v.agent.enabled (dig "features" "openAgent" "globalInterval" "" .v.agent.config) -}}
{{- $longest = max $longest (add (int (include "gpuledger.milliseconds" .)) 10000) -}}
{{- end -}}
{{- else if eq .mode "collect" -}}
{{/* A file that has a new series as 0 must be there when node_exporter is scraped. The program does the same. */}}
{{- $longest = add (int (include "gpuledger.milliseconds" .v.textfile.every)) 30000 -}}
{{- end -}}
{{- if and (gt (int $longest) 30000) (not (hasKey (include "gpuledger.flatConfig" . | fromYaml) "energy.zero_hold")) -}}
{{- printf "%ds" (div (add $longest 999) 1000) -}}
{{- end -}}
{{- end -}}

{{/* Dialects of the metrics page or file, comma-separated; empty for gpuledger's default. */}}
{{- define "gpuledger.dialect" -}}
{{- if .v.dialect -}}
{{- join "," .v.dialect -}}
{{- else if and (eq .mode "daemonset") (eq .v.image.variant "smi") -}}
smi
{{- else if eq .mode "daemonset" -}}
{{- ternary "process,session,energy,native" "native" (or (index .v "gpu-process-exporter" "enabled") (index .v "gpu-session-monitoring" "enabled")) -}}
{{- end -}}
{{- end -}}

{{/* A checksum that changes if the pods need a restart for a change outside of their specification. */}}
{{- define "gpuledger.checksum" -}}
{{- $seen := dict "tls" (include "gpuledger.scheme" .) -}}
{{- if eq .mode "daemonset" -}}
{{- with include "gpuledger.zeroHold" . -}}
{{- $_ := set $seen "zero_hold" . -}}
{{- end -}}
{{- $flat := include "gpuledger.flatConfig" . | fromYaml -}}
{{- range include "gpuledger.restarting" . | fromYamlArray -}}
{{- if hasKey $flat . -}}
{{- $_ := set $seen . (get $flat .) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $_ := set $seen "config" (include "gpuledger.config" .) -}}
{{- end -}}
{{- toYaml $seen | sha256sum -}}
{{- end -}}
