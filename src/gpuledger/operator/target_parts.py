"""Leaves bad targets and endpoints out of a resource, so that they do not cost the others their samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from re import match
from typing import Any, TypeVar

from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import GpuMonitor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TargetPart:
    """The number of a target, and that of an endpoint in it; None: the whole target."""

    target: int
    endpoint: int | None = None


def find_part(path: str, agent_path: str) -> TargetPart | None:
    """The part that a problem with this path costs; None if it is not about a target."""
    prefix = f"{agent_path}.targets"
    if not path.startswith(f"{prefix}["):
        return None
    found = match(r"\[(\d+)\](?:\.endpoints\[(\d+)\])?", path.removeprefix(prefix))
    if found is None:
        return None
    return TargetPart(int(found[1]), None if found[2] is None else int(found[2]))


def without_parts(targets: Iterable[Any], parts: Iterable[TargetPart]) -> tuple[Any, ...]:
    """The targets with None in the places of these parts, so that the others keep their numbers."""
    left_out = set(parts)
    return tuple(
        None if TargetPart(index) in left_out else _without_endpoints(target, index, left_out)
        for index, target in enumerate(targets)
    )


def _without_endpoints(target: Any, index: int, left_out: set[TargetPart]) -> Any:
    if not any(part.target == index for part in left_out):
        return target
    endpoints = [
        None if TargetPart(index, number) in left_out else endpoint
        for number, endpoint in enumerate(target["endpoints"])
    ]
    # A target of which no endpoint remains has no effect.
    return None if endpoints.count(None) == len(endpoints) else {**target, "endpoints": endpoints}


def kept_items(values: Sequence[T | None] | None) -> list[tuple[int, T]]:
    """The targets or endpoints that are not left out, with their numbers in the resource."""
    return [(index, value) for index, value in enumerate(values or ()) if value is not None]


def leave_out(monitor: GpuMonitor, problems: Iterable[Problem]) -> GpuMonitor | None:
    """The monitor without the targets and endpoints that the problems of its agent are about; None if they
    are about other fields.

    A problem with all targets, or with the exporter, is about the automatic target of these exporters.
    """
    paths = [problem.path for problem in problems]
    parts = {part for path in paths if (part := find_part(path, monitor.agent_path)) is not None}
    own = any(
        path == f"{monitor.agent_path}.targets" or path.startswith(f"{monitor.exporter_path}.")
        for path in paths
    )
    agent = monitor.agent
    targets = None if agent.targets is None else without_parts(agent.targets, parts)
    automatic = False if own and agent.auto_targets is None else agent.auto_targets
    kept = replace(monitor, agent=replace(agent, targets=targets, auto_targets=automatic))
    return None if kept == monitor else kept
