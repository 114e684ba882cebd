"""Sessions: when each process came and went, and what it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Final

from gpuledger.ledger.device_states import DeviceActivity
from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.ledger.watched_time import MICRO, MarkedSeconds, WatchedStretch, observed_seconds
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import SessionRow
from gpuledger.model.snapshot import LONGEST_INTERVAL, Reading, Snapshot
from gpuledger.model.workload import Workload, merge_owner

# Memory summed over time is stored in pages of this many bytes, the smallest that drivers allocate: a year of
# the largest GPU then fits into the 64 bits of a table.
PAGE: Final = 4096
# SM shares are counted in ten-thousandths, so that sums over time are whole numbers.
RATIO: Final = 10_000


@dataclass(slots=True)
class OpenSession:
    """The usage of a Session that has not ended. Times are unix seconds, energy is millijoules.

    `high` is the upper bound of its energy: all energy of its Gpu's intervals in which it was resident, less
    what was measured for other processes. `sm_seconds` is the integral of its SM share over the `sm_known`
    seconds in which the share was reported. `held` are the seconds in which it certainly used no engine,
    `unknown` those of which that is not known; in the others, an engine was busy for its owner.
    `memory_sum` is the sum over time of its memory, in bytes times milliseconds, over the `memory_known`
    milliseconds in which it was reported, `active` the microseconds in which an engine was certainly busy for
    it, and `first_active` the end of the first tick of those; None if an earlier version did not keep them.
    `is_active` is that of the last tick.
    `watts` is the energy booked in the last interval divided by its length; `watts_at` is when that was
    posted, on the source's clock. `watched` is False until this run has seen the process: until then an end
    is inferred, not seen. `number` is its key in the store. `changed` and `renamed` mark changes that are not
    stored yet (`renamed`: also of its identity or owner), `stored` says whether a row exists.
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
    memory_sum: int = 0
    memory_known: int = 0
    active: int | None = 0
    first_active: float | None = None
    number: int = 0
    ended: float | None = None
    watts: float | None = None
    watts_at: float = 0.0
    is_active: bool | None = None
    watched: bool = True
    changed: bool = True
    renamed: bool = True
    stored: bool = False
    held: MarkedSeconds = field(default_factory=MarkedSeconds)
    unknown: MarkedSeconds = field(default_factory=MarkedSeconds)
    stretch: WatchedStretch = field(init=False)

    def __post_init__(self) -> None:
        self.stretch = WatchedStretch(self.first_seen, self.last_seen)

    def update(
        self,
        process: GpuProcess,
        unix: float,
        elapsed: float,
        seconds: float,
        activity: DeviceActivity,
        *,
        milliseconds: int = 0,
        serving: bool = False,
    ) -> bool:
        """Add a tick in which the process is present, `seconds` (and `milliseconds`) after the previous tick.

        Returns whether its owner can have changed.

        `activity` is that of its Device. `elapsed` is on the source's clock. `serving`: the process only
        serves others, so that the time is not its own.
        """
        before = self.process
        is_changed = process.workload is not before.workload
        if is_changed or process.name is not before.name:
            owner = merge_owner(before.workload, process.workload)
            if owner is not process.workload:
                process = replace(process, workload=owner)
            self.renamed = self.renamed or _identity(process) != _identity(before)
        self.process = process
        self.last_seen = unix
        seen_at = self.stretch.seen_at
        if serving:
            self.stretch.skip(unix, elapsed)
            begins = unix
        else:
            begins = self.stretch.extend(unix, elapsed)
        self.changed = self.watched = True
        memory = process.memory
        if memory is not None:
            if self.peak_memory is None or memory > self.peak_memory:
                self.peak_memory = memory
            self.memory_sum += memory * milliseconds
            self.memory_known += milliseconds
        share = process.usage.sm
        if share is not None:
            self.sm_seconds += share * seconds
            self.sm_known += seconds
            self.sm_most = share if self.sm_most is None else max(self.sm_most, share)
        is_active = self.is_active = activity.of(process)
        if is_active and self.first_active is None and self.active is not None and not serving:
            self.first_active = unix
        if not seconds or serving:
            return is_changed
        if seen_at is not None and elapsed - seen_at > seconds:
            # The list was not read in between.
            self.unknown.mark(begins, unix - seconds)
            begins = max(begins, unix - seconds)
        if is_active is None:
            self.unknown.mark(begins, unix)
        elif is_active:
            if self.active is not None:
                self.active += 1000 * milliseconds
        elif not is_active:
            self.held_seconds += seconds
            self.held.mark(begins, unix)
        return is_changed

    def end(self) -> None:
        """End the Session. Its exit was seen if the lists before and after it were read."""
        self.ended = self.last_seen
        self.changed = True

    @property
    def known_held_seconds(self) -> float | None:
        """Time resident without engine time; None if nothing shows that activity was known at any time."""
        return self.held_seconds if self.held_seconds or self.sm_known else None

    @property
    def known_active_seconds(self) -> float | None:
        """Time in which an engine was certainly busy for it; None under the same condition, or not kept."""
        if self.active is None or not (self.active or self.held_seconds or self.sm_known):
            return None
        return self.active / MICRO

    def row(self, oldest: float = -inf) -> SessionRow:
        """The Session for display; without watts if they were posted before `oldest`."""
        return SessionRow(
            self.number,
            self.process,
            self.first_seen,
            self.last_seen,
            self.peak_memory,
            self.sm_seconds / self.sm_known if self.sm_known else None,
            self.sm_most,
            self.known_held_seconds,
            self.measured,
            self.apportioned,
            self.high,
            self.watts if self.watts_at >= oldest else None,
            self.memory_sum / self.memory_known if self.memory_known else None,
            self.known_active_seconds,
            self.first_active,
        )


def _identity(process: GpuProcess) -> tuple[object, ...]:
    return (process.workload, process.command, process.host.executable, process.host.user)


class Sessions:
    """Open Sessions, one per `(device, pid, start)`, and those that ended in the last posting.

    A Session ends when its Device's list was read without the process, or when the Device is missing from a
    complete Device list (a destroyed MIG instance). A list that could not be read ends nothing. An interval
    can outlive a process: energy booked afterwards goes to the ended Session, which is then in `amended`. A
    process that was in no list (a ghost) is known from its samples or accounting records; its Session remains
    open while the intervals of its Gpu contain it.
    """

    def __init__(self, *, has_store: bool = True) -> None:
        """With `has_store`, changes are kept until a store takes them, tick by tick."""
        self._has_store = has_store
        self._open: dict[str, dict[ProcessKey, OpenSession]] = {}
        self._ghosts: dict[ProcessKey, OpenSession] = {}
        self._elapsed: float | None = None
        self._serving = self._passive = NO_PROCESSES
        self._late: dict[ProcessKey, tuple[OpenSession, float]] = {}
        self._next = 1
        self.ended: list[OpenSession] = []
        self.amended: list[OpenSession] = []
        # Devices on which a process came, went or perhaps got another owner, until somebody discards them.
        self.unsteady: set[str] = set()

    def resume(self, stored: Iterable[OpenSession], next_number: int) -> None:
        """Continue the Sessions that an earlier run left open; number new ones from `next_number`."""
        for session in stored:
            self._open.setdefault(session.process.device.uuid, {})[session.process.key] = session
        self._next = next_number

    def interrupt(self) -> None:
        """Observation stops until the next posting.

        The end of a process that is gone by then is inferred, and the time until then is not counted.
        """
        self._elapsed = None
        for session in self.open():
            session.watched = False
            session.watts = None
            session.stretch.seen_at = None

    def number_of(self, key: ProcessKey) -> int:
        """The number of a process's Session, open or recently ended; raises KeyError if there is none."""
        found = self._open.get(key[0], {}).get(key) or self._ghosts.get(key)
        return self._late[key][0].number if found is None else found.number

    def owner_of(self, key: ProcessKey) -> Workload | None:
        """The owner of a process with an open Session, with the latest names; None if there is no Session."""
        found = self._open.get(key[0], {}).get(key)
        return None if found is None else found.process.workload

    @property
    def by_device(self) -> Mapping[str, Mapping[ProcessKey, OpenSession]]:
        """Open Sessions by Device uuid."""
        return self._open

    def open(self) -> Iterable[OpenSession]:
        """Every open Session."""
        listed = (one for sessions in self._open.values() for one in sessions.values())
        return chain(listed, self._ghosts.values())

    def alive(self) -> dict[ProcessKey, GpuProcess]:
        """The processes of the open Sessions, with the latest names."""
        return {one.process.key: one.process for one in self.open()}

    def post(
        self,
        snapshot: Snapshot,
        postings: Iterable[Posting] = (),
        serving: frozenset[ProcessKey] = NO_PROCESSES,
        drawing: frozenset[ProcessKey] = NO_PROCESSES,
    ) -> None:
        """Open, update and end Sessions from one Snapshot and the energy booked with it.

        `serving` are processes that serve others, `drawing` those that only draw: their time is not theirs.
        """
        self._serving, self._passive = serving, serving | drawing
        seconds = observed_seconds(self._elapsed, snapshot.elapsed)
        self._elapsed = snapshot.elapsed
        self.amended = []
        gone: dict[ProcessKey, OpenSession] = {}
        here = set()
        for reading in snapshot.process_readings:
            here.add(reading.device.uuid)
            self._post_device(reading, snapshot, seconds, gone)
        for uuid in self._open.keys() - here:
            if all(snapshot.is_gone(session.process.device) for session in self._open[uuid].values()):
                gone |= self._open.pop(uuid)
        there = {reading.device.uuid for reading in snapshot.readings}
        for key, ghost in [one for one in self._ghosts.items() if one[0][0] not in there]:
            if snapshot.is_gone(ghost.process.device):
                gone[key] = self._ghosts.pop(key)
        for posting in postings:
            self._book(posting, gone)
        for session in gone.values():
            session.end()
        self.ended = list(gone.values())
        oldest = snapshot.elapsed - 2 * LONGEST_INTERVAL
        for key in [key for key, (_, since) in self._late.items() if since < oldest]:
            del self._late[key]
        self._late |= {key: (session, snapshot.elapsed) for key, session in gone.items()}

    def _post_device(
        self, reading: Reading, snapshot: Snapshot, seconds: float, gone: dict[ProcessKey, OpenSession]
    ) -> None:
        if reading.processes is None:
            return
        unix, elapsed = snapshot.unix, snapshot.elapsed
        milliseconds = round(seconds * 1000)
        before = self._open.get(reading.device.uuid, {})
        now: dict[ProcessKey, OpenSession] = {}
        activity = DeviceActivity(reading, self._serving)
        is_changed = False
        for process in reading.processes:
            key = process.key
            session = before.pop(key, None)
            if session is None:
                session = self._new(process, unix, unix)
                session.update(process, unix, elapsed, 0.0, activity)
                is_changed = True
            else:
                is_changed |= session.update(
                    process,
                    unix,
                    elapsed,
                    seconds,
                    activity,
                    milliseconds=milliseconds,
                    serving=bool(self._passive) and key in self._passive,
                )
            if not self._has_store:
                session.held.unsaved.clear()
                session.unknown.unsaved.clear()
                session.stretch.unsaved.clear()
            now[key] = session
        if is_changed or before:
            self.unsteady.add(reading.device.uuid)
        gone |= before
        self._open[reading.device.uuid] = now

    def _book(self, posted: Posting, gone: dict[ProcessKey, OpenSession]) -> None:
        """Book the energy of an interval to the Sessions of its residents; a ghost gets a new Session."""
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
        self, resident: Residence, posted: Posting, gone: dict[ProcessKey, OpenSession]
    ) -> OpenSession:
        key = resident.key
        session = self._open.get(key[0], {}).get(key) or gone.get(key)
        if session is not None:
            return session
        begins, ends = posted.begins + resident.begins / 1e6, posted.begins + resident.ends / 1e6
        if key in self._ghosts:
            session = self._ghosts[key]
            begins = session.stretch.ends
            session.last_seen = session.stretch.ends = max(session.last_seen, ends)
        elif key in self._late:
            session = self._late[key][0]
            self.amended.append(session)
            return session
        else:
            session = self._ghosts[key] = self._new(resident.process, begins, ends)
        if not resident.work:
            session.unknown.mark(begins, session.stretch.ends)
        return session

    def _new(self, process: GpuProcess, first: float, last: float) -> OpenSession:
        session = OpenSession(process, first, last, number=self._next)
        self._next += 1
        return session

    def rows(self) -> tuple[SessionRow, ...]:
        """The open Sessions as immutable rows of this posting."""
        oldest = (self._elapsed or 0.0) - LONGEST_INTERVAL
        return tuple([one.row(oldest) for one in self.open()])

    def counts(self, snapshot: Snapshot) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Open Sessions per Device uuid: compute Sessions, and graphics-only Sessions.

        Devices without a readable list in `snapshot` are omitted.
        """
        compute: dict[str, int] = {}
        graphics: dict[str, int] = {}
        for reading in snapshot.process_readings:
            if reading.processes is not None:
                sessions = self._open[reading.device.uuid]
                computing = sum(one.process.computes for one in sessions.values())
                compute[reading.device.uuid] = computing
                graphics[reading.device.uuid] = len(sessions) - computing
        return compute, graphics
