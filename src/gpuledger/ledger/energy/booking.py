"""One interval's millijoules onto accounts: floor, rest, and by which method (DESIGN 5, rules 3 to 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import lcm

from gpuledger.ledger.energy.evidence import Evidence, is_activity
from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.energy.shares import profile_slices, slices_of, whole
from gpuledger.model.devices import Device, Instance
from gpuledger.model.process import ProcessKey

MEASURED = "measured"
ACTIVITY = "activity"
SLICES = "slices"
EQUAL = "equal"
INTEGRATED = "integrated"


class Policy(Enum):
    """Whether energy that is not one process's alone is split, or left unattributed."""

    APPORTIONED = "apportioned"
    MEASURED = "measured"


# An account within one Gpu and interval: a process by its rank, and before all of them the Gpu's own two.
_Target = int
_IDLE: _Target = -2
_UNATTRIBUTED: _Target = -1

_NANO = 1_000_000


@dataclass(slots=True)
class Split:
    """Exact nanojoules by account, and on what the split rests.

    Shares are kept by denominator, so that adding to them is adding integers: a `Fraction` would look for
    common divisors at each step, and this is done for every process at every tick.
    """

    parts: dict[int, dict[_Target, int]] = field(default_factory=dict)
    basis: str = EQUAL

    def add(self, target: _Target, nanojoules: int, divided_by: int = 1) -> None:
        """Give an account its part."""
        if nanojoules:
            part = self.parts.get(divided_by)
            if part is None:
                part = self.parts[divided_by] = {}
            part[target] = part.get(target, 0) + nanojoules

    def take(self, other: Split, times: int, divided_by: int) -> None:
        """Give every account what it has in the other one, so many times."""
        for denominator, shares in other.parts.items():
            for target, nanojoules in shares.items():
                self.add(target, nanojoules * times, denominator * divided_by)

    def shares(self) -> tuple[dict[_Target, int], int]:
        """Everything over one denominator, and this denominator."""
        if len(self.parts) == 1:
            ((denominator, shares),) = self.parts.items()
            return shares, denominator
        common = lcm(*self.parts)
        total: dict[_Target, int] = {}
        for denominator, shares in self.parts.items():
            times = common // denominator
            for target, nanojoules in shares.items():
                total[target] = total.get(target, 0) + nanojoules * times
        return total, common


@dataclass(frozen=True, slots=True)
class Booked:
    """An interval in the books. `processes` maps identities to whole millijoules; all sum to `delta`."""

    delta: int
    method: str
    idle: int
    unattributed: int
    processes: Mapping[ProcessKey, int]


def book(
    evidence: Evidence,
    length: int,
    delta: int,
    everybody: Sequence[Residence],
    floors: Floors,
    *,
    integrated: bool = False,
    policy: Policy = Policy.APPORTIONED,
) -> Booked:
    """Apportion `delta` millijoules of an interval of `length` microseconds.

    `integrated` says that the energy itself is an integral of power and no counter's: never measured.
    """
    active = is_active(evidence, everybody)
    parts = set(evidence.instances)
    tenants = [one for one in everybody if not one.draws and (not parts or one.process.device in parts)]
    # Known by a record or a sample of the whole Gpu alone: on which Instance it was, nobody can say.
    strays = bool(parts) and any(one.process.device not in parts for one in everybody)
    split = Split()
    floor = _floor(split, evidence, length, tenants, floors, delta * _NANO)
    rest = delta * _NANO - floor
    if rest:
        _rest(split, evidence, tenants, everybody, rest, active=active or strays)
    shares, denominator = split.shares()
    rounded = whole(delta, shares, _NANO * denominator)
    lone = _is_measured(evidence, tenants, everybody, rounded)
    method = split.basis if not lone else INTEGRATED if integrated else MEASURED
    if policy is Policy.MEASURED and method != MEASURED:
        return Booked(delta, method, 0, delta, {})
    return Booked(
        delta,
        method,
        rounded.get(_IDLE, 0),
        rounded.get(_UNATTRIBUTED, 0),
        {one.key: rounded[one.rank] for one in everybody if rounded.get(one.rank)},
    )


def is_active(evidence: Evidence, everybody: Iterable[Residence]) -> bool:
    """Whether the Gpu worked at any time in the interval, as far as the driver tells (rule 5)."""
    if evidence.busy:
        return True
    drawing = frozenset(one.process.pid for one in everybody if one.draws)
    return any(is_activity(sample, drawing) for sample in evidence.samples)


def _is_measured(
    evidence: Evidence,
    tenants: Sequence[Residence],
    everybody: Sequence[Residence],
    rounded: Mapping[_Target, int],
) -> bool:
    """Rule 6; and an interval with nobody at all in it, all of it idle, was not split either.

    Under MIG the driver tells no samples, so nothing that somebody was on is measured.
    """
    if rounded.get(_UNATTRIBUTED):
        return False
    if not everybody:
        return True
    if not evidence.samples_readable:
        return False
    return len(everybody) == len(tenants) == 1 and tenants[0].certain


def _floor(
    split: Split,
    evidence: Evidence,
    length: int,
    tenants: Sequence[Residence],
    floors: Floors,
    most: int,
) -> int:
    """Charge the floor second by second; answers the nanojoules charged, `most` at most."""
    empty, resident = floors.pair
    charged = Split()
    total = 0
    for begins, ends, present in _segments(length, tenants):
        span = ends - begins
        total += span * (resident if present else empty)
        if evidence.instances:
            _floor_of_parts(charged, evidence, span, present, empty, resident)
        elif present:
            _equally(charged, present, span * resident)
        else:
            charged.add(_IDLE, span * empty)
    if total <= most:
        split.take(charged, 1, 1)
    else:
        split.take(charged, most, total)
    return min(total, most)


def _segments(length: int, tenants: Sequence[Residence]) -> Iterable[tuple[int, int, list[Residence]]]:
    """The interval cut wherever somebody comes or goes."""
    cuts = sorted({0, length, *(one.begins for one in tenants), *(one.ends for one in tenants)})
    for begins, ends in pairwise(cuts):
        yield begins, ends, [one for one in tenants if one.begins <= begins and one.ends >= ends]


def _equally(split: Split, present: Sequence[Residence], nanojoules: int, divided_by: int = 1) -> None:
    for one in present:
        split.add(one.rank, nanojoules, divided_by * len(present))


def _floor_of_parts(
    split: Split,
    evidence: Evidence,
    span: int,
    present: Sequence[Residence],
    empty: int,
    resident: int,
) -> None:
    """MIG: the empty floor by SM over all SMs, the rise over it by SM over parts with residents."""
    by_part: dict[Device, list[Residence]] = defaultdict(list)
    for one in present:
        by_part[one.process.device].append(one)
    sms = part_sizes(evidence)
    everything = max(_whole(evidence), sum(sms.values()))
    taken = sum(sms[part] for part in sms if part in by_part)
    for part, size in sms.items():
        if part in by_part:
            _equally(split, by_part[part], span * empty * size, everything)
            _equally(split, by_part[part], span * (resident - empty) * size, taken)
    split.add(_IDLE, span * empty * (everything - taken), everything)


def part_sizes(evidence: Evidence) -> dict[Instance, int]:
    """Multiprocessors by Instance; where the driver does not say, the slices of its profile (`3g` is 3)."""
    if _are_counted(evidence):
        return {part: part.sm_count or 0 for part in evidence.instances}
    return {part: profile_slices(part.profile) for part in evidence.instances}


def _are_counted(evidence: Evidence) -> bool:
    return all(part.sm_count for part in evidence.instances)


def _whole(evidence: Evidence) -> int:
    """All that the Gpu has of what `part_sizes` tells, 0 where it does not tell."""
    if _are_counted(evidence):
        return evidence.gpu.sm_count or 0
    return slices_of(evidence.gpu)


def _rest(
    split: Split,
    evidence: Evidence,
    tenants: Sequence[Residence],
    everybody: Sequence[Residence],
    rest: int,
    *,
    active: bool,
) -> None:
    if evidence.instances:
        _rest_of_parts(split, evidence, tenants, rest, active=active)
        return
    work = sum(one.work for one in everybody)
    if work:
        split.basis = ACTIVITY
        for one in everybody:
            split.add(one.rank, rest * one.work, work)
    elif tenants and not (active and evidence.samples_readable):
        _by_time(split, tenants, rest)
    else:
        split.basis = ACTIVITY if active else EQUAL
        split.add(_UNATTRIBUTED if active else _IDLE, rest)


def _by_time(split: Split, tenants: Sequence[Residence], nanojoules: int, divided_by: int = 1) -> None:
    """Equally by resident time; equally by head where nobody was resident for any time at all."""
    total = sum(one.ends - one.begins for one in tenants)
    for one in tenants:
        if total:
            split.add(one.rank, nanojoules * (one.ends - one.begins), divided_by * total)
        else:
            split.add(one.rank, nanojoules, divided_by * len(tenants))


def _rest_of_parts(
    split: Split, evidence: Evidence, tenants: Sequence[Residence], rest: int, *, active: bool
) -> None:
    by_part: dict[Device, list[Residence]] = defaultdict(list)
    for one in tenants:
        by_part[one.process.device].append(one)
    sms = part_sizes(evidence)
    weights = {
        part: round((evidence.activity or {}).get(part, 0.0) * 1_000_000) * size for part, size in sms.items()
    }
    if any(weights.values()):
        split.basis = ACTIVITY
    else:
        weights = {part: size for part, size in sms.items() if part in by_part}
        split.basis = SLICES
    total = sum(weights.values())
    if not total:
        split.add(_UNATTRIBUTED if active else _IDLE, rest)
        return
    for part, weight in weights.items():
        if part in by_part:
            _by_time(split, by_part[part], rest * weight, total)
        else:
            split.add(_UNATTRIBUTED, rest * weight, total)
