"""Sessions: who came, who is still here, what each used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger.ledger.energy.booking import MEASURED
from gpuledger.ledger.energy.gpu_book import Posted
from gpuledger.ledger.energy.residence import Residence
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import Session
from gpuledger.model.snapshot import Reading, Snapshot


@dataclass(slots=True)
class OpenSession:
    """A Session that has not ended: what it used so far. Times are unix seconds, energy millijoules.

    `high` is the upper bound of what it can have used: everything of its Gpu's intervals in which it was
    resident, less what was measured to others. `sm_seconds` is the integral of its SM share over the
    `sm_known` seconds in which the share was told.
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
    changed: bool = True

    def see(self, process: GpuProcess, unix: float, seconds: float) -> None:
        """The process is there, `seconds` after it was seen last."""
        self.process = process
        self.last_seen = unix
        self.changed = True
        if process.memory is not None:
            self.peak_memory = max(self.peak_memory or 0, process.memory)
        share = process.usage.sm
        if share is not None:
            self.sm_seconds += share * seconds
            self.sm_known += seconds
            self.sm_most = share if self.sm_most is None else max(self.sm_most, share)
            if not share and not process.usage.encoder and not process.usage.decoder:
                self.held_seconds += seconds

    def record(self, ended: float | None = None, exit_seen: bool = False) -> Session:
        """As an immutable record."""
        return Session(
            self.process,
            self.first_seen,
            self.last_seen,
            ended=ended,
            exit_seen=exit_seen,
            peak_memory=self.peak_memory,
            sm_mean=self.sm_seconds / self.sm_known if self.sm_known else None,
            sm_most=self.sm_most,
            held_seconds=self.held_seconds,
            measured=self.measured,
            apportioned=self.apportioned,
            high=self.high,
        )


class Sessions:
    """Open Sessions, one per `(device, pid, start)`, and those that ended in the last posting.

    A Session ends when its Device's list was read and the process is not in it, or when the Device is gone
    from a whole Device list (a MIG instance taken apart). A list that failed ends nothing.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[ProcessKey, OpenSession]] = {}
        self._elapsed: float | None = None
        self.ended: list[Session] = []

    @property
    def by_device(self) -> Mapping[str, Mapping[ProcessKey, OpenSession]]:
        """Open Sessions by Device uuid."""
        return self._open

    def open(self) -> Iterable[OpenSession]:
        """Every open Session."""
        return (one for sessions in self._open.values() for one in sessions.values())

    def alive(self) -> dict[ProcessKey, GpuProcess]:
        """The processes of the open Sessions, as last named."""
        return {key: one.process for sessions in self._open.values() for key, one in sessions.items()}

    def post(self, snapshot: Snapshot, posted: Iterable[Posted] = ()) -> None:
        """Open, carry on and end Sessions by one Snapshot and what was booked with it."""
        seconds = 0.0 if self._elapsed is None else max(snapshot.elapsed - self._elapsed, 0.0)
        self._elapsed = snapshot.elapsed
        gone: dict[ProcessKey, OpenSession] = {}
        here = set()
        for reading in snapshot.holders:
            here.add(reading.device.uuid)
            if reading.processes is not None:
                self._post_device(reading, reading.processes, snapshot.unix, seconds, gone)
        if not snapshot.devices_failed:
            for uuid in self._open.keys() - here:
                gone |= self._open.pop(uuid)
        for one in posted:
            self._book(one, gone)
        # An exit is seen when the Device's lists before and after it were.
        self.ended = [one.record(one.last_seen, exit_seen=True) for one in gone.values()]

    def _post_device(
        self,
        reading: Reading,
        processes: tuple[GpuProcess, ...],
        unix: float,
        seconds: float,
        gone: dict[ProcessKey, OpenSession],
    ) -> None:
        before = self._open.get(reading.device.uuid, {})
        now: dict[ProcessKey, OpenSession] = {}
        for process in processes:
            key = process.key
            session = before.pop(key, None)
            if session is None:
                session = OpenSession(process, unix, unix)
                session.see(process, unix, 0.0)
            else:
                session.see(process, unix, seconds)
            now[key] = session
        gone |= before
        self._open[reading.device.uuid] = now

    def _book(self, posted: Posted, gone: dict[ProcessKey, OpenSession]) -> None:
        """Joules onto the Sessions that bore them; whoever no list ever had gets a Session by it."""
        measured = posted.booked.method == MEASURED
        for resident in posted.residents:
            session = self._session_of(resident, posted, gone)
            joules = posted.booked.processes.get(resident.key, 0)
            if measured:
                session.measured += joules
            else:
                session.apportioned += joules
            others = sum(posted.booked.processes.values()) - joules if measured else 0
            session.high += posted.booked.delta - others
            session.changed = True

    def _session_of(
        self, resident: Residence, posted: Posted, gone: dict[ProcessKey, OpenSession]
    ) -> OpenSession:
        key = resident.key
        session = self._open.get(key[0], {}).get(key) or gone.get(key)
        if session is None:
            begins = posted.begins + resident.begins / 1e6
            session = gone[key] = OpenSession(resident.process, begins, posted.begins + resident.ends / 1e6)
        return session

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
