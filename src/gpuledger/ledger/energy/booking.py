"""Apportions the energy of one interval to accounts: the floor, the rest, and the method (rules 3 to 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import lcm

from gpuledger.ledger.energy.evidence import Evidence, is_activity
from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.residence import WORK_UNIT, Residence
from gpuledger.ledger.energy.shares import part_sizes, round_shares
from gpuledger.model.devices import Device
from gpuledger.model.process import ProcessKey

MEASURED = "measured"
ACTIVITY = "activity"
SLICES = "slices"
EQUAL = "equal"
# Activity by other evidence than the driver's samples: engine time of DRM clients, which includes waiting in
# a queue; compute units of ROCm processes that were in use at each reading.
ENGINE_TIME = "engine_time"
OCCUPANCY = "occupancy"
INTEGRATED = "integrated"


class EnergyPolicy(Enum):
    """Whether energy that one process did not use alone is split or left unattributed."""

    APPORTIONED = "apportioned"
    MEASURED = "measured"


# An account within one Gpu and interval: the rank of a process, or one of the Gpu's own two accounts.
_Target = int
_IDLE: _Target = -2
_UNATTRIBUTED: _Target = -1

_NANO = 1_000_000


@dataclass(slots=True)
class EnergySplit:
    """Exact nanojoules by account, and the method on which the split is based.

    Shares are grouped by denominator, so that adding them is integer addition: a `Fraction` would compute
    common divisors at each step, for every process and tick.
    """

    parts: dict[int, dict[_Target, int]] = field(default_factory=dict)
    basis: str = EQUAL

    def add(self, target: _Target, nanojoules: int, divided_by: int = 1) -> None:
        """Add nanojoules to an account."""
        if nanojoules:
            part = self.parts.get(divided_by)
            if part is None:
                part = self.parts[divided_by] = {}
            part[target] = part.get(target, 0) + nanojoules

    def add_scaled(self, other: EnergySplit, times: int, divided_by: int) -> None:
        """Add the shares of another split, multiplied by `times / divided_by`."""
        for denominator, shares in other.parts.items():
            for target, nanojoules in shares.items():
                self.add(target, nanojoules * times, denominator * divided_by)

    def shares(self) -> tuple[dict[_Target, int], int]:
        """All shares over one denominator, and that denominator."""
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
class BookedInterval:
    """A booked interval. `processes` maps process keys to whole millijoules; all accounts sum to `delta`."""

    delta: int
    method: str
    idle: int
    unattributed: int
    processes: Mapping[ProcessKey, int]


def apportion(
    evidence: Evidence,
    delta: int,
    residents: Sequence[Residence],
    floors: Floors,
    *,
    integrated: bool = False,
    policy: EnergyPolicy = EnergyPolicy.APPORTIONED,
) -> BookedInterval:
    """Apportion `delta` millijoules of an interval.

    `integrated`: the energy is an integral of power, not a counter difference, and is therefore never
    measured.
    """
    active = is_active(evidence, residents)
    parts = set(evidence.instances)
    computing = [one for one in residents if not one.draws and (not parts or one.process.device in parts)]
    # Known only from a record or sample of the whole Gpu: the Instance is unknown.
    has_unplaced = bool(parts) and any(one.process.device not in parts for one in residents)
    split = EnergySplit()
    floor = _split_floor(split, evidence, computing, floors, delta * _NANO)
    rest = delta * _NANO - floor
    if rest:
        _split_rest(split, evidence, computing, residents, rest, active=active or has_unplaced)
    shares, denominator = split.shares()
    rounded = round_shares(delta, shares, _NANO * denominator)
    is_measured = _is_measured(evidence, computing, residents, rounded)
    method = split.basis if not is_measured else INTEGRATED if integrated else MEASURED
    if policy is EnergyPolicy.MEASURED and method != MEASURED:
        return BookedInterval(delta, method, 0, delta, {})
    return BookedInterval(
        delta,
        method,
        rounded.get(_IDLE, 0),
        rounded.get(_UNATTRIBUTED, 0),
        {one.key: rounded[one.rank] for one in residents if rounded.get(one.rank)},
    )


def is_active(evidence: Evidence, residents: Iterable[Residence]) -> bool:
    """Return whether the Gpu was active at any time in the interval, as far as reported (rule 5)."""
    if evidence.busy:
        return True
    drawing = frozenset(one.process.pid for one in residents if one.draws)
    return any(is_activity(sample, drawing) for sample in evidence.samples)


def _is_measured(
    evidence: Evidence,
    computing: Sequence[Residence],
    residents: Sequence[Residence],
    rounded: Mapping[_Target, int],
) -> bool:
    """Return whether the interval needed no split (rule 6), or had no residents and is entirely idle.

    Under MIG the driver reports no samples, so an interval with residents is never measured. Nor is one with
    samples on another basis: their sources do not show every process of the Gpu.
    """
    if rounded.get(_UNATTRIBUTED):
        return False
    if not residents:
        return True
    if not evidence.samples_readable or evidence.basis:
        return False
    return len(residents) == len(computing) == 1 and computing[0].certain


def _split_floor(
    split: EnergySplit, evidence: Evidence, computing: Sequence[Residence], floors: Floors, most: int
) -> int:
    """Charge the floor for each part of the interval; return the nanojoules charged, at most `most`."""
    empty, resident = floors.pair
    charged = EnergySplit()
    total = 0
    for begins, ends, present in _segments(evidence.length, computing):
        span = ends - begins
        total += span * (resident if present else empty)
        if evidence.instances:
            _split_mig_floor(charged, evidence, present, span * empty, span * (resident - empty))
        elif present:
            _split_equally(charged, present, span * resident)
        else:
            charged.add(_IDLE, span * empty)
    if total <= most:
        split.add_scaled(charged, 1, 1)
    else:
        split.add_scaled(charged, most, total)
    return min(total, most)


def _segments(length: int, computing: Sequence[Residence]) -> Iterable[tuple[int, int, list[Residence]]]:
    """Cut the interval wherever a process begins or ends."""
    cuts = sorted({0, length, *(one.begins for one in computing), *(one.ends for one in computing)})
    for begins, ends in pairwise(cuts):
        yield begins, ends, [one for one in computing if one.begins <= begins and one.ends >= ends]


def _split_equally(
    split: EnergySplit, present: Sequence[Residence], nanojoules: int, divided_by: int = 1
) -> None:
    for one in present:
        split.add(one.rank, nanojoules, divided_by * len(present))


def _split_mig_floor(
    split: EnergySplit, evidence: Evidence, present: Sequence[Residence], empty: int, rise: int
) -> None:
    """MIG: the empty floor by SM over all SMs; the rise above it by SM over Instances with residents."""
    by_part = _group_by_part(present)
    sms, gpu_sms = part_sizes(evidence.gpu, evidence.instances)
    total_sms = max(gpu_sms, sum(sms.values()))
    occupied = sum(sms[part] for part in sms if part in by_part)
    for part, size in sms.items():
        if part in by_part:
            _split_equally(split, by_part[part], empty * size, total_sms)
            _split_equally(split, by_part[part], rise * size, occupied)
    split.add(_IDLE, empty * (total_sms - occupied), total_sms)


def _group_by_part(residents: Iterable[Residence]) -> Mapping[Device, list[Residence]]:
    by_part: dict[Device, list[Residence]] = defaultdict(list)
    for one in residents:
        by_part[one.process.device].append(one)
    return by_part


def _split_rest(
    split: EnergySplit,
    evidence: Evidence,
    computing: Sequence[Residence],
    residents: Sequence[Residence],
    rest: int,
    *,
    active: bool,
) -> None:
    if evidence.instances:
        _split_mig_rest(split, evidence, computing, rest, active=active)
        return
    unseen = round(evidence.unseen * WORK_UNIT)
    work = sum(one.work for one in residents) + unseen
    if work:
        split.basis = evidence.basis or ACTIVITY
        for one in residents:
            split.add(one.rank, rest * one.work, work)
        if unseen:
            split.add(_UNATTRIBUTED, rest * unseen, work)
    elif computing and not (active and evidence.samples_readable):
        _split_by_time(split, computing, rest)
    else:
        split.basis = ACTIVITY if active else EQUAL
        split.add(_UNATTRIBUTED if active else _IDLE, rest)


def _split_by_time(
    split: EnergySplit, computing: Sequence[Residence], nanojoules: int, divided_by: int = 1
) -> None:
    """Split by resident time; equally if no process was resident for any time."""
    total = sum(one.ends - one.begins for one in computing)
    for one in computing:
        if total:
            split.add(one.rank, nanojoules * (one.ends - one.begins), divided_by * total)
        else:
            split.add(one.rank, nanojoules, divided_by * len(computing))


def _split_mig_rest(
    split: EnergySplit, evidence: Evidence, computing: Sequence[Residence], rest: int, *, active: bool
) -> None:
    by_part = _group_by_part(computing)
    sms, _ = part_sizes(evidence.gpu, evidence.instances)
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
            _split_by_time(split, by_part[part], rest * weight, total)
        else:
            split.add(_UNATTRIBUTED, rest * weight, total)
