"""Renders the exporter's pods and DaemonSet, equivalent to those of the chart, with ConfigMap and Service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpuledger.operator.render.exporter_pod import (
    CONFIG,
    CSV_FILE,
    CSV_KEY,
    CSV_NAME,
    WEB_CONFIG,
    collectors_csv,
    exporter_mounts,
    exporter_security,
    gpu_env,
    init_containers,
    init_volumes,
)
from gpuledger.operator.render.naming import Manifest, Naming
from gpuledger.operator.render.pods import (
    container_port,
    field_variable,
    image_of,
    merge_environment,
    pod_placement,
    pod_template,
    probes,
    service_port,
    to_plain,
    variable,
)
from gpuledger.operator.render.program import program_config, restart_annotation, restart_settings, to_yaml
from gpuledger.operator.spec import ExporterSpec

# The labels and values that the chart has in templates/_pod.tpl; without values, any value counts.
GPU_NODE_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "nvidia.com/gpu.present": ("true",),
    "nvidia.com/gpu": ("true",),
    "accelerator": (),
    "feature.node.kubernetes.io/pci-10de.present": ("true",),
    "feature.node.kubernetes.io/pci-0300_10de.present": ("true",),
    "feature.node.kubernetes.io/pci-0302_10de.present": ("true",),
    "cloud.google.com/gke-accelerator": (),
    "k8s.amazonaws.com/accelerator": (),
    "eks.amazonaws.com/instance-gpu-manufacturer": ("nvidia",),
    "karpenter.k8s.aws/instance-gpu-manufacturer": ("nvidia",),
    "kubernetes.azure.com/accelerator": ("nvidia",),
}


def _expression(label: str, values: tuple[str, ...]) -> Manifest:
    stated = {"operator": "In", "values": [*values]} if values else {"operator": "Exists"}
    return {"key": label, **stated}


GPU_NODES: Final[Manifest] = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [_expression(*label)]} for label in GPU_NODE_LABELS.items()
            ]
        }
    }
}
TOLERATIONS: Final[tuple[Manifest, ...]] = (
    {"key": "nvidia.com/gpu", "operator": "Exists"},
    {"key": "sku", "operator": "Equal", "value": "gpu"},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Equal", "value": "spot"},
)
_RESOURCES: Final = {"requests": {"cpu": "25m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def hostname_affinity(names: Sequence[str]) -> Manifest:
    """Affinity to the nodes with these names."""
    named = {"key": "kubernetes.io/hostname", "operator": "In", "values": [*names]}
    terms = [{"matchExpressions": [named]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def affinity_of(exporter: ExporterSpec) -> Manifest:
    """Affinity to the named nodes, or the configured one, else to nodes with a usual label of GPU nodes."""
    if exporter.mode == "cronjob" and exporter.cron_job.nodes:
        return hostname_affinity(exporter.cron_job.nodes)
    if exporter.affinity:
        return dict(to_plain(exporter.affinity))
    return {} if exporter.node_selector or exporter.simulated else GPU_NODES


def node_selector_of(exporter: ExporterSpec) -> Manifest:
    """The configured node selector, with the GPU Operator's label if the exporter follows it."""
    follow = exporter.follow_gpu_operator
    return {**exporter.node_selector, **({follow.deploy_label: "true"} if follow.enabled else {})}


def exporter_config(naming: Naming) -> list[Manifest]:
    """The ConfigMaps of the exporter. A WhatapAgent's settings are in variables; only collectors need one."""
    exporter = naming.monitor.exporter
    if naming.whatap:
        return [csv_config(naming)] if exporter.collectors else []
    data = {"gpuledger.yaml": to_yaml(program_config(naming))}
    if exporter.collectors:
        data["collectors.csv"] = exporter.collectors
    return [naming.object("v1", "ConfigMap", naming.names.exporter, "exporter", data=data)]


def csv_config(naming: Naming) -> Manifest:
    """The ConfigMap with the collectors file of a WhatapAgent, named as in its manual."""
    text = naming.monitor.exporter.collectors or collectors_csv()
    return naming.object("v1", "ConfigMap", CSV_NAME, "exporter", data={CSV_KEY: text})


def exporter_service(naming: Naming) -> list[Manifest]:
    """The Service of the exporters, if enabled."""
    exporter = naming.monitor.exporter
    service = exporter.service
    if service is None or exporter.collects:
        return []
    metrics = service_port("metrics", service.port or exporter.port)
    if service.node_port and service.type != "ClusterIP":
        metrics["nodePort"] = service.node_port
    extra = [service_port(port.name, port.port) for port in exporter.extra_ports]
    spec = {"type": service.type, "ports": [metrics, *extra], "selector": naming.selector("exporter")}
    return [naming.object("v1", "Service", naming.names.exporter_service, "exporter", spec=spec)]


def daemon_set(naming: Naming) -> Manifest:
    """The DaemonSet."""
    exporter = naming.monitor.exporter
    spec = exporter_pod_spec(naming, exporter_container(naming), affinity_of(exporter))
    strategy: Manifest = {"type": exporter.update_strategy.type}
    if exporter.update_strategy.type == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": exporter.update_strategy.max_unavailable}
    return naming.object(
        "apps/v1",
        "DaemonSet",
        naming.names.exporter,
        "exporter",
        spec={
            "selector": {"matchLabels": naming.selector("exporter")},
            "updateStrategy": strategy,
            "template": pod_template(
                naming.labels("exporter"), exporter, restart_annotation_of(naming), spec
            ),
        },
    )


def exporter_container(naming: Naming) -> Manifest:
    """The container of the exporter's pods."""
    exporter = naming.monitor.exporter
    mounts = [mounted for mounted, _ in exporter_mounts(naming)]
    return {
        "name": naming.names.exporter_container,
        **image_of(exporter, naming.context),
        **({} if naming.whatap else {"args": _args(exporter)}),
        "env": merge_environment([*_own_env(naming), *gpu_env(exporter)], exporter.env),
        **({} if exporter.collects else _served(naming)),
        "resources": to_plain(exporter.resources) or _RESOURCES,
        "securityContext": _container_security(naming),
        "volumeMounts": [*mounts, *to_plain(exporter.extra_volume_mounts)],
    }


def exporter_pod_spec(naming: Naming, container: Manifest, affinity: Manifest) -> Manifest:
    """The specification of the exporter's pods."""
    exporter, context = naming.monitor.exporter, naming.context
    volumes = [volume for _, volume in [*exporter_mounts(naming), *init_volumes(exporter)]]
    return {
        "serviceAccountName": naming.names.exporter,
        "automountServiceAccountToken": exporter.pod_names in ("auto", "api"),
        **({"hostPID": True} if exporter.host_pid else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if exporter.host_network else {}),
        **({"runtimeClassName": runtime} if (runtime := _runtime_class(exporter)) else {}),
        "securityContext": _pod_security(naming),
        **pod_placement(naming.monitor, context, exporter),
        **({"nodeSelector": selector} if (selector := node_selector_of(exporter)) else {}),
        **({"affinity": affinity} if affinity else {}),
        **({"tolerations": [*TOLERATIONS]} if exporter.tolerations is None else {}),
        **({"initContainers": inits} if (inits := init_containers(exporter, context)) else {}),
        "containers": [container],
        "volumes": [*volumes, *to_plain(exporter.extra_volumes)],
    }


def restart_annotation_of(naming: Naming) -> dict[str, str]:
    """The annotation of pods that are replaced when their configuration changes, as far as they need it."""
    if naming.whatap:
        return {}
    if naming.monitor.exporter.collects:
        # `collect` reads its configuration once.
        return restart_annotation(program_config(naming))
    return restart_annotation(restart_settings(naming, naming.context.exporter_restarts))


def _served(naming: Naming) -> Manifest:
    exporter = naming.monitor.exporter
    return {
        "ports": [
            container_port("metrics", exporter.port),
            *(container_port(port.name, port.port) for port in exporter.extra_ports),
        ],
        # dcgm-exporter, a possible image of a WhatapAgent, serves only this path.
        **(probes("/health", "/health") if naming.whatap else probes(kind=_probe_kind(exporter))),
    }


def _runtime_class(exporter: ExporterSpec) -> str:
    follows = exporter.follow_gpu_operator.enabled and not exporter.on_host
    return exporter.runtime_class_name or ("nvidia" if follows else "")


def _probe_kind(exporter: ExporterSpec) -> str:
    web = exporter.web_config
    if web is None:
        return "http"
    return "tcp" if web.probe == "tcp" else web.scheme


def _own_env(naming: Naming) -> list[Manifest]:
    node = field_variable("NODE_NAME", "spec.nodeName")
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


def _args(exporter: ExporterSpec) -> list[str]:
    return _collect_args(exporter) if exporter.collects else _serve_args(exporter)


def _serve_args(exporter: ExporterSpec) -> list[str]:
    web = exporter.web_config
    flags = [
        ("listen-address", f":{exporter.port}"),
        *(("listen-address", f":{port.port}={','.join(port.dialects)}") for port in exporter.extra_ports),
        ("metrics-path", "" if exporter.metrics_path == "/metrics" else exporter.metrics_path),
        ("web.config.file", f"{WEB_CONFIG}/{web.key}" if web is not None else ""),
    ]
    return ["serve", *_joined([*_common_flags(exporter), *flags]), *exporter.args]


def _collect_args(exporter: ExporterSpec) -> list[str]:
    file = exporter.textfile
    flags = [("every", file.every), ("textfile-dir", file.directory), ("file", file.file)]
    return ["collect", *_joined([*_common_flags(exporter), *flags]), *exporter.args]


def _common_flags(exporter: ExporterSpec) -> list[tuple[str, object]]:
    has_passwd = exporter.passwd_file and not exporter.simulated
    return [
        ("config", f"{CONFIG}/gpuledger.yaml"),
        ("source", "" if exporter.source == "auto" else exporter.source),
        ("gpu-count", exporter.gpu_count),
        ("devices", ",".join(exporter.devices)),
        ("passwd-file", "/etc/gpuledger/passwd" if has_passwd else "/dev/null"),
        ("state-dir", "/var/lib/gpuledger" if exporter.stores_ledger else "none"),
    ]


def _joined(flags: Iterable[tuple[str, object]]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags if value]


def _container_security(naming: Naming) -> Manifest:
    exporter = naming.monitor.exporter
    if naming.whatap and exporter.image:
        # An image that may not be gpuledger: do not restrict its file system and capabilities.
        security: Manifest = {"runAsUser": 0, "runAsNonRoot": False}
        # dcgm-exporter itself needs it for its profiling metrics, as in its own manifest.
        admin = exporter.sys_admin or "dcgm-exporter" in exporter.image
        return {**security, "capabilities": {"add": ["SYS_ADMIN"]}} if admin else security
    return exporter_security(exporter)


def _pod_security(naming: Naming) -> Manifest:
    security: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    # On OpenShift, SELinux denies ordinary containers the kubelet's socket and the processes of other pods.
    return {**security, "seLinuxOptions": {"type": "spc_t"}} if naming.context.scc_role else security
