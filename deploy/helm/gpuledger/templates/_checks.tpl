{{/* Fails on invalid combinations of values, with one line that names the value and the remedy. values.yaml has the schema's checks. */}}
{{- define "gpuledger.checks" -}}
{{- $v := .v -}}
{{- if and $v.agent.enabled (not $v.agent.config.remote_write) -}}
{{- fail "agent.enabled: the agent has no receiver; set agent.config.remote_write to a list with at least one url" -}}
{{- end -}}
{{- if and $v.whatapCompat.enabled (not $v.operator.enabled) -}}
{{- fail "whatapCompat.enabled: only the operator reads WhatapAgent; set operator.enabled to true too" -}}
{{- end -}}
{{- if not (has .requestedMode (list "daemonset" "none")) -}}
{{- include "gpuledger.checkSchedule" . -}}
{{- end -}}
{{- if and .jobs $v.dialect (without $v.dialect "process" "session") -}}
{{- fail (printf "dialect: a CronJob supports only process and session, because the counters of %s need a program that keeps running; set mode to collect or daemonset" (join ", " (without $v.dialect "process" "session"))) -}}
{{- end -}}
{{/* With the agent or the operator, their own metrics are scraped. */}}
{{- if and (ne .requestedMode "daemonset") (or $v.serviceMonitor.enabled $v.podMonitor.enabled) (not (or $v.agent.enabled $v.operator.enabled)) -}}
{{- fail (printf "serviceMonitor.enabled, podMonitor.enabled: mode %s serves no metrics; set both to false and scrape node_exporter instead, or set mode to daemonset" .requestedMode) -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled, podMonitor.enabled: together they would scrape every pod twice; set one to false" -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled (not $v.service.enabled) (eq .requestedMode "daemonset") -}}
{{- fail "serviceMonitor.enabled: a ServiceMonitor needs service.enabled; set it to true, or set podMonitor.enabled instead" -}}
{{- end -}}
{{- if and $v.kubernetes.events (ne .mode "daemonset") -}}
{{- fail (printf "kubernetes.events: mode %s posts no Events; set it to false, or set mode to daemonset" .mode) -}}
{{- end -}}
{{- if and $v.kubernetes.events (not (include "gpuledger.keepsBooks" .)) -}}
{{- fail "kubernetes.events: receipts are read from a ledger on disk; set state.dir" -}}
{{- end -}}
{{- if and $v.kubernetes.events (not (has $v.kubernetes.names (list "auto" "api"))) -}}
{{- fail (printf "kubernetes.events: only the API server says when a pod has ended; set kubernetes.names to auto or api, not %s" $v.kubernetes.names) -}}
{{- end -}}
{{- include "gpuledger.checkSurge" . -}}
{{- include "gpuledger.checkTimeouts" . -}}
{{- include "gpuledger.checkRelabelings" . -}}
{{- include "gpuledger.checkEvery" . -}}
{{- if regexMatch "(^|/)(dcgm-exporter|nvidia_gpu_exporter|busybox|prometheus|cuda)$" $v.image.repository -}}
{{- fail (printf "image.repository: %s is the image of another program, which does not know the flags of gpuledger; remove it, or set the repository of your copy of gpuledger" $v.image.repository) -}}
{{- end -}}
{{- if or (contains "://" $v.image.registry) (regexMatch "@|:[^/]*$|://" $v.image.repository) -}}
{{- fail (printf "image: '%s' is no image reference, so no pod would start; set image.registry and image.repository without a scheme, and the version as image.tag or image.digest" (include "gpuledger.image" .)) -}}
{{- end -}}
{{- if and $v.web.config $v.web.existingSecret -}}
{{- fail "web.config, web.existingSecret: both contain the web config file; set only one" -}}
{{- end -}}
{{- if and $v.web.existingSecret (not $v.web.scheme) -}}
{{- fail "web.existingSecret: the chart cannot read the Secret; set web.scheme to https if it enables TLS, otherwise to http" -}}
{{- end -}}
{{- if and $v.priorityClass.create $v.priorityClassName -}}
{{- fail "priorityClass.create, priorityClassName: a pod has one PriorityClass; set only one of them" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" (include "gpuledger.fullname" .)) -}}
{{- fail (printf "fullnameOverride: the name of a Service must begin with a letter, but the release gives %s; set a fullnameOverride that does" (include "gpuledger.fullname" .)) -}}
{{- end -}}
{{- include "gpuledger.checkResources" . -}}
{{- include "gpuledger.checkPorts" . -}}
{{- include "gpuledger.checkLabels" . -}}
{{- include "gpuledger.checkConfig" . -}}
{{- end -}}

{{/* Rejects labels that override the selectors': the API server refuses a workload if its selector does not match its pods. */}}
{{- define "gpuledger.checkLabels" -}}
{{- $own := list "app" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "job-name-prefix" -}}
{{- range $value, $labels := dict "podLabels" .v.podLabels "commonLabels" .v.commonLabels "service.labels" (ternary .v.service.labels dict .v.serviceMonitor.enabled) -}}
{{- range $label, $_ := $labels -}}
{{- if has $label $own -}}
{{- fail (printf "%s: the chart's selectors use the label %s; choose another name" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects a rollout that never ends: the old pod of a node is deleted when the new one is ready, which needs its ledger or ports. */}}
{{- define "gpuledger.checkSurge" -}}
{{- $surge := toString (default 0 (get (default dict .v.updateStrategy.rollingUpdate) "maxSurge")) -}}
{{- if and (ne .mode "none") (not (has $surge (list "0" "0%"))) (or (include "gpuledger.keepsBooks" .) (and .v.hostNetwork (eq .mode "daemonset"))) -}}
{{- $shared := ternary "ledger (state.dir)" "ports (hostNetwork)" (not (empty (include "gpuledger.keepsBooks" .))) -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge: a node's new pod cannot start while the old one has its %s, so the rollout would never end; remove it" $shared) -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.checkSchedule" -}}
{{- $schedule := .v.collection.schedule | trim -}}
{{- if hasPrefix "@every" $schedule -}}
{{- fail (printf "collection.schedule: '%s': a Kubernetes CronJob runs at most once per minute; for shorter intervals set mode to daemonset, or to collect with textfile.every" $schedule) -}}
{{- end -}}
{{- if not (hasPrefix "@" $schedule) -}}
{{- $fields := len (regexFindAll "\\S+" $schedule -1) -}}
{{- if gt $fields 5 -}}
{{- fail (printf "collection.schedule: '%s' has %d fields; a Kubernetes schedule has five and no seconds; for intervals below a minute set mode to daemonset, or to collect with textfile.every" $schedule $fields) -}}
{{- else if lt $fields 5 -}}
{{- fail (printf "collection.schedule: '%s' has %d fields; expected five: minute hour day month weekday" $schedule $fields) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects what Prometheus Operator ignores with only a line in its log. An empty interval is that of the Prometheus. */}}
{{- define "gpuledger.checkTimeouts" -}}
{{- range $key := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $.v $key -}}
{{- $interval := default "0s" $monitor.interval -}}
{{- $timeout := default "0s" $monitor.scrapeTimeout -}}
{{- if and $monitor.enabled $monitor.interval (gt (int (include "gpuledger.milliseconds" $timeout)) (int (include "gpuledger.milliseconds" $interval))) -}}
{{- fail (printf "%s.scrapeTimeout: %s is longer than the interval of %s, so Prometheus Operator would ignore the monitor; set it to %s or less" $key $timeout $interval $interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects rules because of which Prometheus Operator ignores the whole monitor. */}}
{{- define "gpuledger.checkRelabelings" -}}
{{- range $key := list "serviceMonitor" "podMonitor" -}}
{{- range $list := list "relabelings" "metricRelabelings" -}}
{{- range $number, $rule := ternary (get (get $.v $key) $list) list (get $.v $key).enabled -}}
{{- $action := default "replace" $rule.action | lower -}}
{{- $wrong := "" -}}
{{- if and (has $action (list "replace" "hashmod" "lowercase" "uppercase" "keepequal" "dropequal")) (not $rule.targetLabel) -}}
{{- $wrong = printf "the action %s needs a targetLabel" $action -}}
{{- else if and (eq $action "hashmod") (not $rule.modulus) -}}
{{- $wrong = "the action hashmod needs a modulus" -}}
{{- else if and $rule.regex (not (regexMatch (printf "%s|" $rule.regex) "")) -}}
{{- $wrong = printf "the regex '%s' is not a valid RE2 expression" $rule.regex -}}
{{- else if and (has $action (list "labeldrop" "labelkeep")) (omit $rule "action" "regex") -}}
{{- $wrong = printf "the action %s takes only a regex" $action -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "%s.%s[%d]: %s, so Prometheus Operator would ignore the monitor; correct or remove the rule" $key $list $number $wrong) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects a file that would be written more often than the program reads: gpuledger would not start. */}}
{{- define "gpuledger.checkEvery" -}}
{{- $interval := toString (default "1s" (get (include "gpuledger.flatConfig" . | fromYaml) "interval")) -}}
{{- $every := .v.textfile.every -}}
{{- if and (eq .mode "collect") (lt (int (include "gpuledger.milliseconds" $every)) (int (include "gpuledger.milliseconds" $interval))) -}}
{{- fail (printf "textfile.every: %s is shorter than the interval of readings (%s), so the same readings would be written again; set it to that or more, or set config.interval" $every $interval) -}}
{{- end -}}
{{- end -}}

{{/* A duration such as 1m30s or 0.5s in milliseconds; without a unit, seconds. */}}
{{- define "gpuledger.milliseconds" -}}
{{- $sum := 0.0 -}}
{{- $text := toString . -}}
{{- range $part := regexFindAll "[0-9.]+(ms|s|m|h)" (ternary (printf "%ss" $text) $text (regexMatch "^[0-9.]+$" $text)) -1 -}}
{{- $unit := regexFind "[a-z]+" $part -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit $part | float64) (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) $unit)) -}}
{{- end -}}
{{- int64 (round $sum 0) -}}
{{- end -}}

{{- define "gpuledger.checkPorts" -}}
{{- $taken := dict (include "gpuledger.port" .) "port" -}}
{{- $names := dict "metrics" true -}}
{{- range .v.extraPorts -}}
{{- $number := toString (int .port) -}}
{{- if hasKey $taken $number -}}
{{- fail (printf "extraPorts: %s has port %s, which %s already uses; choose another port" .name $number (get $taken $number)) -}}
{{- end -}}
{{- if hasKey $names .name -}}
{{- fail (printf "extraPorts: two ports have the name %s; rename one" .name) -}}
{{- end -}}
{{- $_ := set $taken $number .name -}}
{{- $_ = set $names .name true -}}
{{- end -}}
{{- end -}}

{{/* Rejects settings in config that the chart sets by flags: flags override the file, so they would have no effect. */}}
{{- define "gpuledger.checkConfig" -}}
{{- $owned := include "gpuledger.owned" . | fromYaml -}}
{{- range $key, $_ := include "gpuledger.flatConfig" . | fromYaml -}}
{{- if hasKey $owned $key -}}
{{- fail (printf "config: the chart sets %s from the value %s; set that value instead" $key (get $owned $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
