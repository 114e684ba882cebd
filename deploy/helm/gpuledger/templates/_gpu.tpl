{{/* How a container accesses the driver. Nothing here requests a GPU, which would make it unavailable to workloads. */}}

{{- define "gpuledger.onHost" -}}
{{- if and (eq .v.gpuAccess.mode "host") (not .simulated) -}}true{{- end -}}
{{- end -}}

{{/* Whether NVIDIA's driver is read, alone or beside another source. */}}
{{- define "gpuledger.readsNvidia" -}}
{{- if not (or .simulated (eq .v.source "drm")) -}}true{{- end -}}
{{- end -}}

{{- define "gpuledger.gpuEnv" -}}
{{- $mode := .v.gpuAccess.mode -}}
{{- if include "gpuledger.readsNvidia" . }}
{{- if eq $mode "env" }}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
{{- else if eq $mode "volume-list" }}
- {name: NVIDIA_VISIBLE_DEVICES, value: /var/run/nvidia-container-devices}
{{- else if eq $mode "cdi" }}
- {name: NVIDIA_VISIBLE_DEVICES, value: {{ .v.gpuAccess.cdiDevice | quote }}}
{{- end }}
{{- if ne $mode "host" }}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- else }}
- {name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpuledger.gpuMounts" -}}
{{- if not (include "gpuledger.readsNvidia" .) }}
{{- else if eq .v.gpuAccess.mode "volume-list" }}
- {name: gpus, mountPath: /var/run/nvidia-container-devices/all, readOnly: true}
{{- else if include "gpuledger.onHost" . }}
{{- if .v.gpuAccess.host.driverDir }}
- {name: driver, mountPath: /usr/local/nvidia, readOnly: true}
{{- else }}
- {name: driver-library, mountPath: /usr/local/nvidia/lib64/libnvidia-ml.so.1, readOnly: true}
{{- if include "gpuledger.needsSmi" . }}
- {name: nvidia-smi, mountPath: /usr/local/nvidia/bin/nvidia-smi, readOnly: true}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpuledger.gpuVolumes" -}}
{{- if not (include "gpuledger.readsNvidia" .) }}
{{- else if eq .v.gpuAccess.mode "volume-list" }}
- {name: gpus, hostPath: {path: /dev/null}}
{{- else if include "gpuledger.onHost" . }}
{{- with .v.gpuAccess.host.driverDir }}
- {name: driver, hostPath: {path: {{ . | quote }}, type: Directory}}
{{- else }}
- {name: driver-library, hostPath: {path: {{ .v.gpuAccess.host.library | quote }}, type: File}}
{{- if include "gpuledger.needsSmi" . }}
- {name: nvidia-smi, hostPath: {path: {{ .v.gpuAccess.host.smi | quote }}, type: File}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpuledger.needsSmi" -}}
{{- if or .v.accounting.enable (include "gpuledger.runsSmi" .) -}}true{{- end -}}
{{- end -}}

{{/* Whether nvidia-smi is read, alone or beside another source. */}}
{{- define "gpuledger.runsSmi" -}}
{{- if has "smi" (splitList "+" .v.source) -}}true{{- end -}}
{{- end -}}

{{- define "gpuledger.runtimeClass" -}}
{{- if .v.runtimeClassName -}}
{{- .v.runtimeClassName -}}
{{- else if and .v.followGpuOperator.enabled (not (include "gpuledger.onHost" .)) -}}
nvidia
{{- end -}}
{{- end -}}

{{/* securityContext of the container: (dict "root" $ "capabilities" list). */}}
{{- define "gpuledger.securityContext" -}}
{{- $root := .root -}}
{{- $add := .capabilities -}}
{{- if and $root.v.sysAdmin (not (has "SYS_ADMIN" $add)) -}}
{{- $add = append $add "SYS_ADMIN" -}}
{{- end -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- with $add -}}
{{- $_ := set $capabilities "add" . -}}
{{- end -}}
{{- $made := dict "runAsUser" 0 "readOnlyRootFilesystem" true "allowPrivilegeEscalation" false "privileged" false "capabilities" $capabilities -}}
{{- if include "gpuledger.onHost" $root -}}
{{- $_ := set $made "privileged" true -}}
{{- end -}}
{{- $made = mustMergeOverwrite $made (deepCopy $root.v.securityContext) -}}
{{- if $made.privileged -}}
{{- $_ := set $made "allowPrivilegeEscalation" true -}}
{{- $_ := unset $made "capabilities" -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}
