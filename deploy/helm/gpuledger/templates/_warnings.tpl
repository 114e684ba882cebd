{{/* What can be, but is seldom what was meant: a YAML list. */}}
{{- define "gpuledger.warnings" -}}
{{- $v := .v -}}
{{- $said := list -}}
{{- if not (has .asked (list "daemonset" "none")) -}}
{{- $minute := first (regexFindAll "\\S+" $v.collection.schedule -1) -}}
{{- $step := regexFind "^\\*/[0-9]+$" (default "" $minute) | trimPrefix "*/" -}}
{{- if gt (int (default "0" $step)) 5 -}}
{{- $said = append $said (printf "collection.schedule: '%s' is every %s minutes, not seconds: cron knows no seconds. For seconds set mode=daemonset, or mode=collect with textfile.every=%ss." $v.collection.schedule $step $step) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .asked "cronjob") (eq .mode "collect") -}}
{{- $said = append $said (printf "%d GPU nodes are more than cronjob.maxNodes (%d): a DaemonSet that runs collect --every %s was made in place of the CronJob." (len .nodes) (int $v.cronjob.maxNodes) $v.textfile.every) -}}
{{- else if and (eq .mode "cronjob") .nodes -}}
{{- $said = append $said (printf "the CronJob covers the %d nodes that there are now; after adding GPU nodes run helm upgrade again." (len .nodes)) -}}
{{- else if eq .mode "cronjob" -}}
{{- $said = append $said (printf "no GPU node was found, so each tick has %d pod(s), each on a node of its own. Name the nodes in cronjob.nodes, or their number in cronjob.nodeCount." (int $v.cronjob.nodeCount)) -}}
{{- end -}}
{{- if gt (len .writers) 1 -}}
{{- $said = append $said (printf "gpu-process-exporter and gpu-session-monitoring are both enabled: %s writes one file for both, %s is suspended; jobs can be made from it." (first .writers).name (last .writers).name) -}}
{{- end -}}
{{- if .made_up -}}
{{- $said = append $said (printf "source %s: what is told is made up." $v.source) -}}
{{- end -}}
{{- if include "gpuledger.onHost" . -}}
{{- $said = append $said "gpuAccess.mode host: the container is privileged. With NVIDIA's container toolkit env, volume-list or cdi do without." -}}
{{- end -}}
{{- if get $v.securityContext "privileged" -}}
{{- $said = append $said "securityContext.privileged: the container is privileged; nothing but gpuAccess.mode host needs that." -}}
{{- end -}}
{{- if not $v.hostPID -}}
{{- $said = append $said "hostPID is off: processes are counted, and nobody is named." -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled $v.hostNetwork -}}
{{- $said = append $said "networkPolicy does not hold on the host's network (hostNetwork)." -}}
{{- end -}}
{{- if eq (toString $v.web.page) "full" -}}
{{- $said = append $said "web.page full shows users, processes and costs: personal data. Put passwords before it (web.config)." -}}
{{- end -}}
{{- range $key := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $v $key -}}
{{- if and $monitor.enabled (eq (include "gpuledger.scheme" $) "https") (not $monitor.tlsConfig) -}}
{{- $said = append $said (printf "%s.tlsConfig is empty: Prometheus asks pods by address and will not believe their certificate; name ca and serverName." $key) -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.rbac.create) (has $v.kubernetes.names (list "auto" "api")) -}}
{{- $said = append $said "rbac.create is off: unless the ServiceAccount may list and watch pods, their labels and controllers are not known." -}}
{{- end -}}
{{- if $v.collection.image -}}
{{- $said = append $said "collection.image is not used; the image is that of image.repository and image.tag." -}}
{{- end -}}
{{- if $v.prometheus.serverService -}}
{{- $said = append $said "prometheus.serverService is not used." -}}
{{- end -}}
{{- if and $v.hostAccess (not (get $v.hostAccess "hostPID")) -}}
{{- $said = append $said "hostAccess is not used; hostPID decides whether the node's pids are seen." -}}
{{- end -}}
{{- if and $v.operator.enabled (not $v.whatapCompat.enabled) -}}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "whatapagents.monitoring.whatap.com" -}}
{{- if and $crd (eq (toString (dig "metadata" "labels" "app.kubernetes.io/part-of" "" $crd)) "gpuledger") -}}
{{- range (lookup "monitoring.whatap.com/v2alpha1" "WhatapAgent" "" "").items -}}
{{- if has "gpuledger.dev/operator" (default list .metadata.finalizers) -}}
{{- $said = append $said (printf "whatapCompat.enabled is off, and nobody serves the WhatapAgent %s: what was made for it stays, and deleting it waits for ever. To take it apart set whatapCompat.enabled=true, kubectl delete whatapagent %s, then turn it off again." .metadata.name .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne (toString .Values.valuesVersion) .Chart.Version -}}
{{- $said = append $said (printf "the values are of another chart version (%s); what is new in %s has its default." (default "unknown" .Values.valuesVersion) .Chart.Version) -}}
{{- end -}}
{{- toYaml $said -}}
{{- end -}}
