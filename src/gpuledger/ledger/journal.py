"""What is in the books but not in the store yet, and what a store is to the Ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpuledger.ledger.allocation_times import Handover
from gpuledger.ledger.energy.counter import Counter
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.held_series import Held, Labels
from gpuledger.ledger.ownership import Ownership
from gpuledger.ledger.sessions import OpenSession
from gpuledger.ledger.spans import Span
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import Collected
from gpuledger.model.workload import Workload


@dataclass(frozen=True, slots=True)
class KeptSeries:
    """One told counter. `process` stands behind a row of the energy dialect, None for an owner's series.

    `age` is seconds since it was born, `lasting` marks a Gpu's own account, which does not end.
    """

    number: int
    labels: Labels
    process: GpuProcess | None
    age: float
    lasting: bool
    millijoules: int
    measured: int


@dataclass(frozen=True, slots=True)
class KeptOwner:
    """A living process's owner, None while it is not known; then `process` holds the labels as they froze."""

    process: GpuProcess
    age: float
    owner: Workload | None
    resolved: bool
    waiting: Mapping[str, int]
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptGpu:
    """One Gpu's books. `total` is all millijoules since they were opened, `base` what was in them when the
    exported counters last began at 0, `closed` what ended series had since then. `floors` are those without
    and with residents, by version of the driver.
    """

    uuid: str
    counter: Counter
    floors: Mapping[str, tuple[QuietPower, QuietPower]]
    last_unix: float | None
    total: int
    base: int
    closed: int
    series: tuple[KeptSeries, ...] = ()
    owners: tuple[KeptOwner, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """Everything, at source time `elapsed` and wall time `unix` of the last commit.

    What begins with `following` are the first numbers not used yet.
    """

    gpus: Mapping[str, KeptGpu] = field(default_factory=dict)
    sessions: tuple[OpenSession, ...] = ()
    handovers: tuple[Handover, ...] = ()
    elapsed: float = 0.0
    unix: float = 0.0
    following_session: int = 1
    following_span: int = 1
    following_series: int = 1
    following_handover: int = 1


NOTHING = Kept()


OWNERS, ROWS = "owner", "row"
# A store that is away for days must not fill the memory: beyond this, Spans are folded and the Sessions that
# ended first are let go.
_MOST_SPANS = 20_000
_MOST_SESSIONS = 20_000


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One Gpu's books now; see `KeptGpu`."""

    uuid: str
    counter: Counter
    last_unix: float | None
    total: int
    base: int
    closed: int


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A life of a Gpu's counter that is over: `counter` is its last state, `unix` when it was noticed."""

    uuid: str
    counter: Counter
    unix: float


class SeriesEntry(NamedTuple):
    """One told counter; `process` stands behind a row."""

    book: str
    labels: Labels
    held: Held
    process: GpuProcess | None


@dataclass(slots=True)
class Journal:
    """Gathered tick by tick, written in one commit, then cleared. A failed commit leaves it to grow.

    Objects are written as they are at the commit. `floors` is by Gpu uuid, driver version, resident or not,
    day and step. `forgotten` is millijoules, by Gpu uuid and life of its counter, whose Spans are no more.
    `shift` is what to add to times that an earlier run stored on its source's clock. `lost` counts Sessions
    let go because the store was away for too long.
    """

    elapsed: float = 0.0
    unix: float = 0.0
    devices: dict[str, Device] = field(default_factory=dict)
    gpus: dict[str, GpuEntry] = field(default_factory=dict)
    epochs: list[EpochEntry] = field(default_factory=list)
    floors: dict[tuple[str, str, bool, int, int], float] = field(default_factory=dict)
    sessions: dict[int, OpenSession] = field(default_factory=dict)
    handovers: dict[int, Handover] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    series: dict[int, SeriesEntry] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    owners: dict[ProcessKey, Ownership] = field(default_factory=dict)
    left: dict[ProcessKey, None] = field(default_factory=dict)
    next_series: int = 1
    shift: float = 0.0
    forgotten: dict[tuple[str, int], int] = field(default_factory=dict)
    lost: int = 0

    def take_sessions(self, sessions: Iterable[OpenSession]) -> None:
        """Those that changed."""
        for one in sessions:
            if one.changed:
                one.changed = False
                self.sessions[one.number] = one
        if len(self.sessions) > _MOST_SESSIONS:
            ended = sorted(number for number, one in self.sessions.items() if one.ended is not None)
            for number in ended[: len(self.sessions) - _MOST_SESSIONS * 9 // 10]:
                del self.sessions[number]
                self.lost += 1

    def take_handovers(self, handovers: Iterable[Handover]) -> None:
        """Those that changed."""
        for one in handovers:
            if one.changed:
                one.changed = False
                self.handovers[one.number] = one
        while len(self.handovers) > _MOST_SESSIONS:
            del self.handovers[next(iter(self.handovers))]

    def take_series(self, book: str, labels: Labels, held: Held, process: GpuProcess | None) -> None:
        """A series that was born, renamed or got joules."""
        if not held.number:
            held.number = self.next_series
            self.next_series += 1
        self.series[held.number] = SeriesEntry(book, labels, held, process)

    def drop_series(self, ended: Mapping[int, bool]) -> None:
        """Series that have ended, by number; those that never were stored leave no trace."""
        for number, stored in ended.items():
            self.series.pop(number, None)
            if stored:
                self.dropped.add(number)

    def leave(self, key: ProcessKey, *, stored: bool) -> None:
        """A process whose owner is no longer waited for."""
        self.owners.pop(key, None)
        if stored:
            self.left[key] = None

    def take_span(self, span: Span) -> None:
        """A Span that got something."""
        self.spans[span.number] = span
        if len(self.spans) > _MOST_SPANS:
            self._fold()

    def _fold(self) -> None:
        """Sum the older half of the Spans: first those of an hour with the same residents and method, which
        costs no report anything; if that is not enough, all of an hour per Gpu and epoch, so that the books
        go on to balance. Then whose the energy was is lost to the report, not to the Sessions, which have it.
        """
        numbers = sorted(number for number, span in self.spans.items() if not span.stored)
        # The newest of each Gpu may still go on: folded, it would come back with all that it had.
        newest = set({self.spans[number].uuid: number for number in numbers}.values())
        older = [self.spans[number] for number in numbers[: len(numbers) // 2] if number not in newest]
        together: dict[tuple[object, ...], Span] = {}
        for span in older:
            first = together.setdefault((span.uuid, span.life, span.hour, span.method, span.residents), span)
            if first is not span:
                first.take(span)
                del self.spans[span.number]
        if len(together) > len(older) // 2:
            self._fold_hours(list(together.values()))

    def _fold_hours(self, spans: Iterable[Span]) -> None:
        kept: dict[tuple[str, int | None, int], Span] = {}
        for span in spans:
            first = kept.setdefault((span.uuid, span.life, span.hour), span)
            if first is not span:
                first.ends = span.ends
                first.unattributed += span.millijoules
                del self.spans[span.number]
            else:
                total = span.millijoules
                span.shares, span.residents, span.method = {}, (), "folded"
                span.idle = span.unobserved = 0
                span.unattributed = total

    def stored(self) -> None:
        """Everything in it is in the store now."""
        for session in self.sessions.values():
            session.stored, session.renamed = True, False
            session.held.unsaved.clear()
            session.stay.over.clear()
        for handover in self.handovers.values():
            handover.stored = True
            handover.unused.unsaved.clear()
        for span in self.spans.values():
            span.stored = True
        for entry in self.series.values():
            entry.held.renamed, entry.held.stored = False, True
        for owner in self.owners.values():
            owner.stored = True
        self.shift = 0.0
        for part in (self.devices, self.gpus, self.epochs, self.floors, self.sessions, self.spans):
            part.clear()
        for other in (self.series, self.dropped, self.owners, self.left, self.forgotten, self.handovers):
            other.clear()


class Books(Protocol):
    """Where the Ledger is kept over restarts. Used by the tick thread alone."""

    @property
    def kept(self) -> Kept:
        """What an earlier run left."""

    @property
    def began_anew(self) -> bool:
        """True after the file had to be replaced: then the next journal must hold everything."""

    def save(self, journal: Journal) -> tuple[Collected, bool]:
        """Write and clear the journal in one commit. Never raises for trouble with the file.

        Answers how it went, and whether what is exported now may be shown: a later run must either go on from
        it or know that it cannot.
        """
