{{/* What cannot be, said in one line that names the value and the remedy. What a schema can say stands in values.yaml. */}}
{{- define "gpuledger.checks" -}}
{{- $v := .v -}}
{{- if and $v.agent.enabled (not $v.agent.config.remote_write) -}}
{{- fail "agent.enabled: nobody is named to deliver to; set agent.config.remote_write to a list with at least one url" -}}
{{- end -}}
{{- if and $v.whatapCompat.enabled (not $v.operator.enabled) -}}
{{- fail "whatapCompat.enabled: it is the operator that reads WhatapAgent; set operator.enabled to true as well" -}}
{{- end -}}
{{- if not (has .asked (list "daemonset" "none")) -}}
{{- include "gpuledger.checkSchedule" . -}}
{{- end -}}
{{- if and (eq .mode "cronjob") $v.dialect (without $v.dialect "process" "session") -}}
{{- fail (printf "dialect: a CronJob tells process and session alone, since the counters and books of %s need a program that keeps running; set mode to collect or daemonset" (join ", " (without $v.dialect "process" "session"))) -}}
{{- end -}}
{{- if and (ne .asked "daemonset") (or $v.serviceMonitor.enabled $v.podMonitor.enabled) -}}
{{- fail (printf "serviceMonitor, podMonitor: in mode %s nothing is served, node_exporter is scraped in its place; set both to false, or mode to daemonset" .asked) -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled, podMonitor.enabled: both would scrape every pod twice; set one to false" -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled (not $v.service.enabled) -}}
{{- fail "serviceMonitor.enabled needs service.enabled; set podMonitor.enabled in its place" -}}
{{- end -}}
{{- if and $v.web.config $v.web.existingSecret -}}
{{- fail "web.config, web.existingSecret: both hold the web config file; set one" -}}
{{- end -}}
{{- if and $v.web.existingSecret (not $v.web.scheme) -}}
{{- fail "web.existingSecret: the chart cannot read it; say in web.scheme whether it turns TLS on (https) or not (http)" -}}
{{- end -}}
{{- if and $v.priorityClass.create $v.priorityClassName -}}
{{- fail "priorityClass.create, priorityClassName: set one" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" (include "gpuledger.fullname" .)) -}}
{{- fail (printf "fullnameOverride: the name of a Service begins with a letter, and that of this release, %s, does not; set one that does" (include "gpuledger.fullname" .)) -}}
{{- end -}}
{{- include "gpuledger.checkResources" . -}}
{{- include "gpuledger.checkPorts" . -}}
{{- include "gpuledger.checkLabels" . -}}
{{- include "gpuledger.checkConfig" . -}}
{{- end -}}

{{/* A GPU, or another device with a domain in its name, would be taken from the pods that compute with it. */}}
{{- define "gpuledger.checkResources" -}}
{{- $every := dict "resources" .v.resources "collection.resources" .v.collection.resources -}}
{{- $every = merge $every (dict "agent.resources" .v.agent.resources "operator.resources" .v.operator.resources) -}}
{{- range $value, $said := $every -}}
{{- range $part, $amounts := $said -}}
{{- range $name, $amount := $amounts -}}
{{- if and (contains "/" $name) (ne (toString $amount) "0") -}}
{{- fail (printf "%s.%s: %s would take a device from the pods that compute with it; every GPU is seen without asking for one: leave it out" $value $part $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A workload whose selector does not match its own pods is refused by the API server. */}}
{{- define "gpuledger.checkLabels" -}}
{{- $own := list "app" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "job-name-prefix" -}}
{{- range $value, $labels := dict "podLabels" .v.podLabels "commonLabels" .v.commonLabels -}}
{{- range $label, $_ := $labels -}}
{{- if has $label $own -}}
{{- fail (printf "%s: by %s the chart's objects find their pods; choose another name" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.checkSchedule" -}}
{{- $schedule := .v.collection.schedule | trim -}}
{{- if hasPrefix "@every" $schedule -}}
{{- fail (printf "collection.schedule: '%s': Kubernetes starts no Job more often than once a minute; for seconds set mode to daemonset, or to collect with textfile.every" $schedule) -}}
{{- end -}}
{{- if not (hasPrefix "@" $schedule) -}}
{{- $fields := len (regexFindAll "\\S+" $schedule -1) -}}
{{- if gt $fields 5 -}}
{{- fail (printf "collection.schedule: '%s' has %d fields; cron in Kubernetes has five, and no seconds; for seconds set mode to daemonset, or to collect with textfile.every" $schedule $fields) -}}
{{- else if lt $fields 5 -}}
{{- fail (printf "collection.schedule: '%s' has %d fields; five are wanted: minute hour day month weekday" $schedule $fields) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.checkPorts" -}}
{{- $taken := dict (include "gpuledger.port" .) "port" -}}
{{- $names := dict "metrics" true -}}
{{- range .v.extraPorts -}}
{{- $number := toString (int .port) -}}
{{- if hasKey $taken $number -}}
{{- fail (printf "extraPorts: %s has port %s, which is %s's already" .name $number (get $taken $number)) -}}
{{- end -}}
{{- if hasKey $names .name -}}
{{- fail (printf "extraPorts: two ports are called %s" .name) -}}
{{- end -}}
{{- $_ := set $taken $number .name -}}
{{- $_ = set $names .name true -}}
{{- end -}}
{{- end -}}

{{/* Flags beat the file, so what the chart says by flags must not stand there in vain. */}}
{{- define "gpuledger.checkConfig" -}}
{{- $owned := include "gpuledger.owned" . | fromYaml -}}
{{- range $key, $_ := include "gpuledger.flatConfig" . | fromYaml -}}
{{- if hasKey $owned $key -}}
{{- fail (printf "config: %s is said by the value %s; set that one" $key (get $owned $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
