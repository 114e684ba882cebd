"""The owners of each Device: allocated, resident and held time."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from gpuledger.ledger.device_states import are_inactive
from gpuledger.ledger.exported_counters import latest_exported
from gpuledger.ledger.holders import holding_allocations, is_same_pod, may_be_pod
from gpuledger.ledger.ownership import OWNER_TIMEOUT
from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.ledger.watched_time import observed_seconds
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import OwnerRow
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import PENDING_NAMES, Workload, best_known

Labels = tuple[str, ...]


@dataclass(slots=True)
class _DeviceOwner:
    """One owner on one Device.

    `since` (when its series begin) and `alive` (last seen) are on the source's clock.
    """

    device: Device
    labels: Labels
    since: float
    alive: float
    processes: int | None = None
    allocated: float = 0.0
    held: float = 0.0
    resident: float = 0.0

    def add_from(self, other: _DeviceOwner) -> None:
        """Move the times counted under an id that turned out to belong to this owner."""
        self.allocated += other.allocated
        self.held += other.held
        self.resident += other.resident
        other.allocated = other.held = other.resident = 0.0


@dataclass(slots=True)
class _TickPresence:
    """One owner on one Device in one tick."""

    allocated: bool = False
    processes: list[GpuProcess] = field(default_factory=list)
    # It serves others through the Device that is allocated to it, or an unknown pod that works there can be
    # this one: it does not certainly hold the Device idle.
    serves: bool = False


class OwnerTimes:
    """Allocated, resident and held time of all owners. Used only by the tick thread.

    The times of a new owner are exported as 0 for `hold` seconds, so that increase() counts its first ones.
    An owner that is gone is exported for `retention` more seconds, and its full times for at least `hold`
    seconds, so that its last seconds are scraped. The time of an owner known only by id waits for its names,
    also if it leaves before or cannot be read meanwhile, and is added when they arrive.
    """

    def __init__(self, hold: float, retention: float) -> None:
        self.hold = hold
        self._latest = -inf
        # Export owners that are gone for this many seconds.
        self.retention = retention
        self._entries: dict[tuple[str, Labels], _DeviceOwner] = {}
        # By Device and `Workload.ids`.
        self._waiting: dict[tuple[str, Labels], _DeviceOwner] = {}
        self._elapsed: float | None = None
        self._serving = NO_PROCESSES

    def interrupt(self) -> None:
        """Count no time until the next tick: it is not observed."""
        self._elapsed = None

    def post(self, snapshot: Snapshot, serving: frozenset[ProcessKey] = NO_PROCESSES) -> tuple[OwnerRow, ...]:
        """Add one tick, with the owners of its processes; return the owners to be exported.

        `serving` are processes that serve others or only draw: they make their user no owner.
        """
        self._serving = serving
        now = snapshot.elapsed
        since = observed_seconds(self._elapsed, now)
        self._elapsed = now
        allocated = holding_allocations(snapshot)
        for reading in snapshot.process_readings:
            for entry, presence in self._present(reading, allocated.get(reading.device.uuid, []), now):
                _add_time(entry, presence, reading, now, since)
        self._expire_waiting(now)
        for key in [key for key, entry in self._entries.items() if self._is_over(entry, now)]:
            del self._entries[key]
        self._latest = latest_exported(self._latest, now, self.hold)
        return tuple([self._row(entry, now) for entry in self._entries.values()])

    def _is_over(self, entry: _DeviceOwner, now: float) -> bool:
        # The series of an owner that left without a name begin later.
        left = max(entry.alive, entry.since)
        return now - left > self.retention and now - entry.since >= 2 * self.hold

    def _present(
        self, reading: Reading, allocated: list[Workload], now: float
    ) -> list[tuple[_DeviceOwner, _TickPresence]]:
        found: dict[int, tuple[_DeviceOwner, _TickPresence]] = {}

        def presence(owner: Workload) -> _TickPresence:
            entry = self._entry(reading.device, owner, now)
            here = found.get(id(entry))
            if here is None:
                here = found[id(entry)] = (entry, _TickPresence())
            return here[1]

        unknown = [one for one in reading.processes or () if one.workload.missing]
        for owner in allocated:
            here = presence(owner)
            here.allocated = True
            theirs = [
                one for one in unknown if is_same_pod(one.workload, owner) or may_be_pod(one.workload, owner)
            ]
            here.serves = here.serves or (bool(theirs) and not are_inactive(theirs, reading))
        for process in reading.processes or ():
            if not self._serving or process.key not in self._serving:
                presence(process.workload).processes.append(process)
            elif labels_of(process.workload) in map(labels_of, allocated):
                presence(process.workload).serves = True
        return list(found.values())

    def _entry(self, device: Device, owner: Workload, now: float) -> _DeviceOwner:
        if owner.missing not in PENDING_NAMES:
            entry = self._known(device, labels_of(owner), now)
            for ids in owner.earlier_ids if self._waiting else ():
                before = self._waiting.pop((device.uuid, ids), None)
                if before is not None:
                    entry.add_from(before)
            return entry
        labels = labels_of(best_known(owner))
        waiting = self._waiting.setdefault((device.uuid, owner.ids), _DeviceOwner(device, labels, now, now))
        waiting.labels = labels
        if now - waiting.since < OWNER_TIMEOUT:
            return waiting
        waiting.alive = now
        return self._known(device, labels, now)

    def _known(self, device: Device, labels: Labels, at: float) -> _DeviceOwner:
        entry = self._entries.get((device.uuid, labels))
        if entry is None:
            entry = self._entries[device.uuid, labels] = _DeviceOwner(device, labels, at, at)
        entry.device = device
        return entry

    def _expire_waiting(self, now: float) -> None:
        """Count waiting owners as far as known if their names did not arrive in time."""
        for ids, waiting in list(self._waiting.items()):
            if now - waiting.since < OWNER_TIMEOUT:
                continue
            if waiting.alive != now:
                del self._waiting[ids]
            if waiting.allocated or waiting.held or waiting.resident:
                key = (waiting.device.uuid, waiting.labels)
                if key not in self._entries:
                    self._entries[key] = _DeviceOwner(waiting.device, waiting.labels, now, waiting.alive)
                self._entries[key].add_from(waiting)

    def _row(self, entry: _DeviceOwner, now: float) -> OwnerRow:
        present = entry.alive == now
        return OwnerRow(
            entry.device,
            entry.labels,
            present,
            entry.processes if present else None,
            entry.allocated,
            entry.held,
            entry.resident,
            held_at_zero=entry.since > self._latest,
        )


def _add_time(
    entry: _DeviceOwner, presence: _TickPresence, reading: Reading, now: float, since: float
) -> None:
    entry.alive = now
    entry.processes = None if reading.processes is None else len(presence.processes)
    if presence.allocated:
        entry.allocated += since
    if presence.processes:
        entry.resident += since
    if are_inactive(presence.processes, reading) and (presence.processes or not presence.serves):
        entry.held += since


def labels_of(owner: Workload) -> Labels:
    """Owner kind, namespace, pod, container, user (see `user_of`) and Slurm job."""
    return (owner.kind, owner.namespace, owner.pod, owner.container, user_of(owner), owner.job)


def kubernetes_job(owner: Workload) -> str:
    """The Kubernetes Job that created the pod; empty if there is none."""
    return owner.controller if owner.controller_kind == "Job" else ""


def user_of(owner: Workload) -> str:
    """The owner's user; empty for a pod: user names inside containers are not users of this machine."""
    return "" if owner.kind == "pod" else owner.user
