{{/* Names and labels. All read .v, the merged values: see gpuledger.init. */}}

{{- define "gpuledger.name" -}}
{{- default .Chart.Name .v.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuledger.fullname" -}}
{{/* A release's name may have dots, but not that of a Service. */ -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if .v.fullnameOverride -}}
{{- .v.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "gpuledger.name" .) $release -}}
{{- $release | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release (include "gpuledger.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes appends a hash to the name of a StatefulSet in a label of its pods; values of labels have at most 63 characters. */}}
{{- define "gpuledger.agentName" -}}
{{- printf "%s-agent" (include "gpuledger.fullname" . | trunc 46 | trimSuffix "-") -}}
{{- end -}}

{{- define "gpuledger.serviceAccount" -}}
{{- if .v.serviceAccount.create -}}
{{- default (include "gpuledger.fullname" .) .v.serviceAccount.name -}}
{{- else -}}
{{- default "default" .v.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Selector labels of a workload's pods: (dict "root" $ "name" name "component" component). */}}
{{- define "gpuledger.selector" -}}
app: {{ .name }}
app.kubernetes.io/name: {{ include "gpuledger.name" .root }}
app.kubernetes.io/instance: {{ toYaml .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object; same argument as gpuledger.selector. */}}
{{- define "gpuledger.labels" -}}
{{- include "gpuledger.withEntries" (dict "own" (include "gpuledger.chartLabels" .) "more" .root.v.commonLabels) -}}
{{- end -}}

{{- define "gpuledger.chartLabels" -}}
{{ include "gpuledger.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
A mapping (YAML) with more entries, which replace those of the same key: (dict "own" text "more" dict). Some programs, such as
kustomize and Flux, refuse a mapping that has a key twice.
*/}}
{{- define "gpuledger.withEntries" -}}
{{- $own := fromYaml .own -}}
{{- $both := mustMergeOverwrite (deepCopy $own) (deepCopy .more) -}}
{{- if eq (len $both) (add (len $own) (len .more) | int) -}}
{{ .own }}
{{- with .more }}
{{ toYaml . }}
{{- end }}
{{- else -}}
{{ toYaml $both }}
{{- end -}}
{{- end -}}

{{/* Labels of objects that do not belong to a named workload. */}}
{{- define "gpuledger.ownLabels" -}}
{{ include "gpuledger.labels" (dict "root" . "name" (include "gpuledger.fullname" .) "component" .component) }}
{{- end -}}

{{- define "gpuledger.image" -}}
{{- $image := .v.image -}}
{{- with default .v.offline.registry $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $image.repository }}
{{- if $image.digest -}}
@{{ $image.digest }}
{{- else -}}
:{{ default .Chart.AppVersion $image.tag }}{{ with $image.variant }}-{{ . }}{{ end }}
{{- end -}}
{{- end -}}
