"""What the pods of exporters and agents have alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuledger.operator.facts import Facts
from gpuledger.operator.render.names import Labels, Manifest
from gpuledger.operator.spec import GpuMonitor, Plain, Pods, Problem

LOCKED: Final[Plain] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# Sized for a node whose CPUs are all busy, as in the chart.
_STARTUP: Final = {"periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 60}
_LIVENESS: Final = {"periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 6}
_READINESS: Final = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}


def plain(value: Any) -> Any:
    """The same of dicts and lists alone, without keys that say nothing."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def probes(healthy: str = "/-/healthy", ready: str = "/-/ready", kind: str = "http") -> Manifest:
    """Whether it lives, and whether it answers; by tcp alone where nobody may ask."""

    def ask(path: str, timing: Mapping[str, int]) -> Manifest:
        if kind == "tcp":
            return {"tcpSocket": {"port": "metrics"}, **timing}
        return {"httpGet": {"path": path, "port": "metrics", "scheme": kind.upper()}, **timing}

    return {
        "startupProbe": ask(healthy, _STARTUP),
        "livenessProbe": ask(healthy, _LIVENESS),
        "readinessProbe": ask(ready, _READINESS),
    }


def environment(own: Iterable[Plain], theirs: Iterable[Plain]) -> list[Manifest]:
    """Each variable once: of two, the later."""
    return list({one["name"]: plain(one) for one in (*own, *theirs)}.values())


def variable(name: str, value: str) -> Manifest:
    """One with a value."""
    return {"name": name, "value": value}


def field(name: str, path: str) -> Manifest:
    """One with the value of the pod's own field."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def ambiguous(env: Iterable[Plain], path: str) -> Iterator[Problem]:
    """Variables that Kubernetes would refuse."""
    for at, one in enumerate(env):
        sources = [key for key, value in (one.get("valueFrom") or {}).items() if value is not None]
        if one.get("valueFrom") is not None and len(sources) != 1:
            yield Problem(f"{path}[{at}].valueFrom", "exactly one source is wanted")
        if sources and one.get("value"):
            yield Problem(f"{path}[{at}].valueFrom", "is given together with value; one of them is wanted")


def image_of(pods: Pods, facts: Facts) -> Manifest:
    """Image, and when it is pulled."""
    return {
        "image": pods.image or facts.image,
        "imagePullPolicy": pods.image_pull_policy or facts.image_pull_policy,
    }


def template(labels: Labels, pods: Pods, annotations: Mapping[str, str], spec: Manifest) -> Manifest:
    """A pod's template; what the operator needs wins over what was asked for."""
    notes = {**pods.annotations, **annotations}
    return {
        "metadata": {
            "labels": {**pods.labels, **labels},
            **({"annotations": notes} if notes else {}),
        },
        "spec": spec,
    }


def pod(monitor: GpuMonitor, facts: Facts, pods: Pods) -> Manifest:
    """What is said of every pod's place."""
    secrets = {one["name"]: {"name": one["name"]} for one in monitor.image_pull_secrets}
    secrets |= {one["name"]: {"name": one["name"]} for one in facts.image_pull_secrets}
    found = {
        "priorityClassName": pods.priority_class,
        "imagePullSecrets": list(secrets.values()),
        "nodeSelector": dict(pods.node_selector),
        "tolerations": plain(pods.tolerations or ()),
        "affinity": plain(pods.affinity),
    }
    return {name: value for name, value in found.items() if value}
