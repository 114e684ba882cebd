"""Who has each Device, for how long, and for how long without using it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.ledger.device_states import all_hold
from gpuledger.ledger.ownership import PATIENCE
from gpuledger.ledger.watched_time import seconds_since
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import OwnerRow
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import AWAITED, Workload

Labels = tuple[str, ...]
_NOBODY_KNOWN: Labels = ("unknown", "", "", "", "", "")


@dataclass(slots=True)
class _Tenure:
    """One owner on one Device: first seen there `since`, last seen `alive`, in the source's seconds."""

    device: Device
    labels: Labels
    since: float
    alive: float
    processes: int | None = None
    allocated: float = 0.0
    held: float = 0.0
    resident: float = 0.0

    def take_over(self, other: _Tenure) -> None:
        """Add what was gathered under an id that turns out to be this owner's."""
        self.allocated += other.allocated
        self.held += other.held
        self.resident += other.resident
        other.allocated = other.held = other.resident = 0.0


@dataclass(slots=True)
class _Presence:
    """One owner on one Device in one tick."""

    allocated: bool = False
    processes: list[GpuProcess] = field(default_factory=list)


class OwnerTimes:
    """Tenures of all owners; used by the tick thread alone.

    One that has ended is told for `retention` seconds more, so that its last seconds are scraped. An owner of
    whom only an id is known waits for its names: what it gathers until then is added when they come.
    """

    def __init__(self, retention: float) -> None:
        self._retention = retention
        self._tenures: dict[tuple[str, Labels], _Tenure] = {}
        # By Device and by the ids of pod and container.
        self._waiting: dict[tuple[str, Labels], _Tenure] = {}
        self._elapsed: float | None = None

    def retain(self, seconds: float) -> None:
        """From here on, go on telling those that have ended for so many seconds."""
        self._retention = seconds

    def interrupt(self) -> None:
        """Nobody looks until the next tick: the time until then is no owner's."""
        self._elapsed = None

    def post(self, snapshot: Snapshot) -> tuple[OwnerRow, ...]:
        """Take in one tick, its processes named; answers who is to be told."""
        now = snapshot.elapsed
        since = seconds_since(self._elapsed, now)
        self._elapsed = now
        handed: dict[str, list[Workload]] = {}
        for allocation in snapshot.allocations:
            handed.setdefault(allocation.device.uuid, []).append(allocation.workload)
        for reading in snapshot.holders:
            for tenure, presence in self._present(reading, handed.get(reading.device.uuid, []), now):
                _spend(tenure, presence, reading, now, since)
        self._give_up(now)
        self._end(now)
        return tuple([self._row(tenure, now) for tenure in self._tenures.values()])

    def _present(
        self, reading: Reading, handed: list[Workload], now: float
    ) -> list[tuple[_Tenure, _Presence]]:
        found: dict[int, tuple[_Tenure, _Presence]] = {}

        def presence(owner: Workload) -> _Presence:
            tenure = self._tenure(reading.device, owner, now)
            here = found.get(id(tenure))
            if here is None:
                here = found[id(tenure)] = (tenure, _Presence())
            return here[1]

        for owner in handed:
            presence(owner).allocated = True
        for process in reading.processes or ():
            presence(process.workload).processes.append(process)
        return list(found.values())

    def _tenure(self, device: Device, owner: Workload, now: float) -> _Tenure:
        if owner.missing not in AWAITED:
            tenure = self._known(device, labels_of(owner), now)
            before = self._waiting.pop(_ids(device, owner), None) if self._waiting else None
            if before is not None:
                tenure.take_over(before)
            return tenure
        waiting = self._waiting.setdefault(_ids(device, owner), _Tenure(device, _NOBODY_KNOWN, now, now))
        if now - waiting.since < PATIENCE:
            return waiting
        waiting.alive = now
        return self._known(device, _NOBODY_KNOWN, now)

    def _known(self, device: Device, labels: Labels, at: float) -> _Tenure:
        tenure = self._tenures.get((device.uuid, labels))
        if tenure is None:
            tenure = self._tenures[device.uuid, labels] = _Tenure(device, labels, at, at)
        tenure.device = device
        return tenure

    def _give_up(self, now: float) -> None:
        """Owners whose names have not come in time, or who went without them, are unknown."""
        for ids, waiting in list(self._waiting.items()):
            if waiting.alive != now:
                del self._waiting[ids]
            gathered = waiting.allocated or waiting.held or waiting.resident
            if gathered and (waiting.alive != now or now - waiting.since >= PATIENCE):
                self._known(waiting.device, _NOBODY_KNOWN, waiting.alive).take_over(waiting)

    def _end(self, now: float) -> None:
        gone = [key for key, tenure in self._tenures.items() if now - tenure.alive > self._retention]
        for key in gone:
            del self._tenures[key]

    def _row(self, tenure: _Tenure, now: float) -> OwnerRow:
        present = tenure.alive == now
        return OwnerRow(
            tenure.device,
            tenure.labels,
            present,
            tenure.processes if present else None,
            tenure.allocated,
            tenure.held,
            tenure.resident,
        )


def _spend(tenure: _Tenure, presence: _Presence, reading: Reading, now: float, since: float) -> None:
    tenure.alive = now
    tenure.processes = None if reading.processes is None else len(presence.processes)
    if presence.allocated:
        tenure.allocated += since
    if presence.processes:
        tenure.resident += since
    if all_hold(presence.processes, reading):
        tenure.held += since


def _ids(device: Device, owner: Workload) -> tuple[str, Labels]:
    return (device.uuid, (owner.pod_uid, owner.container_id))


def labels_of(owner: Workload) -> Labels:
    """Owner kind, namespace, pod, container, user (see `user_of`) and Slurm job."""
    return (owner.kind, owner.namespace, owner.pod, owner.container, user_of(owner), owner.job)


def user_of(owner: Workload) -> str:
    """The owner's user; empty for a pod, as the users of its containers are no names of this machine."""
    return "" if owner.kind == "pod" else owner.user
