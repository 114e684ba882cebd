"""Parts of pods that exporters and agents share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from re import sub
from typing import Any, Final

from gpuledger.operator.render.naming import Labels, Manifest
from gpuledger.operator.render_context import RenderContext
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.spec_sections import Plain, PodSettings

RESTRICTED_SECURITY: Final[Plain] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# Sized for a node with busy CPUs, as in the chart.
_STARTUP: Final = {"periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 60}
_LIVENESS: Final = {"periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 6}
_READINESS: Final = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}


def to_plain(value: Any) -> Any:
    """A copy made of dicts and lists, without keys with the value None."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def snake_case(key: str) -> str:
    """A key as Prometheus spells it: `minShards` as min_shards."""
    return sub("[A-Z]", lambda match: f"_{match[0].lower()}", key)


def probes(healthy: str = "/-/healthy", ready: str = "/-/ready", kind: str = "http") -> Manifest:
    """Startup, liveness and readiness probes. `kind` is http, https, or tcp if the kubelet cannot log in."""

    def probe(path: str, timing: Mapping[str, int]) -> Manifest:
        if kind == "tcp":
            return {"tcpSocket": {"port": "metrics"}, **timing}
        return {"httpGet": {"path": path, "port": "metrics", "scheme": kind.upper()}, **timing}

    return {
        "startupProbe": probe(healthy, _STARTUP),
        "livenessProbe": probe(healthy, _LIVENESS),
        "readinessProbe": probe(ready, _READINESS),
    }


def merge_environment(own: Iterable[Plain], configured: Iterable[Plain]) -> list[Manifest]:
    """All variables, each once; the last one of a name wins."""
    return list({entry["name"]: to_plain(entry) for entry in (*own, *configured)}.values())


# Mounts of a container, each with its volume.
Mounts = list[tuple[Manifest, Manifest]]


def mount(name: str, path: str, source: Manifest, *, writable: bool = False) -> tuple[Manifest, Manifest]:
    """A mount and its volume; `source` is the volume without its name."""
    access = {} if writable else {"readOnly": True}
    return {"name": name, "mountPath": path, **access}, {"name": name, **source}


def host_mount(name: str, path: str, host_path: str, kind: str = "") -> tuple[Manifest, Manifest]:
    """A read-only mount of a path of the node."""
    return mount(name, path, {"hostPath": {"path": host_path, **({"type": kind} if kind else {})}})


def service_port(name: str, port: int) -> Manifest:
    """A port of a Service; the port of the container has the same name."""
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def container_port(name: str, port: int) -> Manifest:
    """A port of a container."""
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def variable(name: str, value: str) -> Manifest:
    """An environment variable with a value."""
    return {"name": name, "value": value}


def field_variable(name: str, path: str) -> Manifest:
    """An environment variable with the value of a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def find_env_problems(env: Iterable[Plain], path: str) -> Iterator[Problem]:
    """Problems of variables that Kubernetes would refuse."""
    for index, entry in enumerate(env):
        sources = [key for key, value in (entry.get("valueFrom") or {}).items() if value is not None]
        if entry.get("valueFrom") is not None and len(sources) != 1:
            yield Problem(f"{path}[{index}].valueFrom", "expected exactly one source")
        if sources and entry.get("value"):
            yield Problem(f"{path}[{index}].valueFrom", "conflicts with value; set only one of them")


def image_of(pods: PodSettings, context: RenderContext) -> Manifest:
    """The keys image and imagePullPolicy of a container."""
    return {
        "image": pods.image or context.image,
        "imagePullPolicy": pods.image_pull_policy or context.image_pull_policy,
    }


def pod_template(
    labels: Labels, pods: PodSettings, annotations: Mapping[str, str], spec: Manifest
) -> Manifest:
    """A pod template; labels and annotations of the operator override configured ones."""
    merged = {**pods.pod_annotations, **annotations}
    return {
        "metadata": {
            "labels": {**pods.pod_labels, **labels},
            **({"annotations": merged} if merged else {}),
        },
        "spec": spec,
    }


def pod_placement(monitor: GpuMonitor, context: RenderContext, pods: PodSettings) -> Manifest:
    """The keys of a pod's spec that place it on nodes and pull its images."""
    secrets = [*monitor.image_pull_secrets, *context.image_pull_secrets]
    found = {
        "priorityClassName": pods.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in dict.fromkeys(secret["name"] for secret in secrets)],
        "nodeSelector": dict(pods.node_selector),
        "tolerations": to_plain(pods.tolerations or ()),
        "affinity": to_plain(pods.affinity),
    }
    return {name: value for name, value in found.items() if value}
