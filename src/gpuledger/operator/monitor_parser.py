"""Parses GpuMonitor and WhatapAgent resources into a GpuMonitor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from re import fullmatch, split
from typing import Any, Final

from gpuledger.kubernetes.fields import mapping_at
from gpuledger.operator.render.exporter import TOLERATIONS
from gpuledger.operator.render.naming import ENGINE, Naming
from gpuledger.operator.render_context import MonitorReference, RenderContext
from gpuledger.operator.schema.nodes import ObjectNode, Problem, TextNode, ignored_keys
from gpuledger.operator.schema.sections import read_section, section_values
from gpuledger.operator.spec import (
    GPU_MONITOR,
    METADATA_NAME,
    SPEC,
    WHATAP_AGENT,
    AgentSpec,
    ExporterSpec,
    GpuMonitor,
)
from gpuledger.operator.spec_sections import AutoTarget, ExporterService, Plain
from gpuledger.operator.whatap_spec import WHATAP_NAME, WHATAP_SPEC

_OPEN_AGENT: Final = "spec.features.openAgent"
NODE_AGENT: Final = "spec.features.k8sAgent.nodeAgent"
_GPU_MONITORING: Final = "spec.features.k8sAgent.gpuMonitoring"

_SCHEMAS: Final[Mapping[str, tuple[TextNode, ObjectNode]]] = {
    GPU_MONITOR: (METADATA_NAME, SPEC),
    WHATAP_AGENT: (WHATAP_NAME, WHATAP_SPEC),
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
    """A parsed resource: the monitor is None if it has `problems`. `ignored` fields have no effect."""

    monitor: GpuMonitor | None
    problems: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()


def _parse_whatap_agent(name: str, created: str, spec: Plain) -> ParsedMonitor:
    """Parse a specification that the schema allows."""
    features = spec.get("features") or {}
    k8s, scraping = features.get("k8sAgent") or {}, features.get("openAgent") or {}
    gpu, node = k8s.get("gpuMonitoring") or {}, k8s.get("nodeAgent") or {}
    if problems := tuple(_find_inline_secrets(scraping)):
        return ParsedMonitor(None, problems)
    monitor = GpuMonitor(
        WHATAP_AGENT,
        name,
        created,
        _exporter(gpu, node),
        _agent(scraping, gpu),
        _pull_secrets(k8s, node, scraping),
        _OPEN_AGENT,
        _GPU_MONITORING,
    )
    ignored = (
        *ignored_keys(WHATAP_SPEC, spec, "spec"),
        *_find_ignored(k8s.get("namespace"), gpu),
        *_find_overridden_labels(monitor, NODE_AGENT),
    )
    return ParsedMonitor(monitor, ignored=ignored)


def _find_ignored(namespace: object, gpu: Plain) -> Iterator[Problem]:
    if namespace:
        yield Problem(
            "spec.features.k8sAgent.namespace",
            "objects are created in the namespace of the chart's whatapCompat.namespace",
        )
    if gpu.get("groupLabelAllowlistRegex") and not _label_patterns(gpu):
        yield Problem(
            f"{_GPU_MONITORING}.groupLabelAllowlistRegex",
            "is ignored: expected names and prefixes of names, such as ^(app|team/.*)$",
        )


def _find_inline_secrets(scraping: Plain) -> Iterator[Problem]:
    for at, target in enumerate(scraping.get("targets") or ()):
        for number, endpoint in enumerate(target.get("endpoints") or ()):
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
        (*cluster_rule, *(gpu.get("metricRelabelConfigs") or ())),
    )
    agent = read_section(
        AgentSpec, {**section, "enabled": bool(section.get("enabled")), "env": section.get("envs")}
    )
    return replace(agent, auto=auto)


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
    if problems or not isinstance(spec, Mapping):
        return ParsedMonitor(None, problems)
    if kind == WHATAP_AGENT:
        return _parse_whatap_agent(name, created, spec)
    monitor = GpuMonitor(GPU_MONITOR, name, created, **section_values(GpuMonitor, spec))
    return ParsedMonitor(monitor, ignored=tuple(_find_overridden_labels(monitor, monitor.exporter_path)))


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
