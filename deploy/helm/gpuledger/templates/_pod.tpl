{{/* Parts that the pods of all modes share: (dict "root" $ "name" workload). */}}

{{- define "gpuledger.podMeta" -}}
{{- $root := .root -}}
{{- $labels := include "gpuledger.labels" (dict "root" $root "name" .name "component" $root.component) -}}
{{- with .jobPrefix -}}
{{- $labels = printf "%s\njob-name-prefix: %s" $labels . -}}
{{- end -}}
labels:
  {{- include "gpuledger.withEntries" (dict "own" $labels "more" $root.v.podLabels) | nindent 2 }}
annotations:
  {{- $restart := printf "gpuledger/restart-on: %s" (include "gpuledger.checksum" $root) }}
  {{- include "gpuledger.withEntries" (dict "own" $restart "more" $root.v.podAnnotations) | nindent 2 }}
{{- end -}}

{{- define "gpuledger.podSpec" -}}
{{- $v := .v -}}
serviceAccountName: {{ include "gpuledger.serviceAccount" . | toYaml }}
automountServiceAccountToken: {{ has $v.kubernetes.names (list "auto" "api") }}
{{- if $v.hostPID }}
hostPID: true
{{- end }}
{{- if $v.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with include "gpuledger.runtimeClass" . }}
runtimeClassName: {{ toYaml . }}
{{- end }}
{{- if $v.priorityClass.create }}
priorityClassName: {{ include "gpuledger.fullname" . }}
{{- else if $v.priorityClassName }}
priorityClassName: {{ toYaml $v.priorityClassName }}
{{- end }}
{{- with $v.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- $secure := dict "seccompProfile" (dict "type" "RuntimeDefault") }}
  {{- if $v.openshift.enabled }}
  {{- $_ := set $secure "seLinuxOptions" (dict "type" "spc_t") }}
  {{- end }}
  {{- toYaml (mustMergeOverwrite $secure (deepCopy $v.podSecurityContext)) | nindent 2 }}
{{- with include "gpuledger.nodeSelector" . }}
nodeSelector:
  {{- . | nindent 2 }}
{{- end }}
{{- $tolerations := $v.tolerations }}
{{- if eq .mode "cronjob" }}
{{- /* As pods of a DaemonSet: a cordoned node, of which work goes on, must not keep an old file. */}}
{{- $cordoned := dict "key" "node.kubernetes.io/unschedulable" "operator" "Exists" "effect" "NoSchedule" }}
{{- $tolerations = append (default list $tolerations) $cordoned }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "gpuledger.initContainers" . }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpuledger.nodeSelector" -}}
{{- $selector := deepCopy .v.nodeSelector -}}
{{- if .v.followGpuOperator.enabled -}}
{{- $_ := set $selector .v.followGpuOperator.deployLabel "true" -}}
{{- end -}}
{{- with $selector -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* Labels of nodes with an NVIDIA GPU, and their value; none: any value. The operator has the same: operator/render/exporter.py. */}}
{{- define "gpuledger.gpuNodeLabels" -}}
{{/* GPU feature discovery, and manually set ones. */ -}}
- {key: nvidia.com/gpu.present, values: ["true"]}
- {key: nvidia.com/gpu, values: ["true"]}
- {key: accelerator}
{{/* NFD: PCI devices of NVIDIA, by its default labels of class and vendor, and by those of the GPU Operator. */ -}}
- {key: feature.node.kubernetes.io/pci-10de.present, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-0300_10de.present, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-0302_10de.present, values: ["true"]}
- {key: cloud.google.com/gke-accelerator}
- {key: k8s.amazonaws.com/accelerator}
- {key: eks.amazonaws.com/instance-gpu-manufacturer, values: [nvidia]}
- {key: karpenter.k8s.aws/instance-gpu-manufacturer, values: [nvidia]}
- {key: kubernetes.azure.com/accelerator, values: [nvidia]}
{{- end -}}

{{/* true if pods may run on a node with these labels, by nodeSelector or else as a GPU node: (dict "root" $ "labels" labels). */}}
{{- define "gpuledger.selectsNode" -}}
{{- $labels := .labels -}}
{{- $found := or (not (empty .root.v.nodeSelector)) .root.simulated -}}
{{- if not (or .root.v.nodeSelector .root.simulated) -}}
{{- range include "gpuledger.gpuNodeLabels" .root | fromYamlArray -}}
{{- if and (hasKey $labels .key) (has (get $labels .key) (default (list (get $labels .key)) .values)) -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := include "gpuledger.nodeSelector" .root | fromYaml -}}
{{- if ne (toString (get $labels $key)) $value -}}{{- $found = false -}}{{- end -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- end -}}

{{/* Affinity for the nodes with a GPU: any of the labels in common use. */}}
{{- define "gpuledger.affinity" -}}
{{- if .v.affinity -}}
{{- toYaml .v.affinity -}}
{{- else if not (or .v.nodeSelector .simulated) -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range include "gpuledger.gpuNodeLabels" . | fromYamlArray }}
      - matchExpressions: [{{ merge (dict "operator" (ternary "In" "Exists" (hasKey . "values"))) . | toJson }}]
      {{- end }}
{{- end -}}
{{- end -}}

{{- define "gpuledger.initContainers" -}}
{{- $v := .v -}}
{{- if $v.followGpuOperator.enabled }}
- name: wait-for-gpu-operator
  image: {{ include "gpuledger.image" . | toYaml }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command: [sh, -c]
  args:
    - until [ -f /run/nvidia/validations/toolkit-ready ]; do echo "waiting for the GPU Operator to validate driver and toolkit"; sleep 5; done
  env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: void}
  securityContext:
    runAsUser: 0
    privileged: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  resources: {requests: {cpu: 5m, memory: 8Mi}, limits: {memory: 32Mi}}
  volumeMounts:
    - {name: validations, mountPath: /run/nvidia/validations, readOnly: true, mountPropagation: HostToContainer}
{{- end }}
{{- if and $v.accounting.enable (include "gpuledger.readsNvidia" .) }}
- name: enable-accounting
  image: {{ include "gpuledger.image" . | toYaml }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command: [sh, -c]
  args:
    - PATH="/usr/local/nvidia/bin:$PATH"; nvidia-smi -am 1 || echo "could not enable accounting mode on every GPU (see above); the exporter starts without it"
  env:
    {{- include "gpuledger.gpuEnv" . | trim | nindent 4 }}
  # The driver requires SYS_ADMIN to enable accounting mode.
  securityContext:
    runAsUser: 0
    readOnlyRootFilesystem: true
    {{- if include "gpuledger.onHost" . }}
    privileged: true
    {{- else }}
    privileged: false
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL], add: [SYS_ADMIN]}
    {{- end }}
  resources: {requests: {cpu: 5m, memory: 32Mi}, limits: {memory: 256Mi}}
  {{- with include "gpuledger.gpuMounts" . | trim }}
  volumeMounts:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Environment of the agent and of the operator: (dict "more" extraEnv). The container runtime must not give the container a GPU. */}}
{{- define "gpuledger.clusterEnvironment" -}}
{{- $own := list "- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}" -}}
{{- $own = append $own "- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}" -}}
{{- $own = append $own "- {name: NVIDIA_VISIBLE_DEVICES, value: void}" -}}
{{- include "gpuledger.environment" (dict "own" (join "\n" $own) "more" .more) -}}
{{- end -}}

{{/* A list of variables (YAML) with more, which replace those of the same name: (dict "own" text "more" list). */}}
{{- define "gpuledger.environment" -}}
{{- $names := list -}}
{{- range .more -}}{{- $names = append $names .name -}}{{- end -}}
{{- range fromYamlArray .own }}
{{- if not (has .name $names) }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- with .more }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The container without its name, arguments, ports, probes and resources. */}}
{{- define "gpuledger.container" -}}
{{- $v := .v -}}
image: {{ include "gpuledger.image" . | toYaml }}
imagePullPolicy: {{ $v.image.pullPolicy }}
{{- if $v.command }}
command:
  {{- toYaml $v.command | nindent 2 }}
{{- else if $v.image.variant }}
# Overrides the entrypoint of this tag, which includes arguments.
command: [gpuledger]
{{- end }}
env:
  {{- $node := "- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}" }}
  {{- $own := printf "%s\n%s" $node (include "gpuledger.gpuEnv" . | trim) | trim }}
  {{- include "gpuledger.environment" (dict "own" $own "more" $v.extraEnv) | trim | nindent 2 }}
{{- end -}}

{{- define "gpuledger.mounts" -}}
{{- $v := .v -}}
- {name: config, mountPath: /etc/gpuledger/config, readOnly: true}
- {name: run, mountPath: /run/gpuledger}
- {name: tmp, mountPath: /tmp}
{{- if include "gpuledger.keepsBooks" . }}
- {name: state, mountPath: /var/lib/gpuledger}
{{- end }}
{{- if ne .mode "daemonset" }}
- {name: textfile, mountPath: {{ include "gpuledger.textfileDir" . | quote }}}
{{- end }}
{{- if not .simulated }}
- {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
- {name: device-plugins, mountPath: /var/lib/kubelet/device-plugins, readOnly: true}
{{- if has $v.kubernetes.names (list "auto" "logs") }}
- {name: pod-logs, mountPath: /var/log/pods, readOnly: true}
- {name: container-logs, mountPath: /var/log/containers, readOnly: true}
{{- end }}
{{- if $v.host.passwdFile }}
- {name: passwd, mountPath: /etc/gpuledger/passwd, readOnly: true}
{{- end }}
{{- end }}
{{- if and (eq .mode "daemonset") (include "gpuledger.webConfigSecret" .) }}
- {name: web-config, mountPath: /etc/gpuledger/web, readOnly: true}
{{- end }}
{{- if and (eq .mode "daemonset") $v.web.tlsSecret }}
- {name: tls, mountPath: /etc/gpuledger/tls, readOnly: true}
{{- end }}
{{- include "gpuledger.gpuMounts" . }}
{{- with $v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuledger.volumes" -}}
{{- $v := .v -}}
- {name: config, configMap: {name: {{ include "gpuledger.fullname" . }}}}
- {name: run, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
- {name: tmp, emptyDir: {sizeLimit: 256Mi}}
{{- if include "gpuledger.keepsBooks" . }}
# One directory per writer: a collector may run on the same node as an exporter.
- {name: state, hostPath: {path: {{ printf "%s%s" $v.state.dir (ternary "" "/collector" (eq .mode "daemonset")) | quote }}, type: DirectoryOrCreate}}
{{- end }}
{{- if ne .mode "daemonset" }}
- {name: textfile, hostPath: {path: {{ include "gpuledger.textfileDir" . | quote }}, type: DirectoryOrCreate}}
{{- end }}
{{- if not .simulated }}
# Directories, not sockets and files: a restarted kubelet creates new ones.
- {name: pod-resources, hostPath: {path: {{ printf "%s/pod-resources" $v.kubelet.dir | quote }}}}
- {name: device-plugins, hostPath: {path: {{ printf "%s/device-plugins" $v.kubelet.dir | quote }}}}
{{- if has $v.kubernetes.names (list "auto" "logs") }}
- {name: pod-logs, hostPath: {path: {{ printf "%s/pods" $v.kubelet.podLogs | quote }}}}
- {name: container-logs, hostPath: {path: {{ printf "%s/containers" $v.kubelet.podLogs | quote }}}}
{{- end }}
{{- with $v.host.passwdFile }}
- {name: passwd, hostPath: {path: {{ . | quote }}, type: File}}
{{- end }}
{{- end }}
{{- if eq .mode "daemonset" }}
{{- with include "gpuledger.webConfigSecret" . }}
- {name: web-config, secret: {secretName: {{ quote . }}}}
{{- end }}
{{- with $v.web.tlsSecret }}
- {name: tls, secret: {secretName: {{ quote . }}}}
{{- end }}
{{- end }}
{{- if $v.followGpuOperator.enabled }}
- {name: validations, hostPath: {path: {{ $v.followGpuOperator.validationsDir | quote }}}}
{{- end }}
{{- include "gpuledger.gpuVolumes" . }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuledger.keepsBooks" -}}
{{- if and .v.state.dir (ne .mode "cronjob") (not .simulated) -}}true{{- end -}}
{{- end -}}
