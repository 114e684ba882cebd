"""One interval's millijoules onto accounts: floor, rest, and by which method (DESIGN 5, rules 3 to 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from itertools import pairwise

from gpuledger.ledger.energy.evidence import Evidence, is_activity
from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.energy.rounding import whole
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


# An account within one Gpu and interval: rank orders idle before unattributed before processes.
Target = tuple[int, tuple[str | int | float, ...]]
IDLE: Target = (0, ())
UNATTRIBUTED: Target = (1, ())

_NANO = 1_000_000

# Compute slices of a Gpu that can be cut (NVIDIA MIG User Guide, supported profiles).
_SLICES = 7
_FEWER_SLICES = (("A30", 4), ("RTX PRO", 4))


@dataclass(slots=True)
class Split:
    """Exact nanojoules by account, and on what the split rests."""

    shares: dict[Target, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    basis: str = EQUAL

    def add(self, target: Target, nanojoules: Fraction | int) -> None:
        """Give an account its part."""
        if nanojoules:
            self.shares[target] += nanojoules


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
    active = evidence.busy or _samples_show_activity(evidence, everybody)
    parts = set(evidence.instances)
    tenants = [one for one in everybody if not one.draws and (not parts or one.process.device in parts)]
    # Known by a record or a sample of the whole Gpu alone: on which Instance it was, nobody can say.
    strays = bool(parts) and any(one.process.device not in parts for one in everybody)
    split = Split()
    floor = _floor(split, evidence, length, tenants, floors, delta * _NANO)
    rest = delta * _NANO - floor
    if rest:
        _rest(split, evidence, tenants, everybody, rest, active=active or strays)
    processes = {_target(one): one.key for one in everybody}
    rounded = whole(delta, split.shares, _NANO)
    lone = _is_measured(evidence, tenants, everybody, rounded)
    method = split.basis if not lone else INTEGRATED if integrated else MEASURED
    if policy is Policy.MEASURED and method != MEASURED:
        return Booked(delta, method, 0, delta, {})
    return Booked(
        delta,
        method,
        rounded.get(IDLE, 0),
        rounded.get(UNATTRIBUTED, 0),
        {key: rounded[target] for target, key in processes.items() if rounded.get(target)},
    )


def _samples_show_activity(evidence: Evidence, everybody: Iterable[Residence]) -> bool:
    drawing = frozenset(one.process.pid for one in everybody if one.draws)
    return any(is_activity(sample, drawing) for sample in evidence.samples)


def _target(one: Residence) -> Target:
    return (2, one.rank)


def _is_measured(
    evidence: Evidence,
    tenants: Sequence[Residence],
    everybody: Sequence[Residence],
    rounded: Mapping[Target, int],
) -> bool:
    """Rule 6; and an interval with nobody at all in it, all of it idle, was not split either.

    Under MIG the driver tells no samples, so nothing that somebody was on is measured.
    """
    if rounded.get(UNATTRIBUTED):
        return False
    if not everybody:
        return True
    if not evidence.samples_readable:
        return False
    return len(everybody) == len(tenants) == 1 and tenants[0].certain


# Floor


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
            _equally(charged, span * resident, present)
        else:
            charged.add(IDLE, span * empty)
    scale = Fraction(1) if total <= most else Fraction(most, total)
    for target, share in charged.shares.items():
        split.add(target, share * scale)
    return min(total, most)


def _segments(length: int, tenants: Sequence[Residence]) -> Iterable[tuple[int, int, list[Residence]]]:
    """The interval cut wherever somebody comes or goes."""
    cuts = sorted({0, length, *(one.begins for one in tenants), *(one.ends for one in tenants)})
    for begins, ends in pairwise(cuts):
        yield begins, ends, [one for one in tenants if one.begins <= begins and one.ends >= ends]


def _equally(split: Split, nanojoules: int | Fraction, present: Sequence[Residence]) -> None:
    each = Fraction(nanojoules) / len(present)
    for one in present:
        split.add(_target(one), each)


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
    left = Fraction(span * empty)
    for part, size in sms.items():
        if part in by_part:
            base = Fraction(span * empty * size, everything)
            rise = Fraction(span * (resident - empty) * size, taken)
            _equally(split, base + rise, by_part[part])
            left -= base
    split.add(IDLE, left)


def part_sizes(evidence: Evidence) -> dict[Instance, int]:
    """Multiprocessors by Instance; where the driver does not say, the slices of its profile (`3g` is 3)."""
    if _are_counted(evidence):
        return {part: part.sm_count or 0 for part in evidence.instances}
    return {part: _slices(part.profile) for part in evidence.instances}


def _are_counted(evidence: Evidence) -> bool:
    return all(part.sm_count for part in evidence.instances)


def _whole(evidence: Evidence) -> int:
    """All that the Gpu has of what `part_sizes` tells, 0 where it does not tell."""
    if _are_counted(evidence):
        return evidence.gpu.sm_count or 0
    return next((slices for name, slices in _FEWER_SLICES if name in evidence.gpu.name), _SLICES)


def _slices(profile: str) -> int:
    for word in profile.split("."):
        if word[:-1].isdigit() and word.endswith(("g", "c")):
            return int(word[:-1])
    return 1


# Rest


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
            split.add(_target(one), Fraction(rest * one.work, work))
    elif tenants and not (active and evidence.samples_readable):
        _by_time(split, rest, tenants)
    else:
        split.basis = ACTIVITY if active else EQUAL
        split.add(UNATTRIBUTED if active else IDLE, rest)


def _by_time(split: Split, nanojoules: int | Fraction, tenants: Sequence[Residence]) -> None:
    """Equally by resident time; equally by head where nobody was resident for any time at all."""
    total = sum(one.ends - one.begins for one in tenants)
    for one in tenants:
        share = Fraction(one.ends - one.begins, total) if total else Fraction(1, len(tenants))
        split.add(_target(one), nanojoules * share)


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
        split.add(UNATTRIBUTED if active else IDLE, rest)
        return
    for part, weight in weights.items():
        share = Fraction(rest * weight, total)
        if part in by_part:
            _by_time(split, share, by_part[part])
        else:
            split.add(UNATTRIBUTED, share)
