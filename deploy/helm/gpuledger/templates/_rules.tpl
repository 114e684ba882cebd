{{/* What Prometheus gets: which rules and dashboards match the dialects that are scraped. */}}

{{/* The dialects that are scraped, comma-separated; empty for a collector's default, process or session. An operator's exporters have
     native, unless a GpuMonitor says otherwise. */}}
{{- define "gpuledger.scrapedDialects" -}}
{{- $found := list -}}
{{- if eq .mode "none" -}}
{{- $found = list "native" -}}
{{- else -}}
{{- $dialect := get (include "gpuledger.config" . | fromYaml) "dialect" -}}
{{- $found = ternary $dialect (splitList "," (toString (default "" $dialect))) (kindIs "slice" $dialect) -}}
{{- if eq .mode "daemonset" -}}
{{- range .v.extraPorts -}}
{{- if ne (toString .scrape) "false" -}}
{{- $found = concat $found .dialects -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join "," (compact $found | uniq) -}}
{{- end -}}

{{- define "gpuledger.hasNative" -}}
{{- if has "native" (splitList "," (include "gpuledger.scrapedDialects" .)) -}}true{{- end -}}
{{- end -}}

{{/* One series for each GPU of a target, of the families that are scraped; empty if none of them has each GPU. */}}
{{- define "gpuledger.countedDevices" -}}
{{- $dialects := splitList "," (include "gpuledger.scrapedDialects" .) -}}
{{- if has "native" $dialects -}}
count by (cluster, job, instance, uuid) (gpuledger_device_info{mig_instance=""})
{{- else if or (has "process" $dialects) (has "session" $dialects) (has "" $dialects) -}}
{{/* The label gpu of a MIG instance begins with the index of its GPU. */ -}}
count by (cluster, job, instance, index) (label_replace({__name__=~"gpu_(process|session)_count"}, "index", "$1", "gpu", "([0-9]+).*"))
{{- end -}}
{{- end -}}

{{/* The groups of rules that can be evaluated with what is scraped, as a YAML list. */}}
{{- define "gpuledger.ruleGroups" -}}
{{- $groups := list -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yml" -}}
{{- range ($.Files.Get $path | fromYaml).groups -}}
{{- if eq (include "gpuledger.ruleGroupNeeds" (dict "root" $ "group" .name)) "" -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- if not (has (default "" .alert) $.v.rules.disabled) -}}
{{- $rules = append $rules . -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (set . "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{/* What a group of rules needs and these values do not have; empty if nothing is missing: (dict "root" $ "group" name). */}}
{{- define "gpuledger.ruleGroupNeeds" -}}
{{- $v := .root.v -}}
{{- if eq .group "gpuledger-agent" -}}
{{- if not (or $v.agent.enabled $v.operator.enabled) -}}agent.enabled{{- end -}}
{{- else if eq .group "gpuledger-operator" -}}
{{- if not $v.operator.enabled -}}operator.enabled{{- end -}}
{{- else if and (eq .group "gpuledger-activity") (not (index $v "gpu-session-monitoring" "enabled")) -}}
gpu-session-monitoring.enabled
{{- else if not (include "gpuledger.hasNative" .root) -}}
the dialect native
{{- end -}}
{{- end -}}

{{/* The names in rules.disabled that no alert has, comma-separated. */}}
{{- define "gpuledger.unknownAlerts" -}}
{{- $known := list "GPUCountUnexpected" -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yml" -}}
{{- range ($.Files.Get $path | fromYaml).groups -}}
{{- range .rules -}}
{{- with .alert -}}{{- $known = append $known . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $unknown := list -}}
{{- range .v.rules.disabled -}}
{{- if not (has . $known) -}}{{- $unknown = append $unknown . -}}{{- end -}}
{{- end -}}
{{- join ", " $unknown -}}
{{- end -}}

{{/* Names of the alerts that need the dialect native, which is not scraped; empty if it is. */}}
{{- define "gpuledger.omittedAlerts" -}}
{{- if not (include "gpuledger.hasNative" .) -}}
{{- $names := list -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yml" -}}
{{- range ($.Files.Get $path | fromYaml).groups -}}
{{- if eq (include "gpuledger.ruleGroupNeeds" (dict "root" $ "group" .name)) "the dialect native" -}}
{{- range .rules -}}
{{- with .alert -}}{{- $names = append $names . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (int .v.gpu.count) (not (include "gpuledger.countedDevices" .)) -}}
{{- $names = append $names "GPUCountUnexpected" -}}
{{- end -}}
{{- join ", " (sortAlpha $names) -}}
{{- end -}}
{{- end -}}
