"""Sessions: who came, who is still here, what each used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

from gpuledger.ledger.device_states import holds, is_still
from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.energy.counter import LONGEST
from gpuledger.ledger.energy.gpu_book import Posted
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.ownership import not_less
from gpuledger.ledger.watched_time import Marked, Stay, seconds_since
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import SessionRow
from gpuledger.model.snapshot import Reading, Snapshot


@dataclass(slots=True)
class OpenSession:
    """A Session that has not ended: what it used so far. Times are unix seconds, energy millijoules.

    `high` is the upper bound of what it can have used: everything of its Gpu's intervals in which it was
    resident, less what was measured to others. `sm_seconds` is the integral of its SM share over the
    `sm_known` seconds in which the share was told; `held` are the seconds in which it certainly did nothing.
    `watts` is what the last interval booked to it, by its seconds; `watts_at` is when that was posted, on the
    source's clock. `watched` is false until this run has seen it: then an end is inferred, not seen.
    `number` is its name in the store; `changed` and `renamed` say what is not stored yet (`renamed`: who it
    is, too), `stored` whether there is a row at all.
    """

    process: GpuProcess
    first_seen: float
    last_seen: float
    peak_memory: int | None = None
    sm_seconds: float = 0.0
    sm_known: float = 0.0
    sm_most: float | None = None
    held_seconds: float = 0.0
    measured: int = 0
    apportioned: int = 0
    high: int = 0
    number: int = 0
    ended: float | None = None
    watts: float | None = None
    watts_at: float = 0.0
    watched: bool = True
    changed: bool = True
    renamed: bool = True
    stored: bool = False
    held: Marked = field(default_factory=Marked)
    stay: Stay = field(init=False)

    def __post_init__(self) -> None:
        self.stay = Stay(self.first_seen, self.last_seen)

    def see(
        self, process: GpuProcess, unix: float, elapsed: float, seconds: float, *, still: bool = False
    ) -> None:
        """The process is there, `seconds` after the tick before, in which it was or not; `still`: its Device
        did nothing. `elapsed` is the source's clock.
        """
        before = self.process
        if process.workload is not before.workload or process.name is not before.name:
            owner = not_less(before.workload, process.workload)
            if owner is not process.workload:
                process = replace(process, workload=owner)
            self.renamed = self.renamed or _who(process) != _who(before)
        self.process = process
        self.last_seen = unix
        self.stay.go_on(unix, elapsed)
        self.changed = self.watched = True
        if process.memory is not None:
            self.peak_memory = max(self.peak_memory or 0, process.memory)
        share = process.usage.sm
        if share is not None:
            self.sm_seconds += share * seconds
            self.sm_known += seconds
            self.sm_most = share if self.sm_most is None else max(self.sm_most, share)
        if seconds and holds(process, still=still):
            self.held_seconds += seconds
            self.held.mark(unix - seconds, unix)

    def end(self) -> None:
        """It is gone. The exit was seen when the lists before and after it were."""
        self.ended = self.last_seen
        self.changed = True

    def row(self, oldest: float = -inf) -> SessionRow:
        """As people are shown it; without its watts when they were posted before `oldest`."""
        return SessionRow(
            self.number,
            self.process,
            self.first_seen,
            self.last_seen,
            self.peak_memory,
            self.sm_seconds / self.sm_known if self.sm_known else None,
            self.sm_most,
            self.held_seconds,
            self.measured,
            self.apportioned,
            self.high,
            self.watts if self.watts_at >= oldest else None,
        )


def _who(process: GpuProcess) -> tuple[object, ...]:
    return (process.workload, process.command, process.host.executable, process.host.user)


class Sessions:
    """Open Sessions, one per `(device, pid, start)`, and those that ended in the last posting.

    A Session ends when its Device's list was read and the process is not in it, or when the Device is gone
    from a whole Device list (a MIG instance taken apart). A list that failed ends nothing.
    An interval can outlast a process: what is booked late goes to the Session that ended, told in `amended`.
    A process that no list ever had (a ghost) is known by its samples or records, and its Session lasts for as
    long as its Gpu's intervals have it.
    """

    def __init__(self, *, kept: bool = True) -> None:
        """`kept`: what is not in the books yet is handed over to a store, tick by tick."""
        self._kept = kept
        self._open: dict[str, dict[ProcessKey, OpenSession]] = {}
        self._ghosts: dict[ProcessKey, OpenSession] = {}
        self._elapsed: float | None = None
        self._late: dict[ProcessKey, tuple[OpenSession, float]] = {}
        self._next = 1
        self.ended: list[OpenSession] = []
        self.amended: list[OpenSession] = []

    def resume(self, kept: Iterable[OpenSession], following: int) -> None:
        """Go on from what an earlier run left open; new Sessions are numbered from `following`."""
        for one in kept:
            self._open.setdefault(one.process.device.uuid, {})[one.process.key] = one
        self._next = following

    def interrupt(self) -> None:
        """Nobody looks until the next posting: who is gone by then ended unseen, and who is there is not said
        to have gone on as he was.
        """
        self._elapsed = None
        for session in self.open():
            session.watched = False
            session.watts = None
            session.stay.seen_at = None

    def number_of(self, key: ProcessKey) -> int:
        """The number of a process's Session, open or lately ended; KeyError for one that never was here."""
        found = self._open.get(key[0], {}).get(key) or self._ghosts.get(key)
        return self._late[key][0].number if found is None else found.number

    @property
    def by_device(self) -> Mapping[str, Mapping[ProcessKey, OpenSession]]:
        """Open Sessions by Device uuid."""
        return self._open

    def open(self) -> Iterable[OpenSession]:
        """Every open Session."""
        listed = (one for sessions in self._open.values() for one in sessions.values())
        return chain(listed, self._ghosts.values())

    def alive(self) -> dict[ProcessKey, GpuProcess]:
        """The processes of the open Sessions, as last named."""
        return {one.process.key: one.process for one in self.open()}

    def post(self, snapshot: Snapshot, posted: Iterable[Posted] = ()) -> None:
        """Open, carry on and end Sessions by one Snapshot and what was booked with it."""
        seconds = seconds_since(self._elapsed, snapshot.elapsed)
        self._elapsed = snapshot.elapsed
        self.amended = []
        gone: dict[ProcessKey, OpenSession] = {}
        here = set()
        for reading in snapshot.holders:
            here.add(reading.device.uuid)
            if reading.processes is not None:
                self._post_device(reading, reading.processes, snapshot, seconds, gone)
        if not snapshot.devices_failed:
            for uuid in self._open.keys() - here:
                gone |= self._open.pop(uuid)
            there = {reading.device.uuid for reading in snapshot.readings}
            for key in [key for key in self._ghosts if key[0] not in there]:
                gone[key] = self._ghosts.pop(key)
        for one in posted:
            self._book(one, gone)
        for session in gone.values():
            session.end()
        self.ended = list(gone.values())
        self._remember(gone, snapshot.elapsed)

    def _remember(self, gone: Mapping[ProcessKey, OpenSession], now: float) -> None:
        # Oldest first, so that what is no longer needed stands at the beginning.
        for key in [key for key, (_, since) in self._late.items() if now - since > 2 * LONGEST]:
            del self._late[key]
        self._late |= {key: (session, now) for key, session in gone.items()}

    def _post_device(
        self,
        reading: Reading,
        processes: tuple[GpuProcess, ...],
        snapshot: Snapshot,
        seconds: float,
        gone: dict[ProcessKey, OpenSession],
    ) -> None:
        unix, elapsed = snapshot.unix, snapshot.elapsed
        before = self._open.get(reading.device.uuid, {})
        now: dict[ProcessKey, OpenSession] = {}
        still = is_still(reading)
        for process in processes:
            key = process.key
            session = before.pop(key, None)
            if session is None:
                session = self._new(process, unix, unix)
                session.see(process, unix, elapsed, 0.0)
            else:
                session.see(process, unix, elapsed, seconds, still=still)
            if not self._kept:
                session.held.unsaved.clear()
                session.stay.over.clear()
            now[key] = session
        gone |= before
        self._open[reading.device.uuid] = now

    def _book(self, posted: Posted, gone: dict[ProcessKey, OpenSession]) -> None:
        """Joules onto the Sessions that bore them; whoever no list ever had gets a Session by it."""
        measured = posted.booked.method == MEASURED
        seconds = posted.length / 1e6
        if posted.booked.delta:
            present = {resident.key for resident in posted.residents}
            for key in [key for key in self._ghosts if key[0] == posted.gpu.uuid and key not in present]:
                gone[key] = self._ghosts.pop(key)
        for resident in posted.residents:
            session = self._session_of(resident, posted, gone)
            joules = posted.booked.processes.get(resident.key, 0)
            if measured:
                session.measured += joules
            else:
                session.apportioned += joules
            others = sum(posted.booked.processes.values()) - joules if measured else 0
            session.high += posted.booked.delta - others
            session.watts = joules / 1000 / seconds if seconds > 0 else None
            session.watts_at = self._elapsed or 0.0
            session.changed = True

    def _session_of(
        self, resident: Residence, posted: Posted, gone: dict[ProcessKey, OpenSession]
    ) -> OpenSession:
        key = resident.key
        session = self._open.get(key[0], {}).get(key) or gone.get(key)
        if session is not None:
            return session
        begins, ends = posted.begins + resident.begins / 1e6, posted.begins + resident.ends / 1e6
        if key in self._ghosts:
            session = self._ghosts[key]
            session.last_seen = session.stay.ends = max(session.last_seen, ends)
        elif key in self._late:
            session = self._late[key][0]
            self.amended.append(session)
        else:
            session = self._ghosts[key] = self._new(resident.process, begins, ends)
        return session

    def _new(self, process: GpuProcess, first: float, last: float) -> OpenSession:
        session = OpenSession(process, first, last, number=self._next)
        self._next += 1
        return session

    def rows(self) -> tuple[SessionRow, ...]:
        """The open Sessions as values of this posting."""
        oldest = (self._elapsed or 0.0) - LONGEST
        return tuple([one.row(oldest) for one in self.open()])

    def counts(self, snapshot: Snapshot) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Open Sessions per Device uuid: those that compute, those that only draw.

        Devices whose list failed in `snapshot` have no count: what is not known is not told.
        """
        compute: dict[str, int] = {}
        graphics: dict[str, int] = {}
        for reading in snapshot.holders:
            if reading.processes is not None:
                sessions = self._open[reading.device.uuid]
                computing = sum(one.process.computes for one in sessions.values())
                compute[reading.device.uuid] = computing
                graphics[reading.device.uuid] = len(sessions) - computing
        return compute, graphics
