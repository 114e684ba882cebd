"""From a resource, as the API server has it, to what it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.operator.facts import Facts, Owner
from gpuledger.operator.problem import Problem
from gpuledger.operator.render.names import ENGINE, naming_of
from gpuledger.operator.schema.gpu_monitor import METADATA_NAME, SPEC
from gpuledger.operator.sections import agent_of, exporter_of, mappings
from gpuledger.operator.spec import GPU_MONITOR, WHATAP_AGENT, GpuMonitor
from gpuledger.operator.translate import NODE_AGENT, read_whatap_agent


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
