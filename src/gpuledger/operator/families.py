"""Metric families of the operator: leadership, conditions of resources, requests and changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.model.family import Family, FamilySpec, MetricType, single_sample_family

if TYPE_CHECKING:
    # `gpuledger metrics` imports this module without the packages of the extra `cluster`.
    from gpuledger.operator.counts import OperatorCounts

_LOOP: Final = "reconcile loop"
_CLUSTER: Final = "API server"

BUILD = FamilySpec(
    "gpuledger_operator_build_info",
    "info",
    "1, with the version of the operator.",
    ("version",),
    source=_LOOP,
)
LEADING = FamilySpec(
    "gpuledger_operator_leading",
    "gauge",
    "1 if this operator is the leader, otherwise 0.",
    source="Lease",
)
SERVED = FamilySpec(
    "gpuledger_operator_served",
    "gauge",
    "1 if resources of this kind are reconciled; 0 if the CRD is missing or belongs to another product.",
    ("kind",),
    source=_CLUSTER,
)
CONDITION = FamilySpec(
    "gpuledger_operator_monitor_condition",
    "gauge",
    "Condition of a resource: 1 for True, 0 for False; absent while it is Unknown.",
    ("kind", "name", "condition"),
    source=_LOOP,
)
OBJECTS = FamilySpec(
    "gpuledger_operator_objects",
    "gauge",
    "Existing objects that the operator created for resources.",
    ("kind",),
    source=_CLUSTER,
)
REQUESTS = FamilySpec(
    "gpuledger_operator_api_requests_total",
    "counter",
    "Responses of the API server, without those of watches.",
    ("method", "code"),
    source=_LOOP,
)
RECONCILES = FamilySpec(
    "gpuledger_operator_reconciles_total",
    "counter",
    "Reconciliations of resources by result: success, refused (the resource is invalid or rejected), error.",
    ("result",),
    source=_LOOP,
)


def _total(name: str, about: str, unit: str = "") -> FamilySpec:
    kind: MetricType = "counter"
    return FamilySpec(f"gpuledger_operator_{name}_total", kind, about, (), unit, _LOOP)


SECONDS = _total("reconcile_seconds", "Duration of all reconciliations, including waits.", "seconds")
APPLIED = _total("objects_applied", "Objects that were created or changed.")
REPAIRED = _total("objects_repaired", "Objects that were restored after a change by another client.")
PRUNED = _total("objects_pruned", "Objects that were deleted because no resource needs them any more.")
STATUSES = _total("status_writes", "Writes of the status of a resource.")
EVENTS = _total("events", "Kubernetes events that were posted about resources.")
WATCHED = _total("watch_events", "Changes that watches of the API server reported.")
_TOTALS: Final = (SECONDS, APPLIED, REPAIRED, PRUNED, STATUSES, EVENTS, WATCHED)

SPECS: Final = (BUILD, LEADING, SERVED, CONDITION, OBJECTS, REQUESTS, RECONCILES, *_TOTALS)


@dataclass(frozen=True, slots=True)
class OperatorView:
    """A snapshot of the operator. `conditions` are True, False or Unknown by kind, name and type."""

    counts: OperatorCounts
    leading: bool = False
    served: dict[str, bool] = field(default_factory=dict)
    conditions: dict[tuple[str, str, str], str] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)


def operator_families(view: OperatorView) -> Iterator[Family]:
    """All families, in the order of `SPECS`."""
    yield single_sample_family(BUILD, 1.0, __version__)
    yield single_sample_family(LEADING, float(view.leading))
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
    yield single_sample_family(SECONDS, counts.reconcile_seconds)
    yield single_sample_family(APPLIED, counts.applied)
    yield single_sample_family(REPAIRED, counts.repaired)
    yield single_sample_family(PRUNED, counts.pruned)
    yield single_sample_family(STATUSES, counts.status_writes)
    yield single_sample_family(EVENTS, counts.events)
    yield single_sample_family(WATCHED, counts.watched)
