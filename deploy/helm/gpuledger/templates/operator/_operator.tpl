{{/* Names, namespaces and configuration of the operator. All read .v: see gpuledger.init. */}}

{{- define "gpuledger.operatorName" -}}
{{- printf "%s-operator" (include "gpuledger.fullname" .) -}}
{{- end -}}

{{- define "gpuledger.operatorLabels" -}}
{{ include "gpuledger.labels" (dict "root" . "name" (include "gpuledger.operatorName" .) "component" "operator") }}
{{- end -}}

{{/* Deletes the CEL rules of a CRD's spec, in place. */}}
{{- define "gpuledger.unsetCelRules" -}}
{{- $_ := unset . "x-kubernetes-validations" -}}
{{- range $below := values . -}}
{{- range $item := ternary $below (list $below) (kindIs "slice" $below) -}}
{{- if kindIs "map" $item -}}{{- include "gpuledger.unsetCelRules" $item -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Namespaces in which the operator creates objects, as a YAML list. */}}
{{- define "gpuledger.operatorNamespaces" -}}
{{- $found := list .Release.Namespace -}}
{{- if .v.whatapCompat.enabled -}}
{{- $found = append $found .v.whatapCompat.namespace -}}
{{- end -}}
{{- $found | uniq | toYaml -}}
{{- end -}}

{{/* The operator's configuration file: see RenderContext in gpuledger/operator/render_context.py. */}}
{{- define "gpuledger.operatorConfig" -}}
{{- $name := include "gpuledger.fullname" . -}}
namespace: {{ toYaml .Release.Namespace }}
whatapNamespace: {{ toYaml .v.whatapCompat.namespace }}
# The image without the variant of this chart's own pods.
image: {{ include "gpuledger.image" . | trimSuffix (printf "-%s" .v.image.variant | trimSuffix "-") | toYaml }}
imagePullPolicy: {{ .v.image.pullPolicy }}
{{- with .v.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
prometheusImage: {{ toYaml .v.operator.prometheusImage }}
exporterRole: {{ $name }}
agentRole: {{ include "gpuledger.agentName" . }}
agentOwnRole: {{ include "gpuledger.agentName" . }}-own
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

{{/* Owner of an existing object, (dict "root" $ "found" object): own (this release), gone (no object), or a description. */}}
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
unknown owner
{{- end -}}
{{- end -}}
{{- end -}}

{{/* User, node selector and tolerations of the operator's pods. */}}
{{- define "gpuledger.operatorPod" -}}
securityContext:
  runAsNonRoot: true
  {{- if not .v.openshift.enabled }}
  runAsUser: 65534
  runAsGroup: 65534
  {{- end }}
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
