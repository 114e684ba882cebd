#!/usr/bin/env bash
# Install gpuledger on the cluster of the current kubectl context, or remove it: `deploy.sh --help`.
set -euo pipefail

HELM=${HELM:-helm}
KUBECTL=${KUBECTL:-kubectl}
EXPORTER_NAMESPACE=${EXPORTER_NAMESPACE:-gpu-monitoring}
COLLECTOR_NAMESPACE=${COLLECTOR_NAMESPACE:-gpu-operator}
CHART=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/helm/gpuledger
EXPORTER=gpuledger
# One release for both collectors, so that only one of them writes.
COLLECTOR=gpu-collector

usage() {
  cat <<END
usage: $(basename "$0") sync [COMPONENT] [-- HELM FLAGS]       install or upgrade
       $(basename "$0") destroy [COMPONENT]                    uninstall; the ledger remains on the nodes

components:
  exporter                a DaemonSet that serves metrics        (namespace $EXPORTER_NAMESPACE)
  gpu-process-exporter    a CronJob for node_exporter: processes (namespace $COLLECTOR_NAMESPACE)
  gpu-session-monitoring  a CronJob for node_exporter: sessions  (namespace $COLLECTOR_NAMESPACE)
Without a component, sync installs exporter and gpu-process-exporter, and destroy uninstalls all components.

environment: EXPORTER_NAMESPACE, COLLECTOR_NAMESPACE; HELM and KUBECTL (paths of the programs)

examples:
  $(basename "$0") sync
  $(basename "$0") sync exporter -- --set serviceMonitor.enabled=true
  $(basename "$0") destroy gpu-process-exporter
END
}

fail() {
  echo "$(basename "$0"): $1" >&2
  exit "${2:-1}"
}

require_program() { # PROGRAM URL VARIABLE
  command -v "$1" >/dev/null || fail "$1 is not installed, or not in PATH; install it from $2, or set $3=/path/to/$1"
}

# Creates a namespace that admits host PIDs and host paths; leaves an existing one unchanged.
ensure_namespace() {
  "$KUBECTL" get namespace "$1" >/dev/null 2>&1 && return
  "$KUBECTL" create namespace "$1"
  "$KUBECTL" label namespace "$1" pod-security.kubernetes.io/enforce=privileged
}

is_installed() { # RELEASE NAMESPACE
  "$HELM" get values "$1" --namespace "$2" >/dev/null 2>&1
}

is_collector_enabled() { # COMPONENT
  "$HELM" get values "$COLLECTOR" --namespace "$COLLECTOR_NAMESPACE" --output yaml 2>/dev/null \
    | grep -A1 "^$1:" | grep -q "enabled: true"
}

sync_exporter() {
  ensure_namespace "$EXPORTER_NAMESPACE"
  "$HELM" upgrade "$EXPORTER" "$CHART" --install --namespace "$EXPORTER_NAMESPACE" --reuse-values "$@"
}

sync_collector() { # COMPONENT [FLAGS]
  local component=$1
  shift
  ensure_namespace "$COLLECTOR_NAMESPACE"
  "$HELM" upgrade "$COLLECTOR" "$CHART" --install --namespace "$COLLECTOR_NAMESPACE" --reuse-values \
    --set "$component.enabled=true" "$@"
}

uninstall_release() { # RELEASE NAMESPACE
  if is_installed "$1" "$2"; then
    "$HELM" uninstall "$1" --namespace "$2"
  else
    echo "$1 is not installed in namespace $2"
  fi
}

destroy_collector() { # COMPONENT OTHER_COMPONENT
  if ! is_collector_enabled "$1"; then
    echo "$1 is not installed in namespace $COLLECTOR_NAMESPACE"
  elif is_collector_enabled "$2"; then
    "$HELM" upgrade "$COLLECTOR" "$CHART" --namespace "$COLLECTOR_NAMESPACE" --reuse-values --set "$1.enabled=false"
  else
    uninstall_collectors
  fi
}

uninstall_collectors() {
  uninstall_release "$COLLECTOR" "$COLLECTOR_NAMESPACE"
  cat <<'END'
The CronJob's last file remains on the nodes, and node_exporter keeps exporting it. To delete it:
  kubectl get nodes -o name | xargs -I@ kubectl debug @ --image=busybox -- sh -c \
    'rm -f /host/var/lib/node_exporter/textfile_collector/gpu_processes.prom /host/var/lib/node_exporter/textfile_collector/gpu_sessions.prom'
END
}

print_remaining_files() {
  cat <<'END'
The ledger remains in /var/lib/gpuledger on the nodes. To delete it:
  kubectl get nodes -o name | xargs -I@ kubectl debug @ --image=busybox -- rm -rf /host/var/lib/gpuledger
END
}

sync() {
  local component=$1
  shift
  case $component in
    '')
      sync_exporter "$@"
      sync_collector gpu-process-exporter "$@"
      ;;
    exporter | gpuledger) sync_exporter "$@" ;;
    gpu-process-exporter | gpu-session-monitoring) sync_collector "$component" "$@" ;;
  esac
}

destroy() {
  case $1 in
    '')
      uninstall_collectors
      uninstall_release "$EXPORTER" "$EXPORTER_NAMESPACE"
      print_remaining_files
      ;;
    exporter | gpuledger)
      uninstall_release "$EXPORTER" "$EXPORTER_NAMESPACE"
      print_remaining_files
      ;;
    gpu-process-exporter) destroy_collector "$1" gpu-session-monitoring ;;
    gpu-session-monitoring) destroy_collector "$1" gpu-process-exporter ;;
  esac
}

main() {
  case ${1:-} in
    -h | --help | help)
      usage
      return
      ;;
    sync | destroy) ;;
    '') fail "missing command: expected sync or destroy; see --help" 2 ;;
    *) fail "unknown command '$1': expected sync or destroy; see --help" 2 ;;
  esac
  local command=$1 component=''
  shift
  # Flags after -- belong to helm.
  local word
  for word in "$@"; do
    case $word in
      --) break ;;
      -h | --help)
        usage
        return
        ;;
    esac
  done
  if [[ ${1:-} && $1 != -* ]]; then
    component=$1
    shift
  fi
  case $component in
    '' | exporter | gpuledger | gpu-process-exporter | gpu-session-monitoring) ;;
    *) fail "unknown component '$component': expected exporter, gpu-process-exporter or gpu-session-monitoring" 2 ;;
  esac
  if [[ $# -gt 0 && $1 != -- ]]; then
    fail "unexpected argument '$1': put flags for helm after --; see --help" 2
  fi
  [[ $# -eq 0 ]] || shift
  if [[ $command == destroy && $# -gt 0 ]]; then
    fail "destroy takes no flags" 2
  fi
  require_program "$HELM" https://helm.sh/docs/intro/install HELM
  require_program "$KUBECTL" https://kubernetes.io/docs/tasks/tools KUBECTL
  "$command" "$component" "$@"
}

main "$@"
