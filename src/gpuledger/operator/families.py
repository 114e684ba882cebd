"""The operator's own metrics: whether it acts, how the resources stand, and what it has asked and changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.model.family import Family, FamilySpec, MetricType, single

if TYPE_CHECKING:
    # The catalogue of families is told without the packages of the operator, too.
    from gpuledger.operator.counts import Counts

_LOOP: Final = "the operator's loop"
_CLUSTER: Final = "the cluster's API server"

BUILD = FamilySpec(
    "gpuledger_operator_build_info", "info", "1, with the version.", ("version",), source=_LOOP
)
LEADING = FamilySpec(
    "gpuledger_operator_leading",
    "gauge",
    "1 for the operator that acts; 0 while another one does, or none can.",
    source="its Lease",
)
SERVED = FamilySpec(
    "gpuledger_operator_served",
    "gauge",
    "1 for a kind of resource that is served; 0 when its definition is missing or another product's.",
    ("kind",),
    source=_CLUSTER,
)
CONDITION = FamilySpec(
    "gpuledger_operator_monitor_condition",
    "gauge",
    "A condition of a resource: 1 when it is True, 0 when it is False; absent while unknown.",
    ("kind", "name", "condition"),
    source=_LOOP,
)
OBJECTS = FamilySpec(
    "gpuledger_operator_objects",
    "gauge",
    "Objects that were made for resources and are there.",
    ("kind",),
    source=_CLUSTER,
)
REQUESTS = FamilySpec(
    "gpuledger_operator_api_requests_total",
    "counter",
    "Answers of the API server to what was asked beside watches.",
    ("method", "code"),
    source=_LOOP,
)
RECONCILES = FamilySpec(
    "gpuledger_operator_reconciles_total",
    "counter",
    "Times a resource was looked at: success, refused (what it asks for cannot be had), error.",
    ("result",),
    source=_LOOP,
)


def _total(name: str, about: str, unit: str = "") -> FamilySpec:
    kind: MetricType = "counter"
    return FamilySpec(f"gpuledger_operator_{name}_total", kind, about, (), unit, _LOOP)


SECONDS = _total("reconcile_seconds", "Seconds that looking at resources took, waiting included.", "seconds")
APPLIED = _total("objects_applied", "Objects that were made or changed.")
REPAIRED = _total("objects_repaired", "Objects that somebody else had changed and that were set right.")
PRUNED = _total("objects_pruned", "Objects that no resource asks for any more and that were deleted.")
STATUSES = _total("status_writes", "Times the status of a resource was written.")
EVENTS = _total("events", "Kubernetes events that were posted about resources.")
WATCHED = _total("watch_events", "Changes that the watches of the API server told.")
_TOTALS: Final = (SECONDS, APPLIED, REPAIRED, PRUNED, STATUSES, EVENTS, WATCHED)

SPECS: Final = (BUILD, LEADING, SERVED, CONDITION, OBJECTS, REQUESTS, RECONCILES, *_TOTALS)


@dataclass(frozen=True, slots=True)
class View:
    """The operator at one moment. `conditions` are status words by kind, name and type."""

    counts: Counts
    leading: bool = False
    served: dict[str, bool] = field(default_factory=dict)
    conditions: dict[tuple[str, str, str], str] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)


def operator_families(view: View) -> Iterator[Family]:
    """Every family, in the order of the catalogue."""
    yield single(BUILD, 1.0, __version__)
    yield single(LEADING, float(view.leading))
    served, conditions, objects = Family(SERVED), Family(CONDITION), Family(OBJECTS)
    for kind, is_served in view.served.items():
        served.add(float(is_served), kind)
    for labels, status in view.conditions.items():
        conditions.add({"True": 1.0, "False": 0.0}.get(status), *labels)
    for kind, number in view.objects.items():
        objects.add(number, kind)
    yield from (served, conditions, objects)
    counts = view.counts
    requests, reconciles = Family(REQUESTS), Family(RECONCILES)
    for (method, code), number in counts.requests.items():
        requests.add(number, method, code)
    for result in ("success", "refused", "error"):
        reconciles.add(counts.reconciles[result], result)
    yield from (requests, reconciles)
    yield single(SECONDS, counts.reconcile_seconds)
    yield single(APPLIED, counts.applied)
    yield single(REPAIRED, counts.repaired)
    yield single(PRUNED, counts.pruned)
    yield single(STATUSES, counts.status_writes)
    yield single(EVENTS, counts.events)
    yield single(WATCHED, counts.watched)
