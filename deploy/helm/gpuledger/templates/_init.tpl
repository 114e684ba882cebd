{{/*
What every template begins with. It puts into the root:
  v          the values; beneath those of an older chart (helm upgrade --reuse-values) lie this chart's defaults
  mode       daemonset, cronjob, collect or none: what is really made
  component  exporter or collector
  nodes      cronjob: names of the GPU nodes, as far as they are known
  writers    cronjob and collect: (dict name suspended), the one that writes first
  made_up    whether the source needs no GPU
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
{{- $usual := ternary "none" "daemonset" $v.operator.enabled -}}
{{- $mode := default (ternary "cronjob" $usual (or $process $session)) $v.mode -}}
{{- $_ = set . "asked" $mode -}}
{{- $_ = set . "made_up" (or (hasPrefix "simulator" $v.source) (hasPrefix "replay:" $v.source)) -}}
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

{{/* Names of the GPU nodes as a JSON list: those of the values, else those that the API server has. */}}
{{- define "gpuledger.nodes" -}}
{{- $v := .v -}}
{{- $names := $v.cronjob.nodes -}}
{{- if and (empty $names) (empty $v.affinity) -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $labels := default dict .metadata.labels -}}
{{- $wanted := true -}}
{{- if $v.nodeSelector -}}
{{- range $key, $value := $v.nodeSelector -}}
{{- if ne (toString (get $labels $key)) $value -}}{{- $wanted = false -}}{{- end -}}
{{- end -}}
{{- else if not $.made_up -}}
{{- $wanted = or (eq (toString (get $labels "nvidia.com/gpu.present")) "true") (eq (toString (get $labels "nvidia.com/gpu")) "true") (hasKey $labels "accelerator") -}}
{{- end -}}
{{- if $wanted -}}
{{- $names = append $names (default .metadata.name (get $labels "kubernetes.io/hostname")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- sortAlpha $names | toJson -}}
{{- end -}}
