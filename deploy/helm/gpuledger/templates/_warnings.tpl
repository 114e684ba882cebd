{{/* Warnings about valid values that are probably mistakes, as a YAML list. */}}
{{- define "gpuledger.warnings" -}}
{{- $v := .v -}}
{{- $warnings := list -}}
{{- if not (has .requestedMode (list "daemonset" "none")) -}}
{{- $minute := first (regexFindAll "\\S+" $v.collection.schedule -1) -}}
{{- $step := regexFind "^\\*/[0-9]+$" (default "" $minute) | trimPrefix "*/" -}}
{{- if gt (int (default "0" $step)) 5 -}}
{{- $warnings = append $warnings (printf "collection.schedule: '%s' means every %s minutes: cron has no seconds. For intervals in seconds set mode=daemonset, or mode=collect with textfile.every=%ss." $v.collection.schedule $step $step) -}}
{{- end -}}
{{- end -}}
{{- if and .jobs (eq .mode "collect") -}}
{{- $warnings = append $warnings (printf "cronjob.nodes: no GPU nodes are known, so a DaemonSet that runs collect --every %s covers all of them, and the CronJob is suspended. For a CronJob that runs, set cronjob.nodes to the nodes' names, or cronjob.nodeCount to their number." $v.textfile.every) -}}
{{- else if and (eq .requestedMode "cronjob") (eq .mode "collect") -}}
{{- $warnings = append $warnings (printf "%d GPU nodes exceed cronjob.maxNodes (%d): the chart created a DaemonSet that runs collect --every %s instead of the CronJob." (len .nodes) (int $v.cronjob.maxNodes) $v.textfile.every) -}}
{{- else if and (eq .mode "cronjob") .nodes -}}
{{- $warnings = append $warnings (printf "the CronJob covers the %d current GPU nodes; run helm upgrade after you add GPU nodes." (len .nodes)) -}}
{{- else if eq .mode "cronjob" -}}
{{- $warnings = append $warnings (printf "cronjob.nodeCount: each Job has %d pod(s), each on a different GPU node; change the value when you add GPU nodes." (int $v.cronjob.nodeCount)) -}}
{{- end -}}
{{- if gt (len .writers) 1 -}}
{{- $warnings = append $warnings (printf "gpu-process-exporter and gpu-session-monitoring are both enabled: %s writes one file for both; %s is suspended, but you can create Jobs from it." (first .writers).name (last .writers).name) -}}
{{- end -}}
{{- with $v.gpu.devices -}}
{{- $warnings = append $warnings (printf "gpu.devices: only the GPUs %s are monitored; on nodes with others, those are left out. Former charts ignored this key: remove it to monitor all GPUs." (include "gpuledger.joined" .)) -}}
{{- end -}}
{{- with include "gpuledger.nodesWithoutMatch" . -}}
{{- $warnings = append $warnings . -}}
{{- end -}}
{{- if .simulated -}}
{{- $warnings = append $warnings (printf "source %s: all metrics are simulated or replayed, not measured." $v.source) -}}
{{- end -}}
{{- if include "gpuledger.onHost" . -}}
{{- $warnings = append $warnings "gpuAccess.mode host: the container is privileged. With the NVIDIA Container Toolkit, the modes env, volume-list and cdi avoid that." -}}
{{- end -}}
{{- if get $v.securityContext "privileged" -}}
{{- $warnings = append $warnings "securityContext.privileged: the container is privileged; only gpuAccess.mode host needs that." -}}
{{- end -}}
{{- if not $v.hostPID -}}
{{- $warnings = append $warnings "hostPID is off: processes are counted but have no owners." -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled $v.hostNetwork -}}
{{- $warnings = append $warnings "networkPolicy has no effect on pods in the host's network (hostNetwork)." -}}
{{- end -}}
{{- if eq (toString $v.web.page) "full" -}}
{{- $warnings = append $warnings "web.page full shows users, processes and costs: personal data. Protect it with passwords (web.config)." -}}
{{- end -}}
{{- range $key := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $v $key -}}
{{- if and $monitor.enabled $monitor.scrapeTimeout (not $monitor.interval) -}}
{{- $warnings = append $warnings (printf "%s.interval is empty: if your Prometheus has an interval below %s.scrapeTimeout (%s), Prometheus Operator ignores the monitor." $key $key $monitor.scrapeTimeout) -}}
{{- end -}}
{{- if and $monitor.enabled (eq $.mode "daemonset") (not $monitor.interval) (not (hasKey (include "gpuledger.flatConfig" $ | fromYaml) "energy.zero_hold")) -}}
{{- $warnings = append $warnings (printf "%s.interval is empty: if your Prometheus has an interval above 20s, set config.energy.zero_hold to it plus its timeout, or the first scrapes of a new node miss short jobs." $key) -}}
{{- end -}}
{{- if and $monitor.enabled (eq $.mode "daemonset") (or $v.rules.enabled $v.dashboards.enabled) (or (not $monitor.honorLabels) $v.openshift.enabled) -}}
{{- $why := ternary "is off" "has no effect in OpenShift's monitoring of user workloads" (not $monitor.honorLabels) -}}
{{- $warnings = append $warnings (printf "%s.honorLabels %s: rules and dashboards then book what owners used to the exporter's pod. Use a Prometheus that honors labels." $key $why) -}}
{{- end -}}
{{- if and $monitor.enabled (eq $.mode "daemonset") (get $v.web.config "basic_auth_users") (not $monitor.basicAuth) -}}
{{- $warnings = append $warnings (printf "%s.basicAuth is empty: the exporters refuse scrapes without a password of web.config.basic_auth_users; set it." $key) -}}
{{- end -}}
{{- if and $monitor.enabled (eq $.mode "daemonset") (eq (include "gpuledger.scheme" $) "https") (not $monitor.tlsConfig) -}}
{{- $warnings = append $warnings (printf "%s.tlsConfig is empty: Prometheus scrapes pods by IP address, so it cannot verify their certificate; set ca and serverName." $key) -}}
{{- end -}}
{{- end -}}
{{- if include "gpuledger.agentDiscovers" . -}}
{{- $own := eq (include "gpuledger.name" .) "gpuledger" -}}
{{- if or (eq (include "gpuledger.scheme" .) "https") $v.web.existingSecret (get $v.web.config "basic_auth_users") -}}
{{- $warnings = append $warnings "agent: the web config (web) can require TLS or a password, which the agent does not know: if it does, add a target with tlsConfig or basicAuth to agent.config.features.openAgent.targets." -}}
{{- else if and $own (ne $v.metricsPath (dig "features" "openAgent" "globalPath" "/metrics" $v.agent.config)) -}}
{{- $warnings = append $warnings (printf "agent: metricsPath is %s, but the agent scrapes another path: set agent.config.features.openAgent.globalPath to it." $v.metricsPath) -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.rbac.create) (has $v.kubernetes.names (list "auto" "api")) -}}
{{- $warnings = append $warnings "rbac.create is off: without permission to list and watch pods, gpuledger does not know their labels and controllers." -}}
{{- end -}}
{{- if and $v.dashboards.enabled (not $v.rules.enabled) -}}
{{- $warnings = append $warnings "rules.enabled is off: the dashboards need the recording rules for energy, GPU-hours and cost. Set rules.enabled=true, or load deploy/prometheus/rules/recording.yml into Prometheus." -}}
{{- end -}}
{{- with and (or $v.rules.enabled $v.dashboards.enabled) (include "gpuledger.omittedAlerts" .) -}}
{{- $dialects := default "process or session" (include "gpuledger.scrapedDialects" $) -}}
{{- if $v.rules.enabled -}}
{{- $warnings = append $warnings (printf "rules: only the dialects %s are scraped. Add native to `dialect` for the recording rules and these alerts: %s." $dialects .) -}}
{{- end -}}
{{- if $v.dashboards.enabled -}}
{{- $warnings = append $warnings (printf "dashboards: only the dialects %s are scraped; without native the panels are empty." $dialects) -}}
{{- end -}}
{{- end -}}
{{- with and $v.rules.enabled (include "gpuledger.unknownAlerts" .) -}}
{{- $warnings = append $warnings (printf "rules.disabled: no alert has the name %s, so nothing is omitted for it; see docs/alerts.md." .) -}}
{{- end -}}
{{- if $v.collection.image -}}
{{- $warnings = append $warnings "collection.image is ignored; set image.repository and image.tag." -}}
{{- end -}}
{{- if $v.prometheus.serverService -}}
{{- $warnings = append $warnings "prometheus.serverService is ignored." -}}
{{- end -}}
{{- if and $v.hostAccess (not (get $v.hostAccess "hostPID")) -}}
{{- $warnings = append $warnings "hostAccess is ignored; set hostPID to use the node's PID namespace." -}}
{{- end -}}
{{- if and $v.operator.enabled (not $v.whatapCompat.enabled) -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "whatapagents.monitoring.whatap.com" -}}
{{- if and $crd (eq (toString (dig "metadata" "labels" "app.kubernetes.io/part-of" "" $crd)) "gpuledger") -}}
{{- range (lookup "monitoring.whatap.com/v2alpha1" "WhatapAgent" "" "").items -}}
{{- if has "gpuledger.dev/operator" (default list .metadata.finalizers) -}}
{{- $warnings = append $warnings (printf "whatapCompat.enabled is off, so no operator handles the WhatapAgent %s: its objects remain, and deleting it never finishes. To delete it, set whatapCompat.enabled=true, run kubectl delete whatapagent %s, then turn it off again." .metadata.name .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne (toString .Values.valuesVersion) .Chart.Version -}}
{{- $warnings = append $warnings (printf "the values are from another chart version (%s); new keys of %s have their defaults." (default "unknown" .Values.valuesVersion) .Chart.Version) -}}
{{- end -}}
{{- toYaml $warnings -}}
{{- end -}}

{{/* Why no node of the cluster gets a pod; empty if one does, or without an API server (helm template). */}}
{{- define "gpuledger.nodesWithoutMatch" -}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- if and $nodes (ne .mode "none") (not .v.affinity) -}}
{{- $matching := "" -}}
{{- range $nodes -}}
{{- if not $matching -}}{{- $matching = include "gpuledger.selectsNode" (dict "root" $ "labels" (default dict .metadata.labels)) -}}{{- end -}}
{{- end -}}
{{- if not $matching -}}
no node gets a pod: none of the {{ len $nodes }} nodes has {{ with .v.nodeSelector }}all labels of nodeSelector ({{ toJson . }}).{{ else }}a label of GPU nodes, which GPU feature discovery or the cloud sets. Label them with nvidia.com/gpu.present=true, or set nodeSelector.{{ end }}{{ if .v.followGpuOperator.enabled }} With followGpuOperator.enabled, a node also needs the label {{ .v.followGpuOperator.deployLabel }}=true, which the GPU Operator sets.{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}
