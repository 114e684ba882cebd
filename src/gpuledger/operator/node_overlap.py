"""Finds resources that could place two exporters on one node.

Only their node selectors and affinities are compared; the existing nodes do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import Final

from gpuledger.operator.render.exporter import affinity_of, node_selector_of
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.spec_sections import Plain

# Requirements by label, all of which a node must satisfy; those of a node's field have the key field:NAME.
Term = Mapping[str, tuple[Plain, ...]]
# A monitor and its nodes: those that satisfy at least one of the terms.
_Claimed = tuple[GpuMonitor, tuple[Term, ...]]

_FIELD: Final = "field:"


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """The nodes of one resource: by its newest spec (None if it is invalid) and by its last applied spec."""

    requested: GpuMonitor | None
    running: GpuMonitor | None = None

    @property
    def age(self) -> tuple[str, str]:
        """Sorts older resources first; those of the same second by name."""
        monitor = self.requested or self.running
        return ("", "") if monitor is None else (monitor.created, monitor.key)


@dataclass(frozen=True, slots=True)
class Overlaps:
    """By GpuMonitor.key: `rejected` new specs with the reason; `displaced` exporters that must be deleted."""

    rejected: dict[str, str] = field(default_factory=dict)
    displaced: set[str] = field(default_factory=set)


def find_overlaps(claims: Iterable[NodeClaim]) -> Overlaps:
    """Find exporters that could run on the nodes of an older resource.

    A new spec must not overlap with any spec, new or running, of an older resource. Running exporters are
    displaced only by running exporters of an older resource, not by its new spec, which may itself be
    refused. Rejected specs and displaced exporters claim no nodes.
    """
    claimed: list[_Claimed] = []
    running: list[_Claimed] = []
    found = Overlaps()
    for claim in sorted(claims, key=lambda claim: claim.age):
        before = tuple(claimed)
        if (monitor := claim.running) is not None and monitor.exporter.enabled:
            terms = _alternatives(monitor)
            if _find_overlap(terms, running) is None:
                running.append((monitor, terms))
                claimed.append((monitor, terms))
            else:
                found.displaced.add(monitor.key)
        if (monitor := claim.requested) is not None and monitor.exporter.enabled:
            terms = _alternatives(monitor)
            if (other := _find_overlap(terms, before)) is None:
                claimed.append((monitor, terms))
            else:
                found.rejected[monitor.key] = (
                    f"can select the same nodes as {other.kind} {other.name}, which is older; set "
                    f"{monitor.exporter_path}.nodeSelector in both, with different values of one label"
                )
    return found


def _find_overlap(terms: Sequence[Term], claimed: Iterable[_Claimed]) -> GpuMonitor | None:
    """The monitor that already claims one of these nodes, None if there is none."""
    return next((other for other, theirs in claimed if _can_share_node(terms, theirs)), None)


def _alternatives(monitor: GpuMonitor) -> tuple[Term, ...]:
    """nodeSelector and required node affinity as alternative terms, one of which must hold."""
    exporter = monitor.exporter
    fixed = [
        (name, {"operator": "In", "values": [value]}) for name, value in node_selector_of(exporter).items()
    ]
    required = (affinity_of(exporter).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not required:
        return (_group_by_key(fixed),)
    return tuple(
        _group_by_key([*fixed, *_requirements(term)])
        for term in required["nodeSelectorTerms"]
        # An empty term selects no node.
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _requirements(term: Plain) -> Iterator[tuple[str, Plain]]:
    for key, prefix in (("matchExpressions", ""), ("matchFields", _FIELD)):
        for requirement in term.get(key) or ():
            yield prefix + requirement["key"], requirement


def _group_by_key(pairs: Iterable[tuple[str, Plain]]) -> Term:
    found: dict[str, tuple[Plain, ...]] = {}
    for key, requirement in pairs:
        found[key] = (*found.get(key, ()), requirement)
    return found


def _can_share_node(ours: Sequence[Term], theirs: Sequence[Term]) -> bool:
    return any(
        all(_is_satisfiable((*one.get(key, ()), *other.get(key, ()))) for key in {*one, *other})
        for one, other in product(ours, theirs)
    )


def _is_satisfiable(requirements: Iterable[Plain]) -> bool:
    """Whether a node can have the label with some value, or lack it, so that all requirements hold."""
    absent, present = True, True
    values: set[str] | None = None
    without: set[str] = set()
    above, below = -inf, inf
    for requirement in requirements:
        operator = requirement["operator"]
        named = {str(value) for value in requirement.get("values") or ()}
        if operator == "In":
            values = named if values is None else values & named
        elif operator == "NotIn":
            without |= named
        elif operator == "DoesNotExist":
            present = False
        elif operator in ("Gt", "Lt"):
            number = _parse_integer(next(iter(named), ""))
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
    # Unlimited values satisfy these, except for the finitely many integers between two bounds.
    if above == -inf or below == inf:
        return True
    free = below - above - 1
    return free > len([value for value in without if _between(value, above, below)])


def _between(value: str, above: float, below: float) -> bool:
    if above == -inf and below == inf:
        return True
    number = _parse_integer(value)
    return number is not None and above < number < below


def _parse_integer(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None
