{{/*
Every template calls this first. It adds to the root:
  v              the values, complete: see gpuledger.values
  requestedMode  daemonset, cronjob, collect or none: the mode that the values request
  mode           the mode that the chart renders: collect instead of cronjob on too many or unknown nodes
  component      exporter or collector
  nodes          cronjob: names of the known GPU nodes
  writers        cronjob and collect: list of (dict name suspended); the first one writes
  jobs           true if the CronJobs of the writers are rendered; all are suspended beside mode collect
  simulated      true if the source needs no GPU
*/}}
{{- define "gpuledger.init" -}}
{{- if not (hasKey . "v") -}}
{{- $v := include "gpuledger.values" . | fromJson -}}
{{- $_ := set . "v" $v -}}
{{- $process := index $v "gpu-process-exporter" "enabled" -}}
{{- $session := index $v "gpu-session-monitoring" "enabled" -}}
{{- $default := ternary "none" "daemonset" $v.operator.enabled -}}
{{- $mode := default (ternary "cronjob" $default (or $process $session)) $v.mode -}}
{{- $_ = set . "requestedMode" $mode -}}
{{- $_ = set . "simulated" (or (hasPrefix "simulator" $v.source) (hasPrefix "replay:" $v.source)) -}}
{{- $_ = set . "nodes" (list) -}}
{{- if eq $mode "cronjob" -}}
{{- $_ = set . "nodes" (include "gpuledger.nodes" . | fromJsonArray) -}}
{{/* helm template and Argo CD have no API server that lists nodes. One pod per GPU node then takes a DaemonSet. */}}
{{- $unknown := and (empty .nodes) (not (int $v.cronjob.nodeCount)) -}}
{{- $many := gt (len .nodes) (int $v.cronjob.maxNodes) -}}
{{- $_ = set . "jobs" (not $many) -}}
{{- if or $many $unknown -}}
{{- $mode = "collect" -}}
{{- end -}}
{{- end -}}
{{- $_ = set . "mode" $mode -}}
{{- $suspended := or $v.cronjob.suspend (eq $mode "collect") -}}
{{- $_ = set . "component" (ternary "exporter" "collector" (has $mode (list "daemonset" "none"))) -}}
{{- $writers := list -}}
{{- if or $process (not $session) -}}
{{- $writers = append $writers (dict "name" "gpu-process-metrics-collector" "suspended" $suspended) -}}
{{- end -}}
{{- if $session -}}
{{- $writers = append $writers (dict "name" "gpu-session-metrics-collector" "suspended" (or $suspended (not (empty $writers)))) -}}
{{- end -}}
{{- $_ = set . "writers" $writers -}}
{{- include "gpuledger.checks" . -}}
{{- end -}}
{{- end -}}

{{/* Names of the GPU nodes as a JSON list, from the values or else from the API server. */}}
{{- define "gpuledger.nodes" -}}
{{- $v := .v -}}
{{- $names := $v.cronjob.nodes -}}
{{- if and (empty $names) (empty $v.affinity) -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- if include "gpuledger.selectsNode" (dict "root" $ "labels" $labels) -}}
{{- $names = append $names (default .metadata.name (get $labels "kubernetes.io/hostname")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- sortAlpha ($names | uniq) | toJson -}}
{{- end -}}
