{{/*
The values that templates read, as JSON: a key that is null is empty, or its default if it cannot be empty (files/unset.yaml).
Values of an older chart (helm upgrade --reuse-values) are merged over this chart's defaults.
*/}}
{{- define "gpuledger.values" -}}
{{- $given := deepCopy .Values -}}
{{- include "gpuledger.dropNulls" $given -}}
{{- $base := ternary "unset" "defaults" (eq (toString .Values.valuesVersion) .Chart.Version) -}}
{{- mustMergeOverwrite (.Files.Get (printf "files/%s.yaml" $base) | fromYaml) $given | toJson -}}
{{- end -}}

{{/* Removes keys with null from a mapping or a list, in place. */}}
{{- define "gpuledger.dropNulls" -}}
{{- $in := . -}}
{{- range $key, $value := $in -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- include "gpuledger.dropNulls" $value -}}
{{- else if and (kindIs "invalid" $value) (kindIs "map" $in) -}}
{{- $_ := unset $in $key -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Rejects amounts that Kubernetes accepts or refuses without the reason: no pod starts with 128 bytes of memory. Devices (names with
a domain) would be unavailable to workloads.
*/}}
{{- define "gpuledger.checkResources" -}}
{{- $all := dict "resources" .v.resources "collection.resources" .v.collection.resources -}}
{{- $all = merge $all (dict "agent.resources" .v.agent.resources "operator.resources" .v.operator.resources) -}}
{{- range $value, $resources := $all -}}
{{- range $part, $amounts := $resources -}}
{{- range $name, $amount := $amounts -}}
{{- if and (contains "/" $name) (ne (toString $amount) "0") -}}
{{- fail (printf "%s.%s: %s would make a device unavailable to workloads; gpuledger sees every GPU without requesting one: remove it" $value $part $name) -}}
{{- end -}}
{{- include "gpuledger.checkAmount" (dict "at" (printf "%s.%s.%s" $value $part $name) "name" $name "amount" $amount) -}}
{{- end -}}
{{- end -}}
{{- range $name, $limit := $resources.limits -}}
{{- $request := get (default dict $resources.requests) $name -}}
{{- if and (hasKey (default dict $resources.requests) $name) (gt (include "gpuledger.amount" $request | float64) (include "gpuledger.amount" $limit | float64)) -}}
{{- fail (printf "%s: the request of %v %s is above the limit of %v, which the API server refuses; set %s.limits.%s to at least the request" $value $request $name $limit $value $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "gpuledger.checkAmount" (dict "at" "agent.persistence.size" "name" "storage" "amount" .v.agent.persistence.size) -}}
{{- end -}}

{{/* Rejects an amount that is none, or that lacks its unit: (dict "at" path "name" resource "amount" value). */}}
{{- define "gpuledger.checkAmount" -}}
{{- $number := include "gpuledger.amount" .amount -}}
{{- $digits := regexFind "^[0-9]+" (toString .amount) -}}
{{- if not $number -}}
{{- fail (printf "%s: '%v' is not a quantity; write one such as %s, or null for none" .at .amount (ternary "100m" "128Mi" (eq .name "cpu"))) -}}
{{- end -}}
{{- if and (eq .name "cpu") (gt (float64 $number) 8.0) -}}
{{- fail (printf "%s: %v is %s cores, and gpuledger uses less than one; write %sm for thousandths of a core" .at .amount $number $digits) -}}
{{- end -}}
{{- if and (eq .name "memory") (gt (float64 $number) 34359738368.0) -}}
{{- fail (printf "%s: %v is more than 32Gi, and gpuledger uses less than 1Gi, so no node may have room for the pod; write a smaller unit, such as %sMi" .at .amount $digits) -}}
{{- end -}}
{{- if and (has .name (list "memory" "storage" "ephemeral-storage")) (lt (float64 $number) 4194304.0) -}}
{{- fail (printf "%s: %v is %s bytes, less than 4Mi, with which no container starts; write a unit, such as %sMi" .at .amount $number $digits) -}}
{{- end -}}
{{- end -}}

{{/* The number of a quantity in Kubernetes' notation; empty if it is none. */}}
{{- define "gpuledger.amount" -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- range $power, $unit := list "" "Ki" "Mi" "Gi" "Ti" "Pi" "Ei" -}}
{{- $factor := 1.0 -}}
{{- range until $power -}}{{- $factor = mulf $factor 1024 -}}{{- end -}}
{{- $_ := set $units $unit $factor -}}
{{- end -}}
{{- $text := toString . -}}
{{- if regexMatch "^([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+]?[0-9]{1,2})?$" $text -}}
{{- $unit := regexFind "[a-zA-Z].*$" $text -}}
{{- if hasKey $units $unit -}}
{{- mulf (trimSuffix $unit $text | float64) (get $units $unit) -}}
{{- else -}}
{{- float64 $text -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A mapping as YAML, without its empty entries. */}}
{{- define "gpuledger.filled" -}}
{{- $made := dict -}}
{{- range $key, $value := . -}}
{{- if $value -}}{{- $_ := set $made $key $value -}}{{- end -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}
