"""Spans: consecutive intervals of a Gpu with the same residents and method, summed per account.

Pure. Energy is whole millijoules, wall times are unix seconds, resident times are microseconds.

Spans are cut at each quarter of an hour of unix time. An interval that straddles a cut is cut in parts by
time: at each cut, the parts of an account until then sum to its exact share, rounded to the nearest
millijoule, so that all parts sum to what was posted. An interval longer than an hour (always unobserved) is
not cut: when its energy was used is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.watched_time import HOUR, MICRO, QUARTER
from gpuledger.model.process import ProcessKey
from gpuledger.model.session import UNOBSERVED


@dataclass(slots=True)
class SessionShare:
    """A Session's part of a Span: millijoules, microseconds resident, and engine time as in `Residence`."""

    millijoules: int = 0
    resident: int = 0
    work: int = 0


@dataclass(slots=True)
class Span:
    """Energy of one Gpu over a stretch of time, by account; `shares` by Session number.

    `epoch_number` is the epoch of the counter, None for integrated power. `floors` are the last ones used.
    `stored` is set by the store.
    """

    number: int
    uuid: str
    epoch_number: int | None
    method: str
    begins: float
    ends: float
    residents: tuple[int, ...]
    idle: int = 0
    unattributed: int = 0
    unobserved: int = 0
    floors: Floors = field(default_factory=Floors)
    shares: dict[int, SessionShare] = field(default_factory=dict)
    stored: bool = False

    @property
    def quarter(self) -> int:
        """The quarter to which the Span belongs (unix seconds // 900): that of its beginning.

        A Span longer than an hour belongs to the quarter of its end, so that quarters already reported do not
        change.
        """
        return _quarter(self.ends if _is_long(self.begins, self.ends) else self.begins)

    @property
    def millijoules(self) -> int:
        """Sum over all accounts."""
        own = self.idle + self.unattributed + self.unobserved
        return own + sum(share.millijoules for share in self.shares.values())

    def add(self, later: Span) -> None:
        """Add a later Span of the same quarter with the same residents and method."""
        self.ends = later.ends
        self.idle += later.idle
        self.unattributed += later.unattributed
        self.unobserved += later.unobserved
        for session, share in later.shares.items():
            own = self.shares[session]
            own.millijoules += share.millijoules
            own.resident += share.resident
            own.work += share.work


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a Posting, for the stretch [`since`, `until`) of its `length` in microseconds."""

    begins: float
    ends: float
    since: int
    until: int
    length: int

    @property
    def whole(self) -> bool:
        """Whether the part is the entire Posting."""
        return not self.since and self.until == self.length

    def portion(self, amount: int) -> int:
        """The portion of an amount spread evenly over time; the portions of all parts sum to it."""
        if self.whole:
            return amount
        return _up_to(amount, self.until, self.length) - _up_to(amount, self.since, self.length)

    def overlap(self, begins: int, ends: int) -> int:
        """Microseconds of a residence within this part; the last part gets the rest if clocks differ."""
        ends = ends if self.until == self.length else min(ends, self.until)
        return max(ends - max(begins, self.since), 0)


def _up_to(amount: int, at: int, length: int) -> int:
    return (2 * amount * at + length) // (2 * length)


class SpanRecorder:
    """The open Span of each Gpu. Used only by the tick thread; a Span that is no longer open is final."""

    def __init__(self) -> None:
        self._open: dict[str, Span] = {}
        self._next = 1

    def resume(self, next_number: int) -> None:
        """Number new Spans from `next_number`."""
        self._next = next_number

    def forget_open(self) -> None:
        """Begin a new Span for each Gpu from now on."""
        self._open.clear()

    def post(self, posted: Posting, epoch_number: int, number_of: Callable[[ProcessKey], int]) -> list[Span]:
        """Add one interval of this epoch; return the Spans that got a part of it."""
        booked = posted.booked
        if not (booked.delta or posted.unobserved or posted.residents):
            return []
        numbers = tuple(number_of(resident.key) for resident in posted.residents)
        method = UNOBSERVED if posted.unobserved else booked.method
        kind = (None if posted.integrated else epoch_number, method, numbers)
        return [self._add(posted, part, kind) for part in _parts(posted.begins, posted.ends)]

    def _add(self, posted: Posting, part: _Part, kind: tuple[int | None, str, tuple[int, ...]]) -> Span:
        span = self._open.get(posted.gpu.uuid)
        if span is None or not _continues(span, part, kind):
            epoch_number, method, numbers = kind
            span = Span(self._next, posted.gpu.uuid, epoch_number, method, part.begins, part.ends, numbers)
            span.shares = {number: SessionShare() for number in numbers}
            self._next += 1
            self._open[posted.gpu.uuid] = span
        booked = posted.booked
        span.ends = part.ends
        span.idle += part.portion(booked.idle)
        span.unattributed += part.portion(booked.unattributed)
        span.unobserved += part.portion(posted.unobserved)
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
            share.millijoules += part.portion(processes.get(resident.key, 0))
            share.resident += part.overlap(resident.begins, resident.ends)
            share.work += part.portion(resident.work)
        return span


def _continues(span: Span, part: _Part, kind: tuple[int | None, str, tuple[int, ...]]) -> bool:
    same = (span.epoch_number, span.method, span.residents) == kind and span.ends == part.begins
    if _is_long(span.begins, span.ends) or _is_long(part.begins, part.ends):
        return False
    return same and _quarter(span.begins) == _quarter(part.begins)


def _parts(begins: float, ends: float) -> list[_Part]:
    length = round((ends - begins) * MICRO)
    # If the wall clock was set back, the end is before the beginning: nothing to cut either.
    if _quarter(begins) == _quarter(ends) or ends < begins or _is_long(begins, ends):
        return [_Part(begins, ends, 0, max(length, 1), max(length, 1))]
    quarters = range(_quarter(begins) + 1, -int(-ends // QUARTER))
    cuts = [(float(quarter * QUARTER), round((quarter * QUARTER - begins) * MICRO)) for quarter in quarters]
    edges = [(begins, 0), *cuts, (ends, length)]
    return [_Part(first, last, since, until, length) for (first, since), (last, until) in pairwise(edges)]


def _is_long(begins: float, ends: float) -> bool:
    return ends - begins > HOUR


def _quarter(unix: float) -> int:
    return int(unix // QUARTER)
