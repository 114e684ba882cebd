"""The split of a Gpu's second over accounts, by each basis, as exact fractions.

A span of time with the same split is the unit of the time books. `allocation`: what an owner keeps from
others. `residence`: equally over the owners with a process on the Device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import NamedTuple

from gpuledger.ledger.energy.evidence import DESKTOP_SHARE
from gpuledger.ledger.energy.shares import part_sizes, round_parts
from gpuledger.ledger.time.account import (
    DOWN,
    OWNER,
    UNCUT,
    OwnerKey,
    OwnerNames,
    TimeAccount,
    account_order,
    container_of,
)
from gpuledger.ledger.time.fraction import AllocatedPart, allocated_parts
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.workload import Allocation, Workload

# The part of each account, and the owner as it was known, None for the Gpu's own accounts.
_Parts = dict[TimeAccount, tuple[Fraction, Workload | None]]


@dataclass(frozen=True)
class Split:
    """The parts of a Gpu's time by account: `numerators` over `denominator`, which sum to 1.

    `accounts` are in the order in which ties are decided. `owners` are those of the accounts, None for the
    Gpu's own accounts.
    """

    accounts: tuple[TimeAccount, ...]
    numerators: tuple[int, ...]
    denominator: int
    owners: tuple[Workload | None, ...]

    @cached_property
    def _is_even(self) -> bool:
        return len(set(self.numerators)) == 1

    def shares(self, microseconds: int) -> list[int]:
        """Whole microseconds by account that sum to the total: largest remainder, ties by identity."""
        if self._is_even:
            # The usual case: all have the same remainder.
            each, missing = divmod(microseconds, len(self.numerators))
            return [each + 1] * missing + [each] * (len(self.numerators) - missing)
        return largest_remainder(self.numerators, self.denominator, microseconds)


def largest_remainder(numerators: Sequence[int], denominator: int, microseconds: int) -> list[int]:
    """Whole microseconds by part that sum to the total; of equal remainders the first counts."""
    return round_parts(microseconds, [microseconds * numerator for numerator in numerators], denominator)


class DevicePart(NamedTuple):
    """The part of a Gpu that an Instance has, or the multiprocessors that no Instance covers.

    `device` is the uuid. `instance` (`GI_CI`) and `profile` are empty if no Instance covers it.
    """

    device: str
    instance: str
    profile: str
    share: Fraction


class Splits(NamedTuple):
    """The split of the same second by each basis.

    `parts` are those of a Gpu that was cut into Instances; empty if the accounts are of the whole Gpu.
    """

    allocation: Split
    residence: Split
    parts: tuple[DevicePart, ...] = ()


@dataclass(frozen=True)
class GpuFacts:
    """What was known of a Gpu at the beginning of a stretch of time.

    `instances` are its MIG Instances; `is_cut` is also True in MIG mode without any. `allocations` are those
    of the Gpu and its Instances. `complete` is False while a configured source of Allocations does not
    answer: what Allocations leave is then unobserved. `described` are the names and sizes of the Devices:
    these can be read later than their UUIDs, by which alone Devices compare.
    """

    gpu: Gpu
    instances: tuple[Instance, ...] = ()
    is_cut: bool = False
    allocations: tuple[Allocation, ...] = ()
    complete: bool = True
    described: tuple[object, ...] = ()

    @cached_property
    def weights(self) -> Mapping[str, Fraction]:
        """The part of the Gpu that each Instance has, by `GI_CI`, by multiprocessors."""
        sizes, of_gpu = part_sizes(self.gpu, self.instances)
        total = max(of_gpu, sum(sizes.values()))
        return {part.instance: Fraction(size, total) for part, size in sizes.items()}

    @cached_property
    def parts(self) -> tuple[DevicePart, ...]:
        """The parts that the Instances have, and what they leave; empty without MIG."""
        if not self.is_cut and not self.instances:
            return ()
        parts = [
            DevicePart(one.uuid, one.instance, one.profile, self.weights[one.instance])
            for one in self.instances
        ]
        left = 1 - sum((part.share for part in parts), Fraction(0))
        return (*parts, DevicePart(self.gpu.uuid, "", "", left)) if left else tuple(parts)


class Occupancy(NamedTuple):
    """Who was on the Gpu: resident processes, and the Devices (`GI_CI`) with an active engine.

    `residents` is None if the process lists could not be read.
    """

    residents: tuple[GpuProcess, ...] | None = None
    active: frozenset[str] = frozenset()


def split_seconds(facts: GpuFacts, occupancy: Occupancy) -> Splits:
    """Split each second of a stretch in which neither the facts nor the residents change."""
    allocation: _Parts = {}
    residence: _Parts = {}
    covered = Fraction(0)
    whole = [one for one in facts.allocations if isinstance(one.device, Gpu)]
    devices = facts.weights if facts.instances else {} if facts.is_cut else {"": Fraction(1)}
    for instance, weight in devices.items():
        covered += weight
        own = [one for one in facts.allocations if one.device.instance == instance != ""]
        residents = occupancy.residents
        if residents is not None:
            residents = tuple([one for one in residents if one.device.instance == instance])
        device = _Device(instance, [*own, *whole], residents, active=instance in occupancy.active)
        _add(allocation, device.by_allocation(complete=facts.complete), weight)
        _add(residence, device.by_residence(), weight)
    if covered < 1:
        # An Allocation of the whole Gpu has the SMs that no Instance covers, too.
        uncut = _Device("", whole, ())
        _add(allocation, uncut.by_allocation(complete=facts.complete, left=UNCUT), 1 - covered)
        _add(residence, {TimeAccount(UNCUT): (Fraction(1), None)}, 1 - covered)
    by_allocation = _freeze_split(allocation)
    by_residence = by_allocation if allocation == residence else _freeze_split(residence)
    return Splits(by_allocation, by_residence, facts.parts)


def own_account(account: str) -> Splits:
    """All time to one of the Gpu's own accounts."""
    split = Split((TimeAccount(account),), (1,), 1, (None,))
    return Splits(split, split)


ALL_DOWN, ALL_UNOBSERVED = own_account(DOWN), own_account(UNOBSERVED)


def _add(total: _Parts, parts: _Parts, weight: Fraction) -> None:
    for account, (fraction, owner) in parts.items():
        before = total.get(account)
        total[account] = ((before[0] if before else 0) + fraction * weight, owner)


def _freeze_split(parts: _Parts) -> Split:
    accounts = tuple(sorted((account for account, (part, _) in parts.items() if part), key=account_order))
    fractions = [parts[account][0] for account in accounts]
    denominator = lcm(*(part.denominator for part in fractions))
    numerators = tuple(part.numerator * (denominator // part.denominator) for part in fractions)
    return Split(accounts, numerators, denominator, tuple(parts[account][1] for account in accounts))


class _Device:
    """The owners of one Device: to whom it is allocated, and who has a process there."""

    def __init__(
        self,
        instance: str,
        allocations: Sequence[Allocation],
        residents: Sequence[GpuProcess] | None,
        *,
        active: bool = False,
    ) -> None:
        self._instance = instance
        self._active = active
        listed = residents or ()
        self._names = names = OwnerNames(
            [*(one.workload for one in allocations), *(one.workload for one in listed)]
        )
        self._parts = allocated_parts(allocations, names)
        self._is_readable = residents is not None
        # Processes by owner and container.
        self._residents: dict[OwnerKey, dict[str, list[GpuProcess]]] = {}
        self._named: set[OwnerKey] = set()
        having = {part.owner for part in self._parts}
        for process in using_processes(listed, names, having):
            owner = names.key(process.workload)
            here = self._residents.setdefault(owner, {})
            here.setdefault(container_of(process.workload), []).append(process)
            if names.is_named(process.workload):
                self._named.add(owner)

    def by_allocation(self, *, complete: bool, left: str = IDLE) -> _Parts:
        """What each owner keeps from others; the rest in equal parts to owners without an Allocation."""
        found: _Parts = {}
        free = Fraction(1)
        for part in self._parts:
            free -= part.fraction
            self._add_owner(found, part.owner, part.fraction, part)
        if not free:
            return found
        if not complete or not self._is_readable:
            found[TimeAccount(UNOBSERVED, self._instance)] = (free, None)
            return found
        holders = {part.owner for part in self._parts}
        guests = [owner for owner in self._residents if owner not in holders]
        if not holders <= self._residents.keys():
            # A process of an unknown owner may be theirs.
            guests = [owner for owner in guests if owner in self._named]
        for owner in guests:
            self._add_owner(found, owner, free / len(guests))
        if not guests:
            found[self._rest(left)] = (free, None)
        return found

    def by_residence(self) -> _Parts:
        """Equally over the owners with a process on the Device."""
        if not self._is_readable:
            return {TimeAccount(UNOBSERVED, self._instance): (Fraction(1), None)}
        found: _Parts = {}
        for owner in self._residents:
            self._add_owner(found, owner, Fraction(1, len(self._residents)))
        return found or {self._rest(IDLE): (Fraction(1), None)}

    def _rest(self, left: str) -> TimeAccount:
        """The account of what no owner has: nobody is resident, or only processes of unknown owners."""
        return TimeAccount(UNATTRIBUTED if self._active and not self._parts else left, self._instance)

    def _add_owner(
        self, found: _Parts, owner: OwnerKey, fraction: Fraction, allocated: AllocatedPart | None = None
    ) -> None:
        """Equally to the owner's containers with a process, then to processes, else to those allocated to."""
        estimate = allocated is not None and allocated.is_estimate
        running = self._residents.get(owner)
        if running:
            for container, processes in running.items():
                each = fraction / (len(running) * len(processes))
                for process in processes:
                    row = TimeAccount(OWNER, self._instance, owner, container, process.key, estimate)
                    found[row] = (each, self._names.known(process.workload))
        elif allocated is not None:
            for container, workload in allocated.workloads.items():
                row = TimeAccount(OWNER, self._instance, owner, container, None, estimate)
                found[row] = (fraction / len(allocated.workloads), self._names.known(workload))


def using_processes(
    residents: Sequence[GpuProcess], names: OwnerNames, having: Set[OwnerKey]
) -> list[GpuProcess]:
    """Without graphics-only processes, unless they use an engine and nobody else has the Device.

    `having` are the owners to which it is allocated.
    """
    holders = having | {names.key(one.workload) for one in residents if one.computes}
    return [
        one
        for one in residents
        if one.computes or (_is_drawing_busy(one) and holders <= {names.key(one.workload)})
    ]


def _is_drawing_busy(process: GpuProcess) -> bool:
    """Whether a graphics-only process uses an engine for more than a desktop does."""
    usage = process.usage
    engines = (usage.sm, usage.encoder, usage.decoder, usage.jpeg, usage.ofa)
    return max((engine for engine in engines if engine is not None), default=0.0) >= DESKTOP_SHARE
