"""The Journal of changes that are not stored yet, and the store's interface to the Ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import NamedTuple, Protocol

from gpuledger.ledger.allocation_times import AllocationPeriod
from gpuledger.ledger.energy.counter import EnergyCounter
from gpuledger.ledger.energy.floor import QuietPower
from gpuledger.ledger.exported_counters import ExportedCounter, Labels
from gpuledger.ledger.ownership import Ownership
from gpuledger.ledger.sessions import OpenSession
from gpuledger.ledger.spans import Span
from gpuledger.ledger.time.span import TimeSpan
from gpuledger.ledger.time.stored import StoredGpuTime
from gpuledger.ledger.usage.host_usage import HostPeriod, HostRecorder
from gpuledger.ledger.usage.usage_cell import UsageCell
from gpuledger.ledger.usage.usage_period import UsagePeriod
from gpuledger.ledger.usage.usage_recorder import UsageRecorder
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import XidRow
from gpuledger.model.snapshot import CollectorRun
from gpuledger.model.workload import Workload


class StoredSeries(NamedTuple):
    """One exported counter. `process` is set for a row of the energy dialect, None for other series.

    `amount` and `measured` are as in `ExportedCounter`. `age` is seconds since it began; `lasting` marks a
    Gpu's own account, which does not end.
    """

    number: int
    labels: Labels
    process: GpuProcess | None
    age: float
    lasting: bool
    amount: int
    measured: int


class StoredOwner(NamedTuple):
    """The owner of a running process, None while unknown; once known, `process` holds its frozen labels."""

    process: GpuProcess
    age: float
    owner: Workload | None
    resolved: bool
    waiting: Mapping[str, int]
    methods: tuple[str, ...]


class GpuEntry(NamedTuple):
    """The energy ledger of one Gpu.

    `total` is all millijoules since the ledger was created, `base` the total when exported counters last
    began at 0, `closed` the energy of series that have ended since then.
    """

    uuid: str
    counter: EnergyCounter
    last_unix: float | None
    total: int
    base: int
    closed: int


class StoredGpu(NamedTuple):
    """What is stored of one Gpu. `floors` are those without and with residents, by driver version."""

    entry: GpuEntry
    floors: Mapping[str, tuple[QuietPower, QuietPower]]
    series: tuple[StoredSeries, ...] = ()
    owners: tuple[StoredOwner, ...] = ()

    def from_zero(self) -> StoredGpu:
        """The same accounts with exported counters that begin at 0."""
        return StoredGpu(self.entry._replace(base=self.entry.total, closed=0), self.floors)


class GpuTimeEntry(NamedTuple):
    """The time ledger of one Gpu.

    `time` is the state in which `posted` are all microseconds in spans; `span` is the number of the newest of
    them that the store has, of `span_length` microseconds, None if there is none. `base` is what was posted
    when exported counters (by `basis`) last began at 0, `closed` the time of series that have ended since
    then. `first` and `last` are the unix microseconds of the first and the last sight, None if there is none.
    """

    time: StoredGpuTime
    basis: str
    span: int | None
    span_length: int
    base: int
    closed: int
    first: int | None = None
    last: int | None = None


@dataclass(slots=True)
class TimeOwner:
    """An owner in splits that has no Session, on the Device of this uuid.

    `number` is its key in the store, `split` the number of the last split with it.
    """

    number: int
    device: str
    owner: Workload
    command: str
    split: int


@dataclass(frozen=True)
class StoredTimes:
    """What is stored of the time books. `parts` are numbers of parts of Gpus by their text.

    `unnamed` are owners of which the name can still arrive. `next_*` are the first unused numbers.
    """

    gpus: Mapping[str, GpuTimeEntry] = field(default_factory=dict)
    series: Mapping[str, Sequence[StoredSeries]] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    unnamed: Sequence[TimeOwner] = ()
    next_span: int = 1
    next_split: int = 1
    next_owner: int = 1


@dataclass(frozen=True)
class StoredUsage:
    """The presences of owners on Devices that continue; `next_period` is the first unused number."""

    periods: tuple[UsagePeriod, ...] = ()
    next_period: int = 1


@dataclass(frozen=True)
class StoredHosts:
    """The cgroups of owners, the newest last: those that continue, and the last ones that ended.

    `next_period` is the first unused number.
    """

    periods: tuple[HostPeriod, ...] = ()
    next_period: int = 1


@dataclass(frozen=True)
class StoredLedger:
    """Everything stored, at source time `elapsed` and wall time `unix` of the last commit.

    `next_*` are the first unused numbers. `xids` are the kept Xids, oldest first, each with the number of the
    Session of its process.
    """

    gpus: Mapping[str, StoredGpu] = field(default_factory=dict)
    times: StoredTimes = field(default_factory=StoredTimes)
    sessions: tuple[OpenSession, ...] = ()
    allocations: tuple[AllocationPeriod, ...] = ()
    elapsed: float = 0.0
    unix: float = 0.0
    next_session: int = 1
    next_span: int = 1
    next_series: int = 1
    next_allocation: int = 1
    xids: tuple[tuple[XidRow, int | None], ...] = ()
    next_xid: int = 1
    # Seconds for which new series were exported as 0; 0 if that is not known.
    hold: float = 0.0
    usage: StoredUsage = field(default_factory=StoredUsage)
    hosts: StoredHosts = field(default_factory=StoredHosts)


OWNERS, ROWS, TIME = "owner", "row", "time"
# Limits while the store is unavailable: beyond them, Spans are folded and the Sessions that ended first are
# discarded.
_MAX_SPANS = 20_000
_MAX_SESSIONS = 20_000
# Cells of usage, of which the oldest are discarded.
_MAX_CELLS = 10_000


class EpochEntry(NamedTuple):
    """An ended epoch of a Gpu's counter: `counter` is its last state, `unix` when the end was noticed."""

    uuid: str
    counter: EnergyCounter
    unix: float


class SeriesEntry(NamedTuple):
    """One exported counter; `process` provides the labels of a row."""

    book: str
    labels: Labels
    counter: ExportedCounter
    process: GpuProcess | None


@dataclass(slots=True)
class JournalTimeSpan:
    """A time span, and the number and the text of its split in the store."""

    span: TimeSpan
    split: int
    text: str
    stored: bool = False


@dataclass(slots=True)
class Journal:
    """Changes collected tick by tick, written in one commit and then cleared. It grows while commits fail.

    Objects are written as they are at the commit. `floors` is by Gpu uuid, driver version, with or without
    residents, day and step. `forgotten` is millijoules of deleted Spans, by Gpu uuid and epoch number.
    `ended_owners` are processes of which the owner row is to be deleted. `shift` is added to times that an
    earlier run stored on its source's clock. `splits`, `time_owners` and `gpu_parts` are new or changed rows
    of the time books, `usage_cells` changed cells by quarter and number of the period, `session_sums`
    Sessions with changed sums of memory and activity, `device_memory` bytes by Device uuid, `xids` changed
    rows with the number of a Session, `lost_time` the microseconds of spans that a damaged file had, by Gpu
    uuid, and `activity_from` the unix seconds until which it had the seconds of unknown activity. `lost`
    counts Sessions that were discarded because the store was unavailable for too long.
    """

    elapsed: float = 0.0
    unix: float = 0.0
    devices: dict[str, Device] = field(default_factory=dict)
    gpus: dict[str, GpuEntry] = field(default_factory=dict)
    epochs: list[EpochEntry] = field(default_factory=list)
    floors: dict[tuple[str, str, bool, int, int], float] = field(default_factory=dict)
    sessions: dict[int, OpenSession] = field(default_factory=dict)
    allocations: dict[int, AllocationPeriod] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    series: dict[int, SeriesEntry] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    owners: dict[ProcessKey, Ownership] = field(default_factory=dict)
    ended_owners: dict[ProcessKey, None] = field(default_factory=dict)
    time_spans: dict[int, JournalTimeSpan] = field(default_factory=dict)
    splits: dict[int, str] = field(default_factory=dict)
    time_owners: dict[int, TimeOwner] = field(default_factory=dict)
    gpu_parts: dict[str, int] = field(default_factory=dict)
    gpu_times: dict[str, GpuTimeEntry] = field(default_factory=dict)
    lost_time: dict[str, int] = field(default_factory=dict)
    xids: dict[int, tuple[XidRow, int | None]] = field(default_factory=dict)
    usage_periods: dict[int, UsagePeriod] = field(default_factory=dict)
    usage_cells: dict[tuple[int, int], UsageCell] = field(default_factory=dict)
    session_sums: dict[int, OpenSession] = field(default_factory=dict)
    device_memory: dict[str, int] = field(default_factory=dict)
    host_periods: dict[int, HostPeriod] = field(default_factory=dict)
    activity_from: float | None = None
    # Seconds for which new series are exported as 0.
    hold: float = 0.0
    next_series: int = 1
    shift: float = 0.0
    forgotten: dict[tuple[str, int], int] = field(default_factory=dict)
    lost: int = 0
    # Whether the cells of usage and the sums of Sessions are to be written with the next commit.
    is_usage_due: bool = False

    @property
    def has_left(self) -> bool:
        """Whether the last commit left out what is not written at each tick."""
        return bool(self.usage_cells or self.session_sums)

    def add_sessions(self, sessions: Iterable[OpenSession]) -> None:
        """Add the Sessions that changed."""
        for session in sessions:
            if session.changed:
                session.changed = False
                self.sessions[session.number] = session
        self.session_sums |= self.sessions
        if len(self.sessions) > _MAX_SESSIONS:
            ended = sorted(number for number, session in self.sessions.items() if session.ended is not None)
            for number in ended[: len(self.sessions) - _MAX_SESSIONS * 9 // 10]:
                del self.sessions[number]
                self.lost += 1

    def add_allocations(self, allocations: Iterable[AllocationPeriod]) -> None:
        """Add the allocations that changed."""
        for allocation in allocations:
            if allocation.changed:
                allocation.changed = False
                self.allocations[allocation.number] = allocation
        while len(self.allocations) > _MAX_SESSIONS:
            del self.allocations[next(iter(self.allocations))]

    def add_usage(self, usage: UsageRecorder, hosts: HostRecorder) -> None:
        """Add the changes of what owners used."""
        self.is_usage_due = self.is_usage_due or usage.is_due
        periods, cells, memory = usage.take_changed()
        for period in periods:
            self.usage_periods[period.number] = period
        for key, cell in cells.items():
            before = self.usage_cells.get(key)
            if before is not None and before is not cell:
                # The clock was set back, and the first cell of this quarter is not stored yet.
                cell.add(before)
                cell.is_loaded = before.is_loaded
            self.usage_cells[key] = cell
        while len(self.usage_cells) > _MAX_CELLS:
            del self.usage_cells[next(iter(self.usage_cells))]
        self.device_memory |= memory
        for host in hosts.take_changed():
            self.host_periods[host.number] = host

    def add_series(
        self, book: str, labels: Labels, counter: ExportedCounter, process: GpuProcess | None
    ) -> None:
        """Add a series that is new, was renamed or got energy."""
        if not counter.number:
            counter.number = self.next_series
            self.next_series += 1
        self.series[counter.number] = SeriesEntry(book, labels, counter, process)

    def drop_series(self, ended: Mapping[int, bool]) -> None:
        """Drop ended series, by number; delete the rows of those that were stored."""
        for number, stored in ended.items():
            self.series.pop(number, None)
            if stored:
                self.dropped.add(number)

    def end_owner(self, key: ProcessKey, *, stored: bool) -> None:
        """Drop the owner of an ended process; delete its row if it was stored."""
        self.owners.pop(key, None)
        if stored:
            self.ended_owners[key] = None

    def add_span(self, span: Span) -> None:
        """Add a Span that is new or got energy."""
        self.spans[span.number] = span
        if len(self.spans) > _MAX_SPANS:
            self._fold()

    def _fold(self) -> None:
        """Sum the older half of the Spans to limit memory.

        First sum Spans of a quarter with the same residents and method, which changes no report. If that is
        not enough, sum all Spans of a quarter per Gpu and epoch, so that the books still balance; reports
        then lose the shares of the processes, but their Sessions keep them.
        """
        numbers = sorted(number for number, span in self.spans.items() if not span.stored)
        # The newest Span of each Gpu may still grow: if it were folded, its energy would be added twice.
        newest = set({self.spans[number].uuid: number for number in numbers}.values())
        older = [self.spans[number] for number in numbers[: len(numbers) // 2] if number not in newest]
        together: dict[tuple[object, ...], Span] = {}
        for span in older:
            first = together.setdefault(
                (span.uuid, span.epoch_number, span.quarter, span.method, span.residents), span
            )
            if first is not span:
                first.add(span)
                del self.spans[span.number]
        if len(together) > len(older) // 2:
            self._fold_quarters(list(together.values()))

    def _fold_quarters(self, spans: Iterable[Span]) -> None:
        kept: dict[tuple[str, int | None, int], Span] = {}
        for span in spans:
            first = kept.setdefault((span.uuid, span.epoch_number, span.quarter), span)
            if first is not span:
                first.ends = span.ends
                first.unattributed += span.millijoules
                del self.spans[span.number]
            else:
                total = span.millijoules
                span.shares, span.residents, span.method = {}, (), "folded"
                span.idle = span.unobserved = 0
                span.unattributed = total

    def mark_stored(self) -> None:
        """Mark all entries as stored and clear the journal."""
        for session in self.sessions.values():
            session.stored, session.renamed = True, False
            session.held.unsaved.clear()
            session.unknown.unsaved.clear()
            session.stretch.unsaved.clear()
        for allocation in self.allocations.values():
            allocation.stored = True
            allocation.unused.unsaved.clear()
            allocation.unread.unsaved.clear()
        for span in self.spans.values():
            span.stored = True
        for one in self.time_spans.values():
            one.stored = True
        for entry in self.series.values():
            entry.counter.renamed, entry.counter.stored = False, True
        for owner in self.owners.values():
            owner.stored = True
        self.shift, self.activity_from = 0.0, None
        for name in _COLLECTIONS:
            if self.is_usage_due or name not in ("usage_cells", "session_sums"):
                getattr(self, name).clear()
        self.is_usage_due = False


_COLLECTIONS = tuple(item.name for item in fields(Journal) if item.default_factory is not MISSING)


class LedgerStore(Protocol):
    """Stores the Ledger across restarts. Used only by the tick thread."""

    @property
    def stored_ledger(self) -> StoredLedger:
        """The ledger that an earlier run stored."""

    @property
    def was_replaced(self) -> bool:
        """True after the file had to be replaced: the next journal must then hold everything."""

    def save(self, journal: Journal) -> tuple[CollectorRun, bool]:
        """Write the journal in one commit and clear it. File errors do not raise.

        Return the result, and whether the current exported values may be shown: only if a later run will
        either continue them or know that it cannot.
        """
