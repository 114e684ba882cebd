"""The intervals of an explanation: energy and GPU time of stretches of time, and similar ones merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import NamedTuple, TypeVar

from gpuledger.ledger.energy.booking import (
    ACTIVITY,
    ENGINE_TIME,
    EQUAL,
    INTEGRATED,
    MEASURED,
    OCCUPANCY,
    SLICES,
)
from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED

_REASONS = {
    MEASURED: "alone on the whole GPU, so it gets all of the counter's energy",
    INTEGRATED: "the GPU has no energy counter, or one that stood still or could not be read: its power was "
    "integrated",
    SLICES: "MIG: the driver reports no utilization per process; split by the instances' multiprocessors",
    ENGINE_TIME: "split by the engine time of the kernel's clients, which includes waiting for a busy engine",
    OCCUPANCY: "ROCm reports no engine time: split by the compute units in use at each reading",
    EQUAL: "no engine time was reported, so it was split by time on the GPU",
    UNATTRIBUTED: "an engine was active, but not for a known process; or energy.policy splits nothing",
    UNOBSERVED: "gpuledger was not reading the GPU, and its counter went on",
}
_OWN_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED)
_PARTLY_IDLE = "no process was there for a part of the time, or on a part of the GPU (MIG)"
_LOST = "the ledger could not be written for a long time: the shares are lost"


class OtherShare(NamedTuple):
    """Another owner or command that was on the Gpu, and the millijoules booked to it."""

    name: str
    millijoules: int


class Interval(NamedTuple):
    """A stretch of time on one Gpu with the same residents and method.

    `method` is the account if one of the Gpu's own accounts is explained.
    Times are unix seconds. `millijoules` are booked to the explained target, `gpu_millijoules` is all that
    the Gpu used; `idle` and `unattributed` of it are in its own accounts. `instance` is `GI_CI` under MIG.
    `exact` is False for an hour without kept detail: the stretch is then some part of the hour. `rate` is the
    price of its energy, None if energy has no price at all.
    """

    begins: float
    ends: float
    gpu: str
    instance: str
    method: str
    millijoules: int
    gpu_millijoules: int
    idle: int = 0
    unattributed: int = 0
    others: tuple[OtherShare, ...] = ()
    exact: bool = True
    rate: Rate | None = None

    @property
    def high(self) -> int | None:
        """The most that the target can have used: all of the Gpu's energy, or its own if it was measured.

        None for the Gpus' own accounts, which have no bounds.
        """
        if self.method in _OWN_ACCOUNTS:
            return None
        return self.millijoules if self.method == MEASURED else self.gpu_millijoules

    @property
    def why(self) -> str:
        """The reason for the method."""
        if self.method == IDLE:
            return _PARTLY_IDLE if self.others else "no process was on the GPU"
        if self.method != ACTIVITY:
            return _REASONS.get(self.method, _LOST)
        if self.instance:
            return "MIG: split by the instances' activity, within an instance by time"
        if self.others:
            return "shared: split by engine time; idle power, if known, split equally"
        return "it began or ended within the interval, or an unlisted process was active"


class OtherTime(NamedTuple):
    """Another owner, or an account of the Gpu, and its part of the time, in microseconds."""

    name: str
    microseconds: int


class TimeInterval(NamedTuple):
    """A stretch of watched time of one Gpu with the same split.

    `microseconds` are those of the target on one part of the Gpu, `watched` are those of the whole Gpu.
    `estimated` microseconds rest on an allocation of unknown fraction. `rate` is the price, None if time has
    no price at all, or this time is not billed. The other fields are as those of `Interval`.
    """

    begins: float
    ends: float
    gpu: str
    instance: str
    microseconds: int
    watched: int
    estimated: int = 0
    others: tuple[OtherTime, ...] = ()
    exact: bool = True
    rate: Rate | None = None


class SpreadLine(NamedTuple):
    """Idle time or energy that the row is charged for, less what others are charged for (price.idle: spread).

    The amounts are microseconds and millijoules of one Gpu at one price.
    """

    rate: Rate
    is_time: bool
    amount: int


def merge_intervals(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Merge consecutive intervals with the same parties, method and price, in the order of their ends."""
    return _merged(intervals, _continues, _joined)


def merge_time_intervals(intervals: Iterable[TimeInterval]) -> Iterator[TimeInterval]:
    """Merge consecutive intervals of a part of a Gpu with the same others, price and exactness."""
    return _merged(intervals, _follows, _joined_time)


AnyInterval = TypeVar("AnyInterval", Interval, TimeInterval)


def _merged(
    intervals: Iterable[AnyInterval],
    continues: Callable[[AnyInterval, AnyInterval], bool],
    join: Callable[[AnyInterval, AnyInterval], AnyInterval],
) -> Iterator[AnyInterval]:
    """Join each interval to the last one of its place if it continues that; they are in order of quarters."""
    newest: dict[tuple[str, str], AnyInterval] = {}
    checked = -inf
    for one in intervals:
        if one.begins >= checked + QUARTER:
            checked = one.begins
            for ended in [place for place, last in newest.items() if last.ends < checked]:
                yield newest.pop(ended)
        place = (one.gpu, one.instance)
        last = newest.get(place)
        if last is not None and continues(last, one):
            newest[place] = join(last, one)
            continue
        if last is not None:
            yield newest.pop(place)
        newest[place] = one
    yield from sorted(newest.values(), key=lambda one: (one.ends, one.begins))


def _continues(before: Interval, one: Interval) -> bool:
    return before.method == one.method and _follows(before, one)


def _follows(before: Interval | TimeInterval, one: Interval | TimeInterval) -> bool:
    """Whether an interval begins where the other one ends, with the same others, price and exactness."""
    same = before.exact == one.exact and before.ends == one.begins and before.rate == one.rate
    return same and {name for name, _ in before.others} == {name for name, _ in one.others}


def _sum_others(before: Interval | TimeInterval, one: Interval | TimeInterval) -> list[tuple[str, int]]:
    """The amounts of both by name."""
    others: Counter[str] = Counter()
    for name, amount in (*before.others, *one.others):
        others[name] += amount
    return sorted(others.items())


def _joined(before: Interval, one: Interval) -> Interval:
    return before._replace(
        ends=one.ends,
        millijoules=before.millijoules + one.millijoules,
        gpu_millijoules=before.gpu_millijoules + one.gpu_millijoules,
        idle=before.idle + one.idle,
        unattributed=before.unattributed + one.unattributed,
        others=tuple(OtherShare(*other) for other in _sum_others(before, one)),
    )


def _joined_time(before: TimeInterval, one: TimeInterval) -> TimeInterval:
    return before._replace(
        ends=one.ends,
        microseconds=before.microseconds + one.microseconds,
        watched=before.watched + one.watched,
        estimated=before.estimated + one.estimated,
        others=tuple(OtherTime(*other) for other in _sum_others(before, one)),
    )
