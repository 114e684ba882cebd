"""The part of a Device that each owner keeps from others: the fractions of its Allocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from gpuledger.ledger.time.account import OwnerKey, OwnerNames, container_of
from gpuledger.model.workload import Allocation, Workload

_ONE = Fraction(1)


class AllocatedPart(NamedTuple):
    """The part of a Device that is allocated to one owner, at most 1 together with all others.

    `is_estimate` means that it rests on an unknown fraction. `workloads` are those that it was allocated to,
    by container.
    """

    owner: OwnerKey
    fraction: Fraction
    is_estimate: bool
    workloads: Mapping[str, Workload]


def allocated_parts(allocations: Sequence[Allocation], names: OwnerNames) -> tuple[AllocatedPart, ...]:
    """The parts of the owners that the Device is allocated to; their sum is at most 1.

    One claim or resource of one owner is one Allocation, however many of its containers share it. Unknown
    fractions take equal parts of what the known ones leave; where those leave nothing, each counts as their
    mean. A sum above 1 is scaled to 1. A fraction of 0 keeps nothing from anyone: it is no Allocation.
    """
    merged: dict[tuple[OwnerKey, str], Fraction | None] = {}
    workloads: dict[OwnerKey, dict[str, Workload]] = {}
    for one in allocations:
        if one.fraction == 0:
            continue
        owner = names.key(one.workload)
        workloads.setdefault(owner, {})[container_of(one.workload)] = one.workload
        before = merged.get((owner, one.resource))
        merged[owner, one.resource] = max(
            (fraction for fraction in (before, one.fraction) if fraction is not None), default=None
        )
    known = [fraction for fraction in merged.values() if fraction is not None]
    assumed = _assumed_fraction(known, len(merged) - len(known))
    total = sum((assumed if fraction is None else fraction for fraction in merged.values()), Fraction(0))
    scale = 1 / max(total, _ONE)
    # Scaled by a sum with an unknown fraction in it, even the known ones rest on that.
    all_estimated = total > 1 and len(known) < len(merged)
    return tuple(
        AllocatedPart(
            owner,
            scale * sum((assumed if one is None else one for one in own), Fraction(0)),
            all_estimated or None in own,
            workloads[owner],
        )
        for owner in workloads
        for own in [[fraction for (holder, _), fraction in merged.items() if holder == owner]]
    )


def _assumed_fraction(known: Sequence[Fraction], unknown: int) -> Fraction:
    """What an Allocation of unknown fraction counts as."""
    total = sum(known, Fraction(0))
    if total < 1:
        return (1 - total) / max(unknown, 1)
    return total / len(known)
