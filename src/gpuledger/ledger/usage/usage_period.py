"""The presence of one owner on one Device, and the sums of its processes at one tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.ledger.sessions import RATIO, OpenSession
from gpuledger.ledger.time.account import container_of, owner_key
from gpuledger.ledger.usage.usage_cell import UsageCell
from gpuledger.model.devices import Device
from gpuledger.model.workload import PENDING_NAMES, Workload

# Whether the first activity of a presence was seen: it is awaited, was seen, or can have happened while
# nothing was observed.
STARTS = WAITING, STARTED, UNKNOWN_START = "waiting", "started", "unknown"

UsageKey = tuple[str, ...]


def usage_key(owner: Workload) -> UsageKey:
    """The identity of an owner on a Device: a container of a pod, a job, a container, a unit or a user."""
    return (*owner_key(owner), container_of(owner))


@dataclass(slots=True, eq=False)
class UsagePeriod:
    """One presence: the Device is allocated to the owner, or has processes of it, without a long absence.

    `begins` is unix seconds, `wait` the microseconds so far in which no engine was busy for it. `seen_at` is
    the last sight on the source's clock, `read` the number of that reading of the Device. `unthrottled` is
    the time seen since the counters of throttling were last read.
    """

    number: int
    device: Device
    owner: Workload
    begins: float
    seen_at: float
    key: UsageKey = ()
    start: str = WAITING
    wait: int = 0
    over: bool = False
    read: int = -1
    unthrottled: int = 0
    cell: UsageCell | None = None

    @property
    def awaits_name(self) -> bool:
        """Whether a name can still arrive that changes the identity of the owner."""
        owner = self.owner
        return owner.missing in PENDING_NAMES or owner.user.isdigit() or owner.has_sluid

    def cell_of(self, tick: Tick) -> UsageCell:
        """The cell of the quarter in which a tick begins."""
        cell, unix = self.cell, tick.unix
        if cell is None or cell.quarter != tick.quarter:
            begins = unix if self.read < 0 else tick.begins
            cell = self.cell = UsageCell(tick.quarter, begins, unix)
        if cell.ends < unix:
            cell.ends = unix
        return cell


@dataclass(slots=True)
class Tick:
    """One tick: its length (microseconds, milliseconds), begin and end (unix seconds).

    The last four are those of one Device after the other.
    `quarter` and `bar` (the minute in it) are those of the begin, `read` is the number of the reading. `busy`
    is the Device's own utilization in ten-thousandths, None if it is not reported, `moved` the bytes that its
    Gpu moved in the order of `BYTES`. `owners` is the number of owners on the Device.
    """

    microseconds: int
    milliseconds: int
    begins: float
    unix: float
    elapsed: float
    quarter: int
    bar: int
    read: int = 0
    busy: int | None = None
    moved: tuple[int | None, ...] = ()
    owners: int = 0


@dataclass(slots=True)
class TickSums:
    """The processes of one presence at one tick.

    `memory` (bytes) and `share` (SM, in ten-thousandths) are of all processes, None as soon as one does not
    report it; `old_memory` and `old_share` of the `old` ones that were there at the tick before, to which the
    time counts.
    `active` is whether an engine was busy for one of them, None if that is not known. `is_owner` is False
    while all processes only serve others or draw.
    """

    period: UsagePeriod
    is_allocated: bool = False
    is_owner: bool = False
    processes: int = 0
    old: int = 0
    memory: int | None = 0
    old_memory: int = 0
    share: int | None = 0
    old_share: int = 0
    active: bool | None = False

    def add_session(self, session: OpenSession, *, is_old: bool, is_passive: bool) -> None:
        """Add a process. `is_passive`: it only serves others or draws: its activity is not its own."""
        self.processes += 1
        self.old += is_old
        memory, share = session.process.memory, session.process.usage.sm
        if memory is None:
            self.memory = None
        else:
            if is_old:
                self.old_memory += memory
            if self.memory is not None:
                self.memory += memory
        if share is None:
            self.share = None
        else:
            part = round(share * RATIO)
            if is_old:
                self.old_share += part
            if self.share is not None:
                self.share += part
        if is_passive:
            return
        self.is_owner = True
        if session.is_active:
            self.active = True
        elif session.is_active is None and self.active is False:
            self.active = None

    def add_old_sessions(self, sessions: Sequence[OpenSession]) -> None:
        """Add processes that were all there at the reading before, and of which none is passive.

        Does the same as `add_session` for each, in a fraction of the time: most ticks change nothing.
        """
        memory, share, is_active, is_unknown = 0, 0.0, False, False
        for session in sessions:
            process = session.process
            used, part = process.memory, process.usage.sm
            if used is None or part is None:
                for one in sessions:
                    self.add_session(one, is_old=True, is_passive=False)
                return
            memory += used
            share += part
            if session.is_active:
                is_active = True
            elif session.is_active is None:
                is_unknown = True
        count, part = len(sessions), round(share * RATIO)
        self.processes += count
        self.old += count
        self.is_owner = True
        self.old_memory += memory
        self.old_share += part
        if self.memory is not None:
            self.memory += memory
        if self.share is not None:
            self.share += part
        if is_active:
            self.active = True
        elif is_unknown and self.active is False:
            self.active = None

    def add_sums(self, other: TickSums) -> None:
        """Add the processes of another presence on the same Device."""
        self.processes += other.processes
        self.old += other.old
        self.old_memory += other.old_memory
        self.old_share += other.old_share
        self.memory = None if self.memory is None or other.memory is None else self.memory + other.memory
        self.share = None if self.share is None or other.share is None else self.share + other.share
        if other.active or (other.active is None and self.active is False):
            self.active = other.active

    def book(self, tick: Tick) -> UsageCell:
        """Add the tick to the cell of the presence; time counts if it was there at the reading before."""
        period = self.period
        cell = period.cell_of(tick)
        is_old = period.read == tick.read - 1
        length, milliseconds = (tick.microseconds, tick.milliseconds) if is_old else (0, 0)
        period.read, period.seen_at = tick.read, tick.elapsed
        period.unthrottled += length
        cell.seen += length
        if self.is_allocated:
            cell.allocated += length
        if tick.owners > 1 or (tick.owners and not (self.is_owner or self.is_allocated)):
            cell.shared += length
        if self.processes:
            self._book_processes(cell, length, milliseconds)
        if self.active:
            if self.old:
                cell.active += length
        elif self.active is False:
            cell.inactive += length
        if tick.busy is not None:
            cell.busy += tick.busy * length
            cell.busy_known += length
        if tick.moved and is_old:
            _add_moved(cell, tick.moved)
        if period.start is WAITING:
            self._await_start(cell, length)
        if length:
            share = self._bar_share(tick)
            if share is not None:
                cell.bars.add(tick.bar, share * length, length)
        return cell

    def _book_processes(self, cell: UsageCell, length: int, milliseconds: int) -> None:
        if not self.old:
            length = milliseconds = 0
        cell.resident += length
        if self.share is not None:
            cell.sm += self.old_share * length
            cell.sm_known += length
            share = min(self.share, RATIO)
            if cell.sm_peak is None or share > cell.sm_peak:
                cell.sm_peak = share
        if self.memory is not None:
            cell.memory += self.old_memory * milliseconds
            cell.memory_known += milliseconds
            if cell.memory_peak is None or self.memory > cell.memory_peak:
                cell.memory_peak = self.memory

    def _bar_share(self, tick: Tick) -> int | None:
        """The utilization for the picture: of its processes, else the Device's if nobody else has it."""
        if not self.old:
            return 0 if self.active is False else None
        if self.share is not None:
            return min(self.old_share, RATIO)
        return tick.busy if tick.owners <= 1 else None

    def _await_start(self, cell: UsageCell, length: int) -> None:
        period = self.period
        if self.active is False:
            period.wait += length
            return
        if self.active is None:
            period.start = UNKNOWN_START
        else:
            period.start = STARTED
            cell.starts += 1
            cell.waited += period.wait


def _add_moved(cell: UsageCell, moved: tuple[int | None, ...]) -> None:
    pcie_tx, pcie_rx, nvlink_tx, nvlink_rx = moved
    if pcie_tx is not None:
        cell.pcie_tx = (cell.pcie_tx or 0) + pcie_tx
    if pcie_rx is not None:
        cell.pcie_rx = (cell.pcie_rx or 0) + pcie_rx
    if nvlink_tx is not None:
        cell.nvlink_tx = (cell.nvlink_tx or 0) + nvlink_tx
    if nvlink_rx is not None:
        cell.nvlink_rx = (cell.nvlink_rx or 0) + nvlink_rx
