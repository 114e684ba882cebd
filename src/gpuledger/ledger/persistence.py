"""Persistence of the Ledger: restores what earlier runs stored and saves the changes of each tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain

from gpuledger.ledger.accounts import Accounts
from gpuledger.ledger.allocation_times import AllocationTimes
from gpuledger.ledger.energy.counter import EnergyCounter
from gpuledger.ledger.energy.energy_ledger import EnergyLedger, StoredGpuEnergy
from gpuledger.ledger.energy.gpu_energy_ledger import GpuEnergyLedger, Posting
from gpuledger.ledger.journal import EpochEntry, GpuEntry, Journal, LedgerStore, StoredGpu, StoredLedger
from gpuledger.ledger.sessions import Sessions
from gpuledger.ledger.spans import SpanRecorder
from gpuledger.ledger.time.span import TimePosting
from gpuledger.ledger.time_persistence import TimePersistence
from gpuledger.ledger.usage.host_usage import HostRecorder
from gpuledger.ledger.usage.usage_recorder import UsageRecorder
from gpuledger.ledger.xid_log import XidLog
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.snapshot import CollectorRun, Snapshot


@dataclass(slots=True)
class LedgerPersistence:
    """Connects the ledger in memory with its store. Exported totals count from a Gpu's `base`.

    `_booked` are the millijoules in Spans since a Gpu's last entry, by uuid and epoch of its counter.
    """

    _ledger_store: LedgerStore
    _sessions: Sessions
    _allocations: AllocationTimes
    _energy: EnergyLedger
    _accounts: Accounts
    time: TimePersistence
    xids: XidLog
    _usage: UsageRecorder
    _hosts: HostRecorder
    _spans: SpanRecorder = field(default_factory=SpanRecorder)
    _unseen: dict[str, StoredGpu] | None = None
    _base: Counter[str] = field(default_factory=Counter)
    _devices: dict[str, Device] = field(default_factory=dict)
    _entries: dict[str, GpuEntry] = field(default_factory=dict)
    _booked: Counter[tuple[str, int]] = field(default_factory=Counter)
    journal: Journal = field(default_factory=Journal)

    def __post_init__(self) -> None:
        stored = self._ledger_store.stored_ledger
        # Before the first Snapshot, so that its processes and allocations get the names that they had.
        self._sessions.resume(stored.sessions, stored.next_session)
        self._allocations.resume(stored.allocations, stored.next_allocation)

    def resume(self, snapshot: Snapshot, totals: Counter[str]) -> None:
        """Restore stored Gpus that are in the Snapshot, before its posting. `totals` are exported totals."""
        if self._unseen is None:
            self._begin(self._ledger_store.stored_ledger, snapshot)
        if self._unseen:
            for reading in snapshot.readings:
                stored = self._unseen.pop(reading.device.uuid, None)
                if stored is not None:
                    entry = stored.entry
                    # The total of a Gpu that never had a meter is unknown, not 0.
                    if entry.total:
                        totals[entry.uuid] = entry.total - entry.base
                    self._base[entry.uuid] = entry.base
                    self._accounts.resume(stored, snapshot.elapsed)
        self.time.resume_series((reading.device.uuid for reading in snapshot.readings), snapshot.elapsed)

    @property
    def absent_gpus(self) -> Collection[str]:
        """Uuids of stored Gpus that this run has not seen yet: nothing of them may be opened again."""
        return self._unseen or ()

    def _begin(self, stored: StoredLedger, snapshot: Snapshot) -> None:
        self._unseen = dict(stored.gpus)
        if stored.hold:
            self._accounts.export_until(snapshot.elapsed - stored.hold)
            self.time.accounts.export_until(snapshot.elapsed - stored.hold)
        self._spans.resume(stored.next_span)
        self.journal.next_series = stored.next_series
        self.journal.shift = snapshot.elapsed - stored.elapsed
        self._energy.resume(
            {
                uuid: StoredGpuEnergy(
                    _rebased_counter(gpu.entry.counter, stored, snapshot), gpu.floors, gpu.entry.last_unix
                )
                for uuid, gpu in stored.gpus.items()
            }
        )
        self._entries = {uuid: gpu.entry for uuid, gpu in stored.gpus.items()}
        self.xids.resume(stored.xids, stored.next_xid)
        seen_at = snapshot.elapsed - max(snapshot.unix - stored.unix, 0.0)
        self._usage.resume(stored.usage.periods, stored.usage.next_period, seen_at)
        self._hosts.resume(stored.hosts.periods, stored.hosts.next_period, seen_at)
        self.time.begin(stored.times, snapshot.elapsed, self.journal)

    def save(
        self, snapshot: Snapshot, posted: list[Posting], totals: Counter[str], time: list[TimePosting]
    ) -> tuple[CollectorRun, bool]:
        """Store the changes of a posting. See `LedgerStore.save` for the result.

        Consumes `posted` and `time` one by one, so that nothing is stored twice if something fails.
        """
        was_replaced = self._ledger_store.was_replaced
        part, may_be_shown = self._save_changes(snapshot, posted, totals, time)
        if self._ledger_store.was_replaced and not was_replaced:
            # The file was damaged. Write everything to the new one at once, so that it is complete if the
            # program stops.
            _, may_be_shown = self._save_changes(snapshot, posted, totals, time)
        return part, may_be_shown

    def _save_changes(
        self, snapshot: Snapshot, posted: list[Posting], totals: Counter[str], time: list[TimePosting]
    ) -> tuple[CollectorRun, bool]:
        is_new_file = self._ledger_store.was_replaced
        if is_new_file:
            self._mark_all_changed()
        journal = self.journal
        journal.elapsed, journal.unix = snapshot.elapsed, snapshot.unix
        self._record_devices(snapshot)
        sessions = self._sessions
        journal.add_sessions(chain(sessions.open(), sessions.ended, sessions.amended))
        journal.add_allocations(chain(self._allocations.open(), self._allocations.ended))
        while posted:
            one = posted[0]
            for span in self._spans.post(one, one.epoch_number, sessions.number_of):
                journal.add_span(span)
            if not one.integrated:
                self._booked[one.gpu.uuid, one.epoch_number] += one.millijoules
            del posted[0]
        for gpu_ledger in self._energy.gpu_ledgers.values():
            self._record_gpu(gpu_ledger, totals[gpu_ledger.gpu.uuid], snapshot.unix)
        self._accounts.record_changes(journal)
        journal.xids.update(self.xids.take_changed())
        journal.add_usage(self._usage, self._hosts)
        self.time.record(time, sessions.number_of, snapshot, journal)
        if is_new_file:
            self._forget_lost_spans()
            self.time.record_lost_time(journal)
            journal.activity_from = snapshot.unix
        return self._ledger_store.save(journal)

    def _record_devices(self, snapshot: Snapshot) -> None:
        for reading in snapshot.readings:
            device = reading.device
            if self._devices.get(device.uuid) is not device:
                before = self._devices.get(device.uuid)
                self._devices[device.uuid] = device
                if before is None or _device_facts(before) != _device_facts(device):
                    self.journal.devices[device.uuid] = device

    def _record_gpu(self, gpu_ledger: GpuEnergyLedger, exported: int, unix: float) -> None:
        uuid, before = gpu_ledger.gpu.uuid, self._entries.get(gpu_ledger.gpu.uuid)
        base = self._base[uuid]
        closed = self._accounts.closed.get(uuid, 0)
        entry = GpuEntry(uuid, gpu_ledger.counter, gpu_ledger.seen_unix, base + exported, base, closed)
        if before == entry:
            return
        if before is not None and before.counter.epoch_number != gpu_ledger.counter.epoch_number:
            # Include the energy of the open interval, which the last posting still booked to this epoch.
            closing = before.counter.booked + self._booked[uuid, before.counter.epoch_number]
            self.journal.epochs.append(EpochEntry(uuid, replace(before.counter, booked=closing), unix))
        for key in [key for key in self._booked if key[0] == uuid]:
            del self._booked[key]
        self._entries[uuid] = self.journal.gpus[uuid] = entry
        for resident, quiet in ((False, gpu_ledger.floors.empty), (True, gpu_ledger.floors.resident)):
            for day, step in quiet.changed:
                self.journal.floors[uuid, gpu_ledger.driver, resident, day, step] = quiet.days[day][step]
            quiet.changed.clear()

    def _mark_all_changed(self) -> None:
        """Mark everything in memory as not stored: the new file is empty."""
        for session in self._sessions.open():
            session.stored, session.changed, session.renamed = False, True, True
        for session in self.journal.sessions.values():
            session.stored, session.renamed = False, True
        for allocation in chain(self._allocations.open(), self.journal.allocations.values()):
            allocation.stored, allocation.changed = False, True
        for span in self.journal.spans.values():
            span.stored = False
        self._spans.forget_open()
        # Include Devices that are no longer in the Snapshot: other rows can reference them.
        self.journal.devices |= self._devices
        # The series of Gpus that this run has not seen were only in the old file: they begin at 0 again.
        self._unseen = {uuid: one.from_zero() for uuid, one in (self._unseen or {}).items()}
        self._entries = {uuid: one.entry for uuid, one in self._unseen.items()}
        self.journal.gpus |= self._entries
        self._accounts.mark_all_changed()
        self.xids.mark_all_changed()
        self._usage.mark_all_changed()
        self._hosts.mark_all_changed()
        self.time.mark_all_changed(self.journal)

    def _forget_lost_spans(self) -> None:
        """Record as forgotten the counted energy of current epochs that only the old file held."""
        epochs = {(entry.uuid, entry.counter.epoch_number): entry.counter for entry in self.journal.epochs}
        epochs |= {(uuid, entry.counter.epoch_number): entry.counter for uuid, entry in self._entries.items()}
        for (uuid, epoch_number), counter in epochs.items():
            if counter.opening is not None:
                known = sum(
                    span.millijoules
                    for span in self.journal.spans.values()
                    if (span.uuid, span.epoch_number) == (uuid, epoch_number)
                )
                self.journal.forgotten[uuid, epoch_number] = counter.booked - counter.opening - known


def _rebased_counter(counter: EnergyCounter, stored: StoredLedger, snapshot: Snapshot) -> EnergyCounter:
    """The stored counter, with its last reading on the clock of this run."""
    if snapshot.boot_id and counter.epoch.boot_id == snapshot.boot_id:
        return counter
    age = stored.elapsed - counter.last_at + max(snapshot.unix - stored.unix, 0.0)
    return replace(counter, last_at=snapshot.elapsed - age)


def _device_facts(device: Device) -> tuple[object, ...]:
    if isinstance(device, Instance):
        return (device.parent.uuid, device.gi, device.ci, device.index, device.profile, device.sm_count)
    assert isinstance(device, Gpu)
    return (device.index, device.name, device.pci_bus_id, device.minor, device.serial, device.sm_count)
