"""The DaemonSet on GPU nodes, and what belongs to it: what the chart's own DaemonSet is and does."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from gpuledger.operator.render.exporter_pod import (
    CONFIG,
    CSV_FILE,
    CSV_KEY,
    CSV_NAME,
    WEB_CONFIG,
    collectors_csv,
    exporter_mounts,
    gpu_env,
    init_containers,
    init_volumes,
    security,
)
from gpuledger.operator.render.names import Manifest, Naming
from gpuledger.operator.render.pods import (
    environment,
    field,
    image_of,
    plain,
    pod,
    probes,
    template,
    variable,
)
from gpuledger.operator.render.program import program_config, restarting, written
from gpuledger.operator.spec import Exporter

GPU_NODES: Final[Manifest] = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
                    ]
                },
                {"matchExpressions": [{"key": "nvidia.com/gpu", "operator": "In", "values": ["true"]}]},
                {"matchExpressions": [{"key": "accelerator", "operator": "Exists"}]},
            ]
        }
    }
}
_TOLERATIONS: Final = ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)
_RESOURCES: Final = {"requests": {"cpu": "25m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def affinity_of(exporter: Exporter) -> Manifest:
    """As was said, else to nodes that have a GPU, by any of the labels in use."""
    if exporter.pods.affinity:
        return dict(plain(exporter.pods.affinity))
    return {} if exporter.pods.node_selector or exporter.made_up else GPU_NODES


def node_selector_of(exporter: Exporter) -> Manifest:
    """As was said, and where the GPU Operator wants such containers."""
    follow = exporter.gpu_operator
    return {**exporter.pods.node_selector, **({follow.deploy_label: "true"} if follow.enabled else {})}


def exporter_config(naming: Naming) -> list[Manifest]:
    """The ConfigMap of the program; none for a WhatapAgent, whose settings are in variables."""
    exporter = naming.monitor.exporter
    if naming.whatap:
        return [csv_config(naming)] if exporter.collectors else []
    data = {"gpuledger.yaml": written(program_config(exporter))}
    if exporter.collectors:
        data["collectors.csv"] = exporter.collectors
    return [naming.object("v1", "ConfigMap", naming.names.exporter, "exporter", data=data)]


def csv_config(naming: Naming) -> Manifest:
    """The ConfigMap with the collectors file, by the name that its manual gives it."""
    text = naming.monitor.exporter.collectors or collectors_csv()
    return naming.object("v1", "ConfigMap", CSV_NAME, "exporter", data={CSV_KEY: text})


def exporter_service(naming: Naming) -> list[Manifest]:
    """The Service in front of the pods."""
    exporter = naming.monitor.exporter
    service = exporter.service
    if service is None:
        return []
    metrics: Manifest = {
        "name": "metrics",
        "port": service.port or exporter.port,
        "targetPort": "metrics",
        "protocol": "TCP",
    }
    if service.node_port and service.type != "ClusterIP":
        metrics["nodePort"] = service.node_port
    more = [
        {"name": one.name, "port": one.port, "targetPort": one.name, "protocol": "TCP"}
        for one in exporter.extra_ports
    ]
    spec = {"type": service.type, "ports": [metrics, *more], "selector": naming.selector("exporter")}
    return [naming.object("v1", "Service", naming.names.exporter_service, "exporter", spec=spec)]


def daemon_set(naming: Naming) -> Manifest:
    """The DaemonSet."""
    exporter, facts = naming.monitor.exporter, naming.facts
    mounts = exporter_mounts(naming)
    container: Manifest = {
        "name": naming.names.exporter_container,
        **image_of(exporter.pods, facts),
        **({} if naming.whatap else {"args": _args(exporter)}),
        "env": environment([*_own_env(naming), *gpu_env(exporter)], exporter.pods.env),
        "ports": _ports(exporter),
        # dcgm-exporter, which a WhatapAgent may name as image, knows no other path.
        **(probes("/health", "/health") if naming.whatap else probes(kind=_probing(exporter))),
        "resources": plain(exporter.pods.resources) or _RESOURCES,
        "securityContext": _security(naming),
        "volumeMounts": [mount for mount, _ in mounts],
    }
    spec: Manifest = {
        "serviceAccountName": naming.names.exporter_account,
        "automountServiceAccountToken": exporter.pod_names in ("auto", "api"),
        **({"hostPID": True} if exporter.host_pid else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if exporter.host_network else {}),
        **({"runtimeClassName": runtime} if (runtime := _runtime_class(exporter)) else {}),
        "securityContext": _pod_security(naming),
        **pod(naming.monitor, facts, exporter.pods),
        **({"nodeSelector": selector} if (selector := node_selector_of(exporter)) else {}),
        **({"affinity": affinity} if (affinity := affinity_of(exporter)) else {}),
        **({"tolerations": [*_TOLERATIONS]} if exporter.pods.tolerations is None else {}),
        **({"initContainers": inits} if (inits := init_containers(exporter, facts)) else {}),
        "containers": [container],
        "volumes": [volume for _, volume in [*mounts, *init_volumes(exporter)]],
    }
    restarts = _fingerprint(restarting(exporter, facts.exporter_restarts))
    notes = {} if naming.whatap else {"gpuledger/restart-on": restarts}
    strategy: Manifest = {"type": exporter.update_strategy}
    if exporter.update_strategy == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": exporter.max_unavailable}
    return naming.object(
        "apps/v1",
        "DaemonSet",
        naming.names.exporter,
        "exporter",
        spec={
            "selector": {"matchLabels": naming.selector("exporter")},
            "updateStrategy": strategy,
            "template": template(naming.labels("exporter"), exporter.pods, notes, spec),
        },
    )


def _runtime_class(exporter: Exporter) -> str:
    follows = exporter.gpu_operator.enabled and not exporter.on_host
    return exporter.runtime_class or ("nvidia" if follows else "")


def _probing(exporter: Exporter) -> str:
    web = exporter.web_config
    if web is None:
        return "http"
    return "tcp" if web.probe == "tcp" else web.scheme


def _ports(exporter: Exporter) -> list[Manifest]:
    ports = [("metrics", exporter.port), *((one.name, one.port) for one in exporter.extra_ports)]
    return [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in ports]


def _own_env(naming: Naming) -> list[Manifest]:
    node = field("NODE_NAME", "spec.nodeName")
    if not naming.whatap:
        return [node]
    exporter = naming.monitor.exporter
    return [
        variable("DCGM_EXPORTER_LISTEN", f":{exporter.port}"),
        variable("DCGM_EXPORTER_KUBERNETES", "true"),
        variable("DCGM_EXPORTER_COLLECTORS", CSV_FILE),
        node,
        variable("GPULEDGER_WEB_PAGE", exporter.web_page),
        variable("GPULEDGER_STATE_DIR", "/var/lib/gpuledger"),
        variable("GPULEDGER_PASSWD_FILE", "/dev/null"),
    ]


def _args(exporter: Exporter) -> list[str]:
    found = ["serve", f"--config={CONFIG}/gpuledger.yaml"]
    if exporter.source != "auto":
        found.append(f"--source={exporter.source}")
    if exporter.gpu_count:
        found.append(f"--gpu-count={exporter.gpu_count}")
    if exporter.devices:
        found.append(f"--devices={','.join(exporter.devices)}")
    named = exporter.passwd_file and not exporter.made_up
    found.append(f"--passwd-file={'/etc/gpuledger/passwd' if named else '/dev/null'}")
    found.append(f"--state-dir={'/var/lib/gpuledger' if exporter.keeps_books else 'none'}")
    found.append(f"--listen-address=:{exporter.port}")
    found += [f"--listen-address=:{one.port}={','.join(one.dialects)}" for one in exporter.extra_ports]
    if exporter.metrics_path != "/metrics":
        found.append(f"--metrics-path={exporter.metrics_path}")
    if exporter.web_config is not None:
        found.append(f"--web.config.file={WEB_CONFIG}/{exporter.web_config.key}")
    return [*found, *exporter.pods.args]


def _security(naming: Naming) -> Manifest:
    exporter = naming.monitor.exporter
    made = security(exporter)
    if naming.whatap and exporter.pods.image:
        # Another's program: what it writes and drops is its own affair.
        made = {"runAsUser": 0, "runAsNonRoot": False}
        return {**made, "capabilities": {"add": ["SYS_ADMIN"]}} if exporter.sys_admin else made
    return made


def _pod_security(naming: Naming) -> Manifest:
    made: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    # OpenShift: the kubelet's socket and other pods' processes are out of a usual container's reach.
    return {**made, "seLinuxOptions": {"type": "spc_t"}} if naming.facts.scc_role else made


def _fingerprint(value: Any) -> str:
    return sha256(written(value).encode()).hexdigest()
