"""Parses GpuMonitor and WhatapAgent resources into a GpuMonitor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from re import fullmatch, search, split, sub
from typing import Any, Final

from gpuledger.kubernetes.fields import mapping_at
from gpuledger.operator.render.exporter import GPU_NODES, TOLERATIONS
from gpuledger.operator.render.naming import ENGINE, Naming
from gpuledger.operator.render_context import MonitorReference, RenderContext
from gpuledger.operator.schema.nodes import ObjectNode, Problem, TextNode, ignored_keys
from gpuledger.operator.schema.sections import read_section, section_values
from gpuledger.operator.spec import (
    AGENT,
    GPU_MONITOR,
    METADATA_NAME,
    SPEC,
    WHATAP_AGENT,
    AgentSpec,
    ExporterSpec,
    GpuMonitor,
)
from gpuledger.operator.spec_sections import AutoTarget, ExporterService, Plain
from gpuledger.operator.target_parts import TargetPart, find_part, kept_items, without_parts
from gpuledger.operator.whatap_spec import TARGETS, WHATAP_NAME, WHATAP_SPEC

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_OPEN_AGENT: Final = "spec.features.openAgent"
NODE_AGENT: Final = "spec.features.k8sAgent.nodeAgent"
_GPU_MONITORING: Final = "spec.features.k8sAgent.gpuMonitoring"

_SCHEMAS: Final[Mapping[str, tuple[TextNode, ObjectNode]]] = {
    GPU_MONITOR: (METADATA_NAME, SPEC),
    WHATAP_AGENT: (WHATAP_NAME, WHATAP_SPEC),
}
_AGENT_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    GPU_MONITOR: ("agent",),
    WHATAP_AGENT: ("features", "openAgent"),
}
# GPUs of control-plane nodes are monitored, too, as by Whatap's operator.
_CONTROL_PLANE: Final[tuple[Plain, ...]] = tuple(
    {"key": f"node-role.kubernetes.io/{role}", "operator": "Exists", "effect": "NoSchedule"}
    for role in ("master", "control-plane")
)
_NODE_KEYS: Final = (
    "podLabels",
    "podAnnotations",
    "priorityClassName",
    "hostNetwork",
    "hostPID",
    "runtimeClassName",
)


@dataclass(frozen=True, slots=True)
class ParsedMonitor:
    """A parsed resource. `ignored` fields have no effect.

    Targets and endpoints with `problems` are left out; the monitor is None if other fields have problems.
    """

    monitor: GpuMonitor | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()


def _parse_whatap_agent(name: str, created: str, spec: Plain) -> GpuMonitor:
    """Parse a specification that the schema allows."""
    features = spec.get("features") or {}
    k8s, scraping = features.get("k8sAgent") or {}, features.get("openAgent") or {}
    gpu, node = k8s.get("gpuMonitoring") or {}, k8s.get("nodeAgent") or {}
    return GpuMonitor(
        WHATAP_AGENT,
        name,
        created,
        _exporter(gpu, node),
        _agent(scraping, gpu),
        _pull_secrets(k8s, node, scraping),
        agent_path=_OPEN_AGENT,
        exporter_path=_GPU_MONITORING,
    )


def _find_ignored_of_whatap_agent(monitor: GpuMonitor, spec: Plain) -> Iterator[Problem]:
    k8s = mapping_at(mapping_at(spec, "features"), "k8sAgent")
    gpu = k8s.get("gpuMonitoring") or {}
    yield from ignored_keys(WHATAP_SPEC, spec, "spec")
    if k8s.get("namespace"):
        yield Problem(
            "spec.features.k8sAgent.namespace",
            "objects are created in the namespace of the chart's whatapCompat.namespace",
        )
    if gpu.get("groupLabelAllowlistRegex") and not _label_patterns(gpu):
        yield Problem(
            f"{_GPU_MONITORING}.groupLabelAllowlistRegex",
            "is ignored: expected names and prefixes of names, such as ^(app|team/.*)$",
        )
    yield from _find_overridden_labels(monitor, NODE_AGENT)


def _find_ignored_of_gpu_monitor(monitor: GpuMonitor, spec: Plain) -> Iterator[Problem]:
    targets = mapping_at(spec, "agent").get("targets")
    yield from ignored_keys(AGENT.keys["targets"], targets, "spec.agent.targets")
    yield from _find_overridden_labels(monitor, monitor.exporter_path)


def _find_inline_secrets(targets: Sequence[Plain | None]) -> Iterator[Problem]:
    for at, target in kept_items(targets):
        for number, endpoint in kept_items(target.get("endpoints")):
            for key in ("credentials", "credentialsEnv"):
                if (endpoint.get("authorization") or {}).get(key):
                    yield Problem(
                        f"{_OPEN_AGENT}.targets[{at}].endpoints[{number}].authorization.{key}",
                        "exposes the credential to all readers of the resource, or names a variable that is "
                        "never set; use credentialsSecret: {name, key}",
                    )


def _pull_secrets(*sections: Plain) -> tuple[Plain, ...]:
    found = {one["name"]: one for section in sections for one in section.get("imagePullSecrets") or ()}
    return tuple(found.values())


def _exporter(gpu: Plain, node: Plain) -> ExporterSpec:
    # `enabled` defaults to false, as in the schema of Whatap's operator.
    placement = {key: gpu.get(key) or node.get(key) for key in ("nodeSelector", "affinity")}
    # A nodeSelector in gpuMonitoring replaces the node agent's affinity, too.
    if gpu.get("nodeSelector") and not gpu.get("affinity"):
        placement["affinity"] = None
    if (placement["nodeSelector"] or placement["affinity"]) and not _chooses_gpus(placement):
        placement["affinity"] = _narrowed_to_gpu_nodes(placement["affinity"] or {})
    tolerations = node.get("tolerations") or TOLERATIONS
    exporter = read_section(
        ExporterSpec,
        {
            "enabled": bool(gpu.get("enabled")),
            "image": gpu.get("customImageFullName"),
            "tolerations": (*_CONTROL_PLANE, *(one for one in tolerations if one not in _CONTROL_PLANE)),
            "resources": gpu.get("resources"),
            "env": (*_variables(gpu), *(gpu.get("envs") or ())),
            "dialects": ("dcgm",),
            **{key: gpu.get(key) for key in ("collectors", "sysAdmin")},
            **{key: node.get(key) for key in _NODE_KEYS},
            **placement,
        },
    )
    return replace(exporter, service=_service(gpu.get("service") or {}))


def _chooses_gpus(placement: Plain) -> bool:
    """Whether labels or values in nodeSelector or affinity name GPUs; others only narrow the choice."""
    required = _required_terms(placement["affinity"] or {})
    expressions = [expression for term in required for expression in term.get("matchExpressions") or ()]
    words = [
        *(placement["nodeSelector"] or {}).items(),
        *((one["key"], one.get("values")) for one in expressions),
    ]
    return any(search("gpu|nvidia|accelerator|10de", str(word).lower()) for word in words)


def _required_terms(affinity: Plain) -> list[Plain]:
    node = affinity.get("nodeAffinity") or {}
    return list((node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ())


def _narrowed_to_gpu_nodes(affinity: Plain) -> Plain:
    """The affinity with each of its required terms combined with each of the terms of GPU nodes."""
    terms = [
        {**own, "matchExpressions": [*(own.get("matchExpressions") or ()), *gpu["matchExpressions"]]}
        for own in _required_terms(affinity) or [{}]
        for gpu in _required_terms(GPU_NODES)
    ]
    node = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: {"nodeSelectorTerms": terms}}
    return {**affinity, "nodeAffinity": node}


def _service(section: Plain) -> ExporterService | None:
    if not section.get("enabled"):
        return None
    return ExporterService(
        section.get("type") or "ClusterIP", section.get("port") or 0, section.get("nodePort") or 0
    )


def _variables(gpu: Plain) -> Iterator[Plain]:
    """The environment variables that Whatap's operator sets for dcgm-exporter."""
    if allowed := ",".join(_label_patterns(gpu)):
        yield {"name": "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "value": "true"}
        yield {"name": "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "value": allowed}


def _label_patterns(gpu: Plain) -> tuple[str, ...]:
    """The names and name prefixes of labels in the allowlist; empty for any other regular expression."""
    regex = gpu.get("groupLabelAllowlistRegex")
    if not regex:
        return (gpu["groupLabel"],) if gpu.get("groupLabel") else ()
    inner = regex.removeprefix("^").removesuffix("$").removeprefix("(").removesuffix(")")
    parts = tuple(split(r"[|,]", inner))
    return parts if all(fullmatch(r"[\w./-]+?([.][*])?", part) for part in parts) else ()


def _agent(section: Plain, gpu: Plain) -> AgentSpec:
    cluster = gpu.get("clusterName")
    # Escaped: in a replacement, $ refers to a group.
    cluster_rule = (
        ({"target_label": "cluster", "replacement": cluster.replace("$", "$$")},) if cluster else ()
    )
    auto = AutoTarget(
        gpu.get("interval") or "",
        tuple(gpu.get("relabelConfigs") or ()),
        (*cluster_rule, *_group_rules(gpu), *(gpu.get("metricRelabelConfigs") or ())),
    )
    targets = section.get("targets")
    stated = {
        "enabled": bool(section.get("enabled")),
        "env": section.get("envs"),
        "targets": None if targets is None else TARGETS.read(targets),
    }
    agent = read_section(AgentSpec, {**section, **stated})
    return replace(agent, auto=auto)


def _group_rules(gpu: Plain) -> Iterator[Plain]:
    """The label by which the vendor's views group GPUs, as Whatap's operator makes it of groupLabel."""
    if label := gpu.get("groupLabel"):
        exported = sub(r"^(?=\d)|^__+", "_", sub(r"[^a-zA-Z0-9_]", "_", label))
        yield {"source_labels": [exported], "regex": "(.+)", "target_label": "whatap_kube_label_gpu_group"}


def parse_monitor(resource: Mapping[str, Any]) -> ParsedMonitor:
    """Parse a GpuMonitor or a WhatapAgent, according to its kind. Never raises, whatever the content."""
    kind = str(resource.get("kind"))
    metadata = mapping_at(resource, "metadata")
    name, created = metadata.get("name", ""), str(metadata.get("creationTimestamp") or "")
    spec = {} if resource.get("spec") is None else resource.get("spec")
    if kind not in _SCHEMAS:
        return ParsedMonitor(None, (Problem("kind", f"expected {GPU_MONITOR} or {WHATAP_AGENT}"),))
    name_schema, schema = _SCHEMAS[kind]
    problems = (*name_schema.check(name, "metadata.name"), *schema.check(spec, "spec"))
    keys = _AGENT_KEYS[kind]
    parts = [find_part(problem.path, ".".join(("spec", *keys))) for problem in problems]
    if None in parts or not isinstance(spec, Mapping):
        return ParsedMonitor(None, problems)
    kept = _without_targets(spec, keys, [part for part in parts if part is not None])
    if kind == GPU_MONITOR:
        monitor = GpuMonitor(GPU_MONITOR, name, created, **section_values(GpuMonitor, kept))
        return ParsedMonitor(monitor, problems, tuple(_find_ignored_of_gpu_monitor(monitor, kept)))
    scraping = mapping_at(mapping_at(kept, "features"), "openAgent")
    exposed = tuple(_find_inline_secrets(scraping.get("targets") or ()))
    parts = [find_part(problem.path, _OPEN_AGENT) for problem in exposed]
    kept = _without_targets(kept, keys, [part for part in parts if part is not None])
    monitor = _parse_whatap_agent(name, created, kept)
    ignored = tuple(_find_ignored_of_whatap_agent(monitor, kept))
    return ParsedMonitor(monitor, (*problems, *exposed), ignored)


def _without_targets(spec: Plain, keys: Sequence[str], parts: Sequence[TargetPart]) -> Plain:
    """The specification without these targets and endpoints of the agent; `keys` lead to its section."""
    if not parts:
        return spec
    if not keys:
        return {**spec, "targets": without_parts(spec["targets"], parts)}
    return {**spec, keys[0]: _without_targets(spec[keys[0]], keys[1:], parts)}


def _find_overridden_labels(monitor: GpuMonitor, exporter_path: str) -> Iterator[Problem]:
    """Pod labels that the operator sets to another value."""
    naming = Naming(monitor, RenderContext(MonitorReference("", monitor.kind, monitor.name, "")))
    parts = (
        (exporter_path, monitor.exporter, naming.labels("exporter")),
        (monitor.agent_path, monitor.agent, {**naming.labels("agent"), ENGINE: monitor.agent.engine}),
    )
    for path, pods, own in parts:
        for name in own:
            if name in pods.pod_labels and pods.pod_labels[name] != own[name]:
                yield Problem(f"{path}.podLabels.{name}", "is set by the operator, which selects pods by it")
