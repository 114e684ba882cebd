{{/*
Every template calls this first. It adds to the root:
  v              the values; those of an older chart (helm upgrade --reuse-values) are merged over this chart's defaults
  requestedMode  daemonset, cronjob, collect or none: the mode that the values request
  mode           the mode that the chart renders: collect instead of cronjob on too many nodes
  component      exporter or collector
  nodes          cronjob: names of the known GPU nodes
  writers        cronjob and collect: list of (dict name suspended); the first one writes
  simulated      true if the source needs no GPU
*/}}
{{- define "gpuledger.init" -}}
{{- if not (hasKey . "v") -}}
{{- $v := .Values -}}
{{- if ne (toString .Values.valuesVersion) .Chart.Version -}}
{{- $v = mustMergeOverwrite (.Files.Get "files/defaults.yaml" | fromYaml) (deepCopy .Values) -}}
{{- end -}}
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
{{- if gt (len .nodes) (int $v.cronjob.maxNodes) -}}
{{- $mode = "collect" -}}
{{- end -}}
{{- end -}}
{{- $_ = set . "mode" $mode -}}
{{- $_ = set . "component" (ternary "exporter" "collector" (has $mode (list "daemonset" "none"))) -}}
{{- $writers := list -}}
{{- if or $process (not $session) -}}
{{- $writers = append $writers (dict "name" "gpu-process-metrics-collector" "suspended" $v.cronjob.suspend) -}}
{{- end -}}
{{- if $session -}}
{{- $writers = append $writers (dict "name" "gpu-session-metrics-collector" "suspended" (or $v.cronjob.suspend (not (empty $writers)))) -}}
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
{{- $selected := true -}}
{{- if $v.nodeSelector -}}
{{- range $key, $value := $v.nodeSelector -}}
{{- if ne (toString (get $labels $key)) $value -}}{{- $selected = false -}}{{- end -}}
{{- end -}}
{{- else if not $.simulated -}}
{{- $selected = or (eq (toString (get $labels "nvidia.com/gpu.present")) "true") (eq (toString (get $labels "nvidia.com/gpu")) "true") (hasKey $labels "accelerator") -}}
{{- end -}}
{{- if $selected -}}
{{- $names = append $names (default .metadata.name (get $labels "kubernetes.io/hostname")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- sortAlpha $names | toJson -}}
{{- end -}}
