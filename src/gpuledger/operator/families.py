"""Metric families of the operator: leadership, conditions of resources, requests and changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.model.family import Family, FamilySpec, declare_family, single_sample_family

if TYPE_CHECKING:
    # `gpuledger metrics` imports this module without the packages of the extra `cluster`.
    from gpuledger.operator.counts import OperatorCounts

_LOOP: Final = "reconcile loop"
_CLUSTER: Final = "API server"


def _spec(name: str, about: str, *labels: str, source: str = _LOOP) -> FamilySpec:
    return declare_family(f"gpuledger_operator_{name}", about, labels, source)


BUILD = _spec("build_info", "1, with the version of the operator.", "version")
LEADING = _spec("leading", "1 if this operator is the leader, otherwise 0.", source="Lease")
SERVED = _spec(
    "served",
    "1 if resources of this kind are reconciled; 0 if the CRD is missing or belongs to another product.",
    "kind",
    source=_CLUSTER,
)
CONDITION = _spec(
    "monitor_condition",
    "Condition of a resource: 1 for True, 0 for False; absent while it is Unknown.",
    *("kind", "name", "condition"),
)
OBJECTS = _spec(
    "objects", "Existing objects that the operator created for resources.", "kind", source=_CLUSTER
)
REQUESTS = _spec(
    "api_requests_total", "Responses of the API server, without those of watches.", *("method", "code")
)
RECONCILES = _spec(
    "reconciles_total",
    "Reconciliations of resources by result: success, refused (the resource is invalid or rejected), error.",
    "result",
)
# By attribute of OperatorCounts.
_TOTALS: Final = {
    attribute: _spec(f"{name}_total", about)
    for attribute, name, about in (
        ("reconcile_seconds", "reconcile_seconds", "Duration of all reconciliations, including waits."),
        ("applied", "objects_applied", "Objects that were created or changed."),
        ("repaired", "objects_repaired", "Objects that were restored after a change by another client."),
        ("pruned", "objects_pruned", "Objects that were deleted because no resource needs them any more."),
        ("status_writes", "status_writes", "Writes of the status of a resource."),
        ("events", "events", "Kubernetes events that were posted about resources."),
        ("watched", "watch_events", "Changes that watches of the API server reported."),
    )
}
SPECS: Final = (BUILD, LEADING, SERVED, CONDITION, OBJECTS, REQUESTS, RECONCILES, *_TOTALS.values())


@dataclass(frozen=True, slots=True)
class OperatorView:
    """A snapshot of the operator. `conditions` are True, False or Unknown by kind, name and type."""

    counts: OperatorCounts
    leading: bool = False
    served: dict[str, bool] = field(default_factory=dict)
    conditions: dict[tuple[str, ...], str] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)


def operator_families(view: OperatorView) -> Iterator[Family]:
    """All families, in the order of `SPECS`."""
    counts = view.counts
    values = {"True": 1.0, "False": 0.0}
    yield single_sample_family(BUILD, 1.0, __version__)
    yield single_sample_family(LEADING, float(view.leading))
    yield Family(SERVED, {(kind,): float(served) for kind, served in view.served.items()})
    known = {labels: status for labels, status in view.conditions.items() if status in values}
    yield Family(CONDITION, {labels: values[status] for labels, status in known.items()})
    yield Family(OBJECTS, {(kind,): number for kind, number in view.objects.items()})
    yield Family(REQUESTS, {**counts.requests})
    results = ("success", "refused", "error")
    yield Family(RECONCILES, {(result,): counts.reconciles[result] for result in results})
    for attribute, spec in _TOTALS.items():
        yield single_sample_family(spec, getattr(counts, attribute))
