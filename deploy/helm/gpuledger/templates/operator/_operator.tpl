{{/* The operator's own names, and where a WhatapAgent's objects go. All read .v: see gpuledger.init. */}}

{{- define "gpuledger.operatorName" -}}
{{- printf "%s-operator" (include "gpuledger.fullname" .) -}}
{{- end -}}

{{- define "gpuledger.operatorLabels" -}}
{{ include "gpuledger.labels" (dict "root" . "name" (include "gpuledger.operatorName" .) "component" "operator") }}
{{- end -}}

{{/* Namespaces in which the operator makes objects, as a YAML list. */}}
{{- define "gpuledger.operatorNamespaces" -}}
{{- $found := list .Release.Namespace -}}
{{- if .v.whatapCompat.enabled -}}
{{- $found = append $found .v.whatapCompat.namespace -}}
{{- end -}}
{{- $found | uniq | toYaml -}}
{{- end -}}

{{/* What rendering knows besides the resources: see gpuledger/operator/facts.py. */}}
{{- define "gpuledger.operatorConfig" -}}
{{- $name := include "gpuledger.fullname" . -}}
namespace: {{ toYaml .Release.Namespace }}
whatapNamespace: {{ toYaml .v.whatapCompat.namespace }}
# The program, whichever tag this chart's own pods have.
image: {{ include "gpuledger.image" . | trimSuffix (printf "-%s" .v.image.variant | trimSuffix "-") | toYaml }}
imagePullPolicy: {{ .v.image.pullPolicy }}
{{- with .v.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
prometheusImage: {{ toYaml .v.operator.prometheusImage }}
exporterRole: {{ $name }}
agentRole: {{ $name }}-agent
agentOwnRole: {{ $name }}-agent-own
{{- if .v.openshift.enabled }}
sccRole: {{ $name }}-scc
{{- end }}
{{- with .v.operator.defaultRemoteWrite }}
defaultRemoteWrite:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .v.operator.externalLabels }}
externalLabels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Whose an object is that is in the cluster already: (dict "root" $ "found" object): own, gone, or who. */}}
{{- define "gpuledger.owner" -}}
{{- if not .found -}}
gone
{{- else -}}
{{- $notes := default dict .found.metadata.annotations -}}
{{- $release := get $notes "meta.helm.sh/release-name" -}}
{{- $namespace := get $notes "meta.helm.sh/release-namespace" -}}
{{- if and (eq (toString $release) .root.Release.Name) (eq (toString $namespace) .root.Release.Namespace) -}}
own
{{- else if $release -}}
release {{ $release }} in namespace {{ $namespace }}
{{- else -}}
somebody
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where the operator's pods run, and as whom. */}}
{{- define "gpuledger.operatorPod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  seccompProfile: {type: RuntimeDefault}
{{- with .v.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .v.operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
