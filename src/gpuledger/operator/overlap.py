"""Which resources would put two exporters on one node: by their node selectors, whatever nodes there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import Final

from gpuledger.operator.render.exporter import affinity_of, node_selector_of
from gpuledger.operator.spec import GpuMonitor, Plain

# What must hold of each label of a node, all of it; fields of a node stand among them as field:NAME.
Term = Mapping[str, tuple[Plain, ...]]

_FIELD: Final = "field:"


@dataclass(frozen=True, slots=True)
class Claim:
    """One resource: what it asks for, and what was applied last; None for what cannot be, and for nothing."""

    asked: GpuMonitor | None
    running: GpuMonitor | None = None

    @property
    def age(self) -> tuple[str, str]:
        """The older is the less; two of one second go by their names."""
        one = self.asked or self.running
        return ("", "") if one is None else (one.created, one.key)


@dataclass(frozen=True, slots=True)
class Overlaps:
    """By GpuMonitor.key: `refused`, why what is asked for cannot be; `ousted`, what runs and must not."""

    refused: dict[str, str] = field(default_factory=dict)
    ousted: set[str] = field(default_factory=set)


def overlaps(claims: Iterable[Claim]) -> Overlaps:
    """Which exporters may choose nodes of an older resource's.

    What is asked for gives way to all that older resources ask for or have, what runs to what runs alone: an
    older one that is itself refused, by us or by the API server, ousts nobody. What is refused or ousted
    takes no nodes.
    """
    asked: list[_Taken] = []
    running: list[_Taken] = []
    found = Overlaps()
    for claim in sorted(claims, key=lambda one: one.age):
        before = tuple(asked)
        if (mine := _nodes(claim.running)) is not None:
            if _other(mine, running) is None:
                running.append(mine)
                asked.append(mine)
            else:
                found.ousted.add(mine.monitor.key)
        if (mine := _nodes(claim.asked)) is not None:
            if (other := _other(mine, before)) is None:
                asked.append(mine)
            else:
                found.refused[mine.monitor.key] = (
                    f"may choose the same nodes as {other.kind} {other.name}, which is older; set "
                    f"{mine.monitor.exporter_path}.nodeSelector in both, with different values of one label"
                )
    return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """Nodes by the alternatives of which one must hold, and whose they are."""

    monitor: GpuMonitor
    terms: tuple[Term, ...]


def _nodes(monitor: GpuMonitor | None) -> _Taken | None:
    """None where there are no exporters."""
    if monitor is None or not monitor.exporter.enabled:
        return None
    return _Taken(monitor, _terms(monitor))


def _other(mine: _Taken, taken: Iterable[_Taken]) -> GpuMonitor | None:
    """Who has a node of these already."""
    return next((one.monitor for one in taken if _meet(mine.terms, one.terms)), None)


def _terms(monitor: GpuMonitor) -> tuple[Term, ...]:
    """The alternatives of nodeSelector and required node affinity, of which one must hold."""
    exporter = monitor.exporter
    fixed = [
        (name, {"operator": "In", "values": [value]}) for name, value in node_selector_of(exporter).items()
    ]
    required = (affinity_of(exporter).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return (_gathered(fixed),)
    return tuple(
        _gathered([*fixed, *_requirements(term)])
        for term in required["nodeSelectorTerms"]
        # An empty term chooses no node.
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _requirements(term: Plain) -> Iterator[tuple[str, Plain]]:
    for key, prefix in (("matchExpressions", ""), ("matchFields", _FIELD)):
        for one in term.get(key) or ():
            yield prefix + one["key"], one


def _gathered(pairs: Iterable[tuple[str, Plain]]) -> Term:
    found: dict[str, tuple[Plain, ...]] = {}
    for key, requirement in pairs:
        found[key] = (*found.get(key, ()), requirement)
    return found


def _meet(ours: Sequence[Term], theirs: Sequence[Term]) -> bool:
    return any(
        all(_possible((*one.get(key, ()), *other.get(key, ()))) for key in {*one, *other})
        for one, other in product(ours, theirs)
    )


def _possible(requirements: Iterable[Plain]) -> bool:
    """Whether a node may have a label with a value, or lack it, so that all of these hold."""
    absent, present = True, True
    values: set[str] | None = None
    without: set[str] = set()
    above, below = -inf, inf
    for one in requirements:
        operator, named = one["operator"], {str(value) for value in one.get("values") or ()}
        if operator == "In":
            values = named if values is None else values & named
        elif operator == "NotIn":
            without |= named
        elif operator == "DoesNotExist":
            present = False
        elif operator in ("Gt", "Lt"):
            number = _whole(next(iter(named), ""))
            if number is None:
                return False
            above = max(above, number) if operator == "Gt" else above
            below = min(below, number) if operator == "Lt" else below
        if operator not in ("NotIn", "DoesNotExist"):
            absent = False
    if absent:
        return True
    if not present:
        return False
    if values is not None:
        return any(_between(value, above, below) for value in values - without)
    # Values of labels are without end, numbers between two others are not.
    if above == -inf or below == inf:
        return True
    free = below - above - 1
    return free > len([value for value in without if _between(value, above, below)])


def _between(value: str, above: float, below: float) -> bool:
    if above == -inf and below == inf:
        return True
    number = _whole(value)
    return number is not None and above < number < below


def _whole(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None
