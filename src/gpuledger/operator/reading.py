"""From a resource, as the API server has it, to what it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from re import fullmatch, split
from typing import Any, Final

from gpuledger.operator.facts import Facts, Owner
from gpuledger.operator.render.names import ENGINE, naming_of
from gpuledger.operator.schema.gpu_monitor import METADATA_NAME, SPEC
from gpuledger.operator.schema.nodes import unheeded
from gpuledger.operator.schema.whatap_agent import WHATAP_NAME, WHATAP_SPEC
from gpuledger.operator.sections import AGENT, agent_of, exporter_of, made, mappings, pods_of
from gpuledger.operator.spec import (
    GPU_MONITOR,
    WHATAP_AGENT,
    Agent,
    AutoTarget,
    Exporter,
    GpuMonitor,
    Plain,
    Pods,
    Problem,
    Service,
)

_OPEN_AGENT: Final = "spec.features.openAgent"
NODE_AGENT: Final = "spec.features.k8sAgent.nodeAgent"
_GPU_MONITORING: Final = "spec.features.k8sAgent.gpuMonitoring"

# GPUs of a control plane are monitored, too: its own operator has always tolerated these.
_CONTROL_PLANE: Final[tuple[Plain, ...]] = tuple(
    {"key": f"node-role.kubernetes.io/{role}", "operator": "Exists", "effect": "NoSchedule"}
    for role in ("master", "control-plane")
)
_GPU_NODES: Final[tuple[Plain, ...]] = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)


def read_whatap_agent(
    name: str, created: str, spec: object
) -> tuple[GpuMonitor | None, list[Problem], list[Problem]]:
    """What it asks for, what is wrong in it, and what of it is not heeded."""
    problems = [*WHATAP_NAME.check(name, "metadata.name"), *WHATAP_SPEC.check(spec, "spec")]
    if problems or not isinstance(spec, Mapping):
        return None, problems, []
    features = spec.get("features") or {}
    k8s = features.get("k8sAgent") or {}
    scraping = features.get("openAgent") or {}
    problems = list(_inline_secrets(scraping))
    if problems:
        return None, problems, []
    monitor = GpuMonitor(
        WHATAP_AGENT,
        name,
        created,
        _exporter(k8s.get("gpuMonitoring") or {}, k8s.get("nodeAgent") or {}),
        _agent(scraping, k8s.get("gpuMonitoring") or {}),
        _pull_secrets(k8s, k8s.get("nodeAgent") or {}, scraping),
        _OPEN_AGENT,
        _GPU_MONITORING,
    )
    return monitor, [], list(_ignored(spec, k8s))


def _ignored(spec: Plain, k8s: Plain) -> Iterator[Problem]:
    yield from unheeded(WHATAP_SPEC, spec, "spec")
    namespace = k8s.get("namespace")
    if namespace:
        yield Problem(
            "spec.features.k8sAgent.namespace",
            "objects are made in the namespace that the chart's whatapCompat.namespace names",
        )
    gpu = k8s.get("gpuMonitoring") or {}
    if gpu.get("groupLabelAllowlistRegex") and not _label_patterns(gpu):
        yield Problem(
            f"{_GPU_MONITORING}.groupLabelAllowlistRegex",
            "names and beginnings of names such as ^(app|team/.*)$ are heeded, and nothing else",
        )


def _inline_secrets(scraping: Plain) -> Iterator[Problem]:
    for at, target in enumerate(scraping.get("targets") or ()):
        for number, endpoint in enumerate(target.get("endpoints") or ()):
            for key in ("credentials", "credentialsEnv"):
                if (endpoint.get("authorization") or {}).get(key):
                    yield Problem(
                        f"{_OPEN_AGENT}.targets[{at}].endpoints[{number}].authorization.{key}",
                        "lies open to everybody who may read this resource, or is set by nobody; "
                        "take credentialsSecret: {name, key}",
                    )


def _pull_secrets(*sections: Plain) -> tuple[Plain, ...]:
    found = {one["name"]: one for section in sections for one in section.get("imagePullSecrets") or ()}
    return tuple(found.values())


def _exporter(gpu: Plain, node: Plain) -> Exporter:
    # Nothing said is false, in its own schema, too.
    places = {key: gpu.get(key) or node.get(key) for key in ("nodeSelector", "affinity")}
    # Whoever names nodes in gpuMonitoring does not mean those of the node agent as well.
    if gpu.get("nodeSelector") and not gpu.get("affinity"):
        places["affinity"] = None
    wanted = mappings(node.get("tolerations")) or _GPU_NODES
    pods = pods_of(
        {
            "image": gpu.get("customImageFullName"),
            "tolerations": (*_CONTROL_PLANE, *(one for one in wanted if one not in _CONTROL_PLANE)),
            "resources": gpu.get("resources"),
            "env": (*_variables(gpu), *mappings(gpu.get("envs"))),
            "podLabels": node.get("podLabels"),
            "podAnnotations": node.get("podAnnotations"),
            "priorityClassName": node.get("priorityClassName"),
            **places,
        }
    )
    said: dict[str, Any] = {
        "enabled": bool(gpu.get("enabled")),
        "pods": pods,
        "dialects": ("dcgm",),
        "collectors": gpu.get("collectors"),
        "host_network": node.get("hostNetwork"),
        "host_pid": node.get("hostPID"),
        "runtime_class": node.get("runtimeClassName"),
        "sys_admin": gpu.get("sysAdmin"),
    }
    return Exporter(
        service=_service(gpu.get("service") or {}),
        **{name: value for name, value in said.items() if value is not None},
    )


def _service(said: Plain) -> Service | None:
    if not said.get("enabled"):
        return None
    return Service(said.get("type") or "ClusterIP", said.get("port") or 0, said.get("nodePort") or 0)


def _variables(gpu: Plain) -> Iterator[Plain]:
    """dcgm-exporter's, as its own operator sets them."""
    told = ",".join(_label_patterns(gpu))
    if told:
        yield {"name": "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "value": "true"}
        yield {"name": "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "value": told}


def _label_patterns(gpu: Plain) -> tuple[str, ...]:
    """Names of labels, and beginnings of names; what is more of an expression than these is left out."""
    regex = gpu.get("groupLabelAllowlistRegex")
    if not regex:
        return (gpu["groupLabel"],) if gpu.get("groupLabel") else ()
    inner = regex.removeprefix("^").removesuffix("$").removeprefix("(").removesuffix(")")
    parts = tuple(split(r"[|,]", inner))
    return parts if all(fullmatch(r"[\w./-]+?([.][*])?", part) for part in parts) else ()


def _agent(said: Plain, gpu: Plain) -> Agent:
    pods: Pods = pods_of({**said, "env": said.get("envs")})
    cluster = gpu.get("clusterName")
    # A dollar sign would begin a group of the expression.
    named = ({"target_label": "cluster", "replacement": cluster.replace("$", "$$")},) if cluster else ()
    found: dict[str, Any] = {**said, "enabled": bool(said.get("enabled")), "pods": pods}
    auto = AutoTarget(
        gpu.get("interval") or "",
        mappings(gpu.get("relabelConfigs")),
        (*named, *mappings(gpu.get("metricRelabelConfigs"))),
    )
    return replace(made(Agent, found, AGENT), auto=auto)


@dataclass(frozen=True, slots=True)
class Read:
    """What a resource asks for; None where it cannot be made. `problems` are to be mended in it; `ignored`
    is what it says and nobody heeds.
    """

    monitor: GpuMonitor | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()


def read(resource: Mapping[str, Any]) -> Read:
    """Of a GpuMonitor or a WhatapAgent, told by its kind. Whatever it holds, nothing is raised."""
    kind = resource.get("kind")
    metadata = resource.get("metadata")
    found: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    name, created = found.get("name", ""), str(found.get("creationTimestamp") or "")
    spec = {} if resource.get("spec") is None else resource.get("spec")
    if kind == WHATAP_AGENT:
        monitor, problems, ignored = read_whatap_agent(name, created, spec)
        if monitor is not None:
            ignored += _own_labels(monitor, NODE_AGENT)
        return Read(monitor, tuple(problems), tuple(ignored))
    if kind != GPU_MONITOR:
        return Read(None, (Problem("kind", f"{GPU_MONITOR} or {WHATAP_AGENT} is wanted"),))
    problems = [*METADATA_NAME.check(name, "metadata.name"), *SPEC.check(spec, "spec")]
    if problems or not isinstance(spec, Mapping):
        return Read(None, tuple(problems))
    monitor = GpuMonitor(
        GPU_MONITOR,
        name,
        created,
        exporter_of(spec.get("exporter") or {}),
        agent_of(spec.get("agent") or {}),
        mappings(spec.get("imagePullSecrets")),
    )
    return Read(monitor, ignored=tuple(_own_labels(monitor, monitor.exporter_path)))


def _own_labels(monitor: GpuMonitor, exporter_path: str) -> Iterator[Problem]:
    """Labels of pods that the operator sets otherwise."""
    naming = naming_of(monitor, Facts(Owner("", monitor.kind, monitor.name, "")))
    parts = (
        (exporter_path, monitor.exporter.pods, naming.labels("exporter")),
        (monitor.agent_path, monitor.agent.pods, {**naming.labels("agent"), ENGINE: monitor.agent.engine}),
    )
    for path, pods, own in parts:
        for name in own:
            if name in pods.labels and pods.labels[name] != own[name]:
                yield Problem(f"{path}.podLabels.{name}", "is the operator's own: by it pods are found")
