"""Sections of a checked specification as values of spec.py; what is not said has the value's default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from gpuledger.operator.spec import (
    Agent,
    Exporter,
    ExtraPort,
    GpuAccess,
    GpuOperator,
    Persistence,
    Plain,
    Pods,
    Service,
    WebConfig,
)

T = TypeVar("T")


def made(kind: Callable[..., T], said: Plain, names: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> T:
    """A value out of a mapping: field name and reader by key. null is as if nothing was said."""
    found = {field: read(said[key]) for key, (field, read) in names.items() if said.get(key) is not None}
    return kind(**found)


def same(value: Any) -> Any:
    """As it is."""
    return value


def texts(value: Any) -> tuple[str, ...]:
    """A list of scalars, each as text."""
    return tuple(str(one) for one in value)


def mappings(value: Iterable[Plain] | None) -> tuple[Plain, ...]:
    """A list of mappings; none where nothing was said."""
    return tuple(value or ())


def _amounts(value: Plain) -> Plain:
    """Requests and limits as texts: in an apply, older API servers take no numbers."""
    return {
        part: {name: str(amount) for name, amount in said.items() if amount is not None}
        for part, said in value.items()
        if said is not None
    }


_PODS: Final = {
    "image": ("image", same),
    "imagePullPolicy": ("image_pull_policy", same),
    "nodeSelector": ("node_selector", same),
    "affinity": ("affinity", same),
    "tolerations": ("tolerations", mappings),
    "resources": ("resources", _amounts),
    "env": ("env", mappings),
    "args": ("args", texts),
    "podLabels": ("labels", same),
    "podAnnotations": ("annotations", same),
    "priorityClassName": ("priority_class", same),
}


def pods_of(said: Plain) -> Pods:
    """What is said of pods."""
    return made(Pods, said, _PODS)


def _gpu_access(said: Plain) -> GpuAccess:
    return made(
        GpuAccess,
        said,
        {
            "mode": ("mode", same),
            "cdiDevice": ("cdi_device", same),
            "driverDir": ("driver_dir", same),
            "library": ("library", same),
            "smi": ("smi", same),
        },
    )


def _gpu_operator(said: Plain) -> GpuOperator:
    return made(
        GpuOperator,
        said,
        {
            "enabled": ("enabled", same),
            "deployLabel": ("deploy_label", same),
            "validationsDir": ("validations_dir", same),
        },
    )


def _web_config(said: Plain) -> WebConfig:
    return made(
        WebConfig,
        said,
        {
            "secret": ("secret", same),
            "scheme": ("scheme", same),
            "key": ("key", same),
            "tlsSecret": ("tls_secret", same),
            "probe": ("probe", same),
        },
    )


def _extra_ports(said: Iterable[Plain]) -> tuple[ExtraPort, ...]:
    return tuple(ExtraPort(one["name"], one["port"], texts(one["dialects"])) for one in said)


_EXPORTER: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "enabled": ("enabled", same),
    "source": ("source", same),
    "devices": ("devices", texts),
    "gpuCount": ("gpu_count", same),
    "gpuAccess": ("gpu_access", _gpu_access),
    "runtimeClassName": ("runtime_class", same),
    "followGpuOperator": ("gpu_operator", _gpu_operator),
    "accounting": ("accounting", same),
    "dialects": ("dialects", texts),
    "port": ("port", same),
    "metricsPath": ("metrics_path", same),
    "extraPorts": ("extra_ports", _extra_ports),
    "webPage": ("web_page", same),
    "webConfig": ("web_config", _web_config),
    "collectors": ("collectors", same),
    "podNames": ("pod_names", same),
    "podLabelAllowlist": ("pod_label_allowlist", texts),
    "config": ("config", same),
    "kubeletDir": ("kubelet_dir", same),
    "podLogs": ("pod_logs", same),
    "passwdFile": ("passwd_file", same),
    "stateDir": ("state_dir", same),
    "hostPID": ("host_pid", same),
    "hostNetwork": ("host_network", same),
    "capabilities": ("capabilities", texts),
    "sysAdmin": ("sys_admin", same),
    "service": ("service", lambda said: Service() if said else None),
}


def exporter_of(said: Plain) -> Exporter:
    """The section `exporter` of a GpuMonitor."""
    strategy = said.get("updateStrategy") or {}
    flat = {
        **said,
        "pods": pods_of(said),
        "updateType": strategy.get("type"),
        "maxUnavailable": strategy.get("maxUnavailable"),
    }
    return made(
        Exporter,
        flat,
        {
            **_EXPORTER,
            "pods": ("pods", same),
            "updateType": ("update_strategy", same),
            "maxUnavailable": ("max_unavailable", same),
        },
    )


def _persistence(said: Plain) -> Persistence:
    return Persistence(str(said.get("size") or "2Gi"), said.get("storageClass") or "")


AGENT: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "enabled": ("enabled", same),
    "engine": ("engine", same),
    "prometheusImage": ("prometheus_image", same),
    "replicas": ("replicas", same),
    "globalInterval": ("global_interval", same),
    "globalPath": ("global_path", same),
    "extraScrapeMetrics": ("extra_scrape_metrics", same),
    "autoTargets": ("auto_targets", same),
    "targets": ("targets", mappings),
    "externalLabels": ("external_labels", same),
    "remoteWrite": ("remote_write", mappings),
    "port": ("port", same),
    "persistence": ("persistence", _persistence),
    "pods": ("pods", same),
}


def agent_of(said: Plain) -> Agent:
    """The section `agent` of a GpuMonitor."""
    return made(Agent, {**said, "pods": pods_of(said)}, AGENT)
