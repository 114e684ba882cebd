#!/usr/bin/env bash
# Install gpuledger on the cluster that kubectl talks to, or take it away: `deploy.sh --help`.
set -euo pipefail

HELM=${HELM:-helm}
KUBECTL=${KUBECTL:-kubectl}
EXPORTER_NAMESPACE=${EXPORTER_NAMESPACE:-gpu-monitoring}
COLLECTOR_NAMESPACE=${COLLECTOR_NAMESPACE:-gpu-operator}
CHART=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/helm/gpuledger
EXPORTER=gpuledger
# One release for both collectors, so that one of them writes and never two.
COLLECTOR=gpu-collector

usage() {
  cat <<END
usage: $(basename "$0") sync [COMPONENT] [-- HELM FLAGS]       install, or bring up to date
       $(basename "$0") destroy [COMPONENT]                    take away; the books on the nodes stay

components:
  exporter                a DaemonSet that serves metrics        (namespace $EXPORTER_NAMESPACE)
  gpu-process-exporter    a CronJob for node_exporter: processes (namespace $COLLECTOR_NAMESPACE)
  gpu-session-monitoring  a CronJob for node_exporter: sessions  (namespace $COLLECTOR_NAMESPACE)
Without a component: sync installs exporter and gpu-process-exporter, destroy takes all away.

environment: EXPORTER_NAMESPACE, COLLECTOR_NAMESPACE, HELM and KUBECTL (the programs to run)

  $(basename "$0") sync
  $(basename "$0") sync exporter -- --set serviceMonitor.enabled=true
  $(basename "$0") destroy gpu-process-exporter
END
}

fail() {
  echo "$(basename "$0"): $1" >&2
  exit "${2:-1}"
}

need() {
  command -v "$1" >/dev/null || fail "$1 is not installed, or not in PATH; get it from $2, or name it: $3=/path/to/$1"
}

# The namespace must admit host pids and host paths; one that is there is its owner's.
make_namespace() {
  "$KUBECTL" get namespace "$1" >/dev/null 2>&1 && return
  "$KUBECTL" create namespace "$1"
  "$KUBECTL" label namespace "$1" pod-security.kubernetes.io/enforce=privileged
}

installed() { # RELEASE NAMESPACE
  "$HELM" get values "$1" --namespace "$2" >/dev/null 2>&1
}

collects() { # COMPONENT
  "$HELM" get values "$COLLECTOR" --namespace "$COLLECTOR_NAMESPACE" --output yaml 2>/dev/null \
    | grep -A1 "^$1:" | grep -q "enabled: true"
}

sync_exporter() {
  make_namespace "$EXPORTER_NAMESPACE"
  "$HELM" upgrade "$EXPORTER" "$CHART" --install --namespace "$EXPORTER_NAMESPACE" --reuse-values "$@"
}

sync_collector() { # COMPONENT [FLAGS]
  local component=$1
  shift
  make_namespace "$COLLECTOR_NAMESPACE"
  "$HELM" upgrade "$COLLECTOR" "$CHART" --install --namespace "$COLLECTOR_NAMESPACE" --reuse-values \
    --set "$component.enabled=true" "$@"
}

remove() { # RELEASE NAMESPACE
  if installed "$1" "$2"; then
    "$HELM" uninstall "$1" --namespace "$2"
  else
    echo "$1 is not installed in namespace $2"
  fi
}

destroy_collector() { # COMPONENT THE-OTHER
  if ! collects "$1"; then
    echo "$1 is not installed in namespace $COLLECTOR_NAMESPACE"
  elif collects "$2"; then
    "$HELM" upgrade "$COLLECTOR" "$CHART" --namespace "$COLLECTOR_NAMESPACE" --reuse-values --set "$1.enabled=false"
  else
    remove_collector
  fi
}

remove_collector() {
  remove "$COLLECTOR" "$COLLECTOR_NAMESPACE"
  cat <<'END'
A CronJob leaves its last file on the nodes, which node_exporter goes on telling. This deletes it:
  kubectl get nodes -o name | xargs -I@ kubectl debug @ --image=busybox -- sh -c \
    'rm -f /host/var/lib/node_exporter/textfile_collector/gpu_processes.prom /host/var/lib/node_exporter/textfile_collector/gpu_sessions.prom'
END
}

say_what_stays() {
  cat <<'END'
The books stay in /var/lib/gpuledger on the nodes. This deletes them:
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
      remove_collector
      remove "$EXPORTER" "$EXPORTER_NAMESPACE"
      say_what_stays
      ;;
    exporter | gpuledger)
      remove "$EXPORTER" "$EXPORTER_NAMESPACE"
      say_what_stays
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
    '') fail "a command is wanted: sync or destroy; see --help" 2 ;;
    *) fail "unknown command '$1': sync or destroy is wanted; see --help" 2 ;;
  esac
  local command=$1 component=''
  shift
  # Not of helm's flags, behind --.
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
    *) fail "unknown component '$component': exporter, gpu-process-exporter or gpu-session-monitoring is wanted" 2 ;;
  esac
  if [[ $# -gt 0 && $1 != -- ]]; then
    fail "what is '$1'? Flags for helm stand after --; see --help" 2
  fi
  [[ $# -eq 0 ]] || shift
  if [[ $command == destroy && $# -gt 0 ]]; then
    fail "destroy takes no flags" 2
  fi
  need "$HELM" https://helm.sh/docs/intro/install HELM
  need "$KUBECTL" https://kubernetes.io/docs/tasks/tools KUBECTL
  "$command" "$component" "$@"
}

main "$@"
