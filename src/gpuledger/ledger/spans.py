"""Spans: consecutive intervals of a Gpu with the same residents and method, summed per account.

Pure. Energy is whole millijoules, wall times are unix seconds, resident times are microseconds.

Spans are cut at each full hour of unix time. An interval that straddles the hour is cut in two by time: of
every account the first part gets its exact share rounded to the nearest millijoule, the second the rest,
which is the largest remainder of two parts; so every account sums to what was posted. Nobody knows when
within an interval of over an hour its energy was used (only unobserved ones are that long): it is not cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.gpu_book import Posted
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model.process import ProcessKey
from gpuledger.model.session import UNOBSERVED

_MICRO = 1_000_000


@dataclass(slots=True)
class Share:
    """What one Session had of a Span: millijoules, microseconds resident, engine time as in `Residence`."""

    millijoules: int = 0
    resident: int = 0
    work: int = 0


@dataclass(slots=True)
class Span:
    """Energy of one Gpu over a stretch of time, by account; `shares` by Session number.

    `life` is the epoch of the counter, None for integrated power. `floors` are the last ones reckoned with.
    `stored` belongs to the store.
    """

    number: int
    uuid: str
    life: int | None
    method: str
    begins: float
    ends: float
    residents: tuple[int, ...]
    idle: int = 0
    unattributed: int = 0
    unobserved: int = 0
    floors: Floors = field(default_factory=Floors)
    shares: dict[int, Share] = field(default_factory=dict)
    stored: bool = False

    @property
    def hour(self) -> int:
        """The hour (of unix time) in whose books it is: that of its beginning.

        What was noticed after more than an hour is in that of its end: an hour that was reported stays.
        """
        return _hour(self.ends if _is_long(self.begins, self.ends) else self.begins)

    @property
    def millijoules(self) -> int:
        """Sum over all accounts."""
        own = self.idle + self.unattributed + self.unobserved
        return own + sum(share.millijoules for share in self.shares.values())

    def take(self, later: Span) -> None:
        """Add a later span of the same hour, with the same residents and method."""
        self.ends = later.ends
        self.idle += later.idle
        self.unattributed += later.unattributed
        self.unobserved += later.unobserved
        for session, share in later.shares.items():
            mine = self.shares[session]
            mine.millijoules += share.millijoules
            mine.resident += share.resident
            mine.work += share.work


@dataclass(frozen=True, slots=True)
class _Part:
    """One piece of a Posted: it has the stretch [`since`, `until`) of `length` microseconds."""

    begins: float
    ends: float
    since: int
    until: int
    length: int

    @property
    def whole(self) -> bool:
        """Whether it is the Posted itself."""
        return not self.since and self.until == self.length

    def of(self, amount: int) -> int:
        """Its share of an amount that is spread evenly over time; over all pieces they sum to it."""
        if self.whole:
            return amount
        return _up_to(amount, self.until, self.length) - _up_to(amount, self.since, self.length)

    def overlap(self, begins: int, ends: int) -> int:
        """Microseconds of a stay that lie in it; the last piece has what clocks that differ leave over."""
        ends = ends if self.until == self.length else min(ends, self.until)
        return max(ends - max(begins, self.since), 0)


def _up_to(amount: int, at: int, length: int) -> int:
    return (2 * amount * at + length) // (2 * length)


class SpanBook:
    """The open Span of each Gpu. Used by the tick thread alone; a Span that is no longer open is final."""

    def __init__(self, first: int = 1) -> None:
        self._open: dict[str, Span] = {}
        self._next = first

    def resume(self, following: int) -> None:
        """Number new Spans from `following`."""
        self._next = following

    def forget_open(self) -> None:
        """Begin new Spans from now on."""
        self._open.clear()

    def post(self, posted: Posted, life: int, number_of: Callable[[ProcessKey], int]) -> list[Span]:
        """Take in one interval of the epoch `life`; answers the Spans that got a part of it."""
        booked = posted.booked
        if not (booked.delta or posted.unobserved or posted.residents):
            return []
        numbers = tuple(number_of(resident.key) for resident in posted.residents)
        method = UNOBSERVED if posted.unobserved else booked.method
        kind = (None if posted.integrated else life, method, numbers)
        return [self._add(posted, part, kind) for part in _parts(posted.begins, posted.ends)]

    def _add(self, posted: Posted, part: _Part, kind: tuple[int | None, str, tuple[int, ...]]) -> Span:
        span = self._open.get(posted.gpu.uuid)
        if span is None or not _continues(span, part, kind):
            life, method, numbers = kind
            span = Span(self._next, posted.gpu.uuid, life, method, part.begins, part.ends, numbers)
            span.shares = {number: Share() for number in numbers}
            self._next += 1
            self._open[posted.gpu.uuid] = span
        booked = posted.booked
        span.ends = part.ends
        span.idle += part.of(booked.idle)
        span.unattributed += part.of(booked.unattributed)
        span.unobserved += part.of(posted.unobserved)
        span.floors = posted.floors
        processes = booked.processes
        if part.whole:
            for number, resident in zip(span.residents, posted.residents, strict=True):
                share = span.shares[number]
                share.millijoules += processes.get(resident.key, 0)
                share.resident += resident.ends - resident.begins
                share.work += resident.work
            return span
        for number, resident in zip(span.residents, posted.residents, strict=True):
            share = span.shares[number]
            share.millijoules += part.of(processes.get(resident.key, 0))
            share.resident += part.overlap(resident.begins, resident.ends)
            share.work += part.of(resident.work)
        return span


def _continues(span: Span, part: _Part, kind: tuple[int | None, str, tuple[int, ...]]) -> bool:
    same = (span.life, span.method, span.residents) == kind and span.ends == part.begins
    if _is_long(span.begins, span.ends) or _is_long(part.begins, part.ends):
        return False
    return same and _hour(span.begins) == _hour(part.begins)


def _parts(begins: float, ends: float) -> list[_Part]:
    length = round((ends - begins) * _MICRO)
    hour = (_hour(begins) + 1) * HOUR
    # A wall clock that was set back makes the end the earlier one: then there is nothing to cut either.
    if hour >= ends or _is_long(begins, ends):
        return [_Part(begins, ends, 0, max(length, 1), max(length, 1))]
    cut = round((hour - begins) * _MICRO)
    return [_Part(begins, float(hour), 0, cut, length), _Part(float(hour), ends, cut, length, length)]


def _is_long(begins: float, ends: float) -> bool:
    return ends - begins > HOUR


def _hour(unix: float) -> int:
    return int(unix // HOUR)
