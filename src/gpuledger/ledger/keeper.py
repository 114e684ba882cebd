"""The Ledger's memory over restarts: what earlier runs left goes in, what is new goes out, tick by tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from gpuledger.ledger.accounts import Accounts
from gpuledger.ledger.allocation_times import Handed
from gpuledger.ledger.energy.counter import Counter as EnergyCounter
from gpuledger.ledger.energy.energy import EnergyBook, Stored
from gpuledger.ledger.energy.gpu_book import GpuBook, Posted
from gpuledger.ledger.journal import Books, EpochEntry, GpuEntry, Journal, Kept, KeptGpu
from gpuledger.ledger.sessions import Sessions
from gpuledger.ledger.spans import SpanBook
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.snapshot import Collected, Snapshot


class Keeper:
    """Joins the books in memory with those that last. `exported` totals count from a Gpu's `base`."""

    def __init__(
        self, books: Books, sessions: Sessions, handed: Handed, energy: EnergyBook, accounts: Accounts
    ) -> None:
        self._books = books
        self._sessions = sessions
        self._handed = handed
        self._energy = energy
        self._accounts = accounts
        self._spans = SpanBook()
        self._waiting: dict[str, KeptGpu] | None = None
        self._base: Counter[str] = Counter()
        self._devices: dict[str, Device] = {}
        self._entries: dict[str, GpuEntry] = {}
        # Millijoules in Spans since a Gpu's last entry, by life of its counter.
        self._booked: Counter[tuple[str, int]] = Counter()
        self.journal = Journal()

    def resume(self, snapshot: Snapshot, totals: Counter[str]) -> None:
        """Before a posting: whatever is kept of the Gpus in it comes back. `totals` are exported ones."""
        if self._waiting is None:
            self._begin(self._books.kept, snapshot)
        if self._waiting:
            for reading in snapshot.readings:
                kept = self._waiting.pop(reading.device.uuid, None)
                if kept is not None:
                    totals[kept.uuid] = kept.total - kept.base
                    self._base[kept.uuid] = kept.base
                    self._accounts.resume(kept, snapshot.elapsed)

    @property
    def absent(self) -> Collection[str]:
        """Uuids of Gpus that are kept and not seen in this run yet: nothing of them may be opened anew."""
        return self._waiting or ()

    def _begin(self, kept: Kept, snapshot: Snapshot) -> None:
        self._waiting = dict(kept.gpus)
        self._sessions.resume(kept.sessions, kept.following_session)
        self._handed.resume(kept.handovers, kept.following_handover)
        self._spans.resume(kept.following_span)
        self.journal.next_series = kept.following_series
        self.journal.shift = snapshot.elapsed - kept.elapsed
        self._energy.resume(
            {
                gpu.uuid: Stored(_now(gpu, kept, snapshot), gpu.floors, gpu.last_unix)
                for gpu in kept.gpus.values()
            }
        )
        self._entries = {
            gpu.uuid: GpuEntry(gpu.uuid, gpu.counter, gpu.last_unix, gpu.total, gpu.base, gpu.closed)
            for gpu in kept.gpus.values()
        }

    def keep(self, snapshot: Snapshot, posted: list[Posted], totals: Counter[str]) -> tuple[Collected, bool]:
        """After a posting: store what changed by it. See `Books.save` for the answer.

        What is taken of `posted` is taken out of it, so that nothing is stored twice when something fails.
        """
        was_anew = self._books.began_anew
        answer = self._store(snapshot, posted, totals)
        if self._books.began_anew and not was_anew:
            # The file was found damaged: the new one gets everything at once, so that a stop finds it whole.
            part, _ = answer
            _, may_be_shown = self._store(snapshot, posted, totals)
            return part, may_be_shown
        return answer

    def _store(
        self, snapshot: Snapshot, posted: list[Posted], totals: Counter[str]
    ) -> tuple[Collected, bool]:
        anew = self._books.began_anew
        if anew:
            self._forget_stored()
        journal = self.journal
        journal.elapsed, journal.unix = snapshot.elapsed, snapshot.unix
        self._take_devices(snapshot)
        sessions = self._sessions
        journal.take_sessions(chain(sessions.open(), sessions.ended, sessions.amended))
        journal.take_handovers(chain(self._handed.open(), self._handed.ended))
        while posted:
            one = posted[0]
            for span in self._spans.post(one, one.life, sessions.number_of):
                journal.take_span(span)
            if not one.integrated:
                self._booked[one.gpu.uuid, one.life] += one.millijoules
            del posted[0]
        for book in self._energy.books.values():
            self._take_gpu(book, totals[book.gpu.uuid], snapshot.unix)
        self._accounts.take(journal)
        if anew:
            self._forget_spans()
        return self._books.save(journal)

    def _take_devices(self, snapshot: Snapshot) -> None:
        for reading in snapshot.readings:
            device = reading.device
            if self._devices.get(device.uuid) is not device:
                before = self._devices.get(device.uuid)
                self._devices[device.uuid] = device
                if before is None or _facts(before) != _facts(device):
                    self.journal.devices[device.uuid] = device

    def _take_gpu(self, book: GpuBook, exported: int, unix: float) -> None:
        uuid, before = book.gpu.uuid, self._entries.get(book.gpu.uuid)
        base = self._base[uuid]
        entry = GpuEntry(
            uuid, book.counter, book.seen_unix, base + exported, base, self._accounts.closed.get(uuid, 0)
        )
        if before == entry:
            return
        if before is not None and before.counter.life != book.counter.life:
            # With what the last posting still gave it: the joules of an interval that was open.
            closing = before.counter.booked + self._booked[uuid, before.counter.life]
            self.journal.epochs.append(EpochEntry(uuid, replace(before.counter, booked=closing), unix))
        for key in [key for key in self._booked if key[0] == uuid]:
            del self._booked[key]
        self._entries[uuid] = self.journal.gpus[uuid] = entry
        for resident, quiet in ((False, book.floors.empty), (True, book.floors.resident)):
            for day, step in quiet.changed:
                self.journal.floors[uuid, book.driver, resident, day, step] = quiet.days[day][step]
            quiet.changed.clear()

    def _forget_stored(self) -> None:
        """A new file knows nothing: hand over all that is in memory."""
        for session in self._sessions.open():
            session.stored, session.changed, session.renamed = False, True, True
        for held in self.journal.sessions.values():
            held.stored, held.renamed = False, True
        for handover in chain(self._handed.open(), self.journal.handovers.values()):
            handover.stored, handover.changed = False, True
        for span in self.journal.spans.values():
            span.stored = False
        self._spans.forget_open()
        # What is told of one that is not in the Snapshot any more would be of a Device that nobody knows.
        self.journal.devices |= self._devices
        self._entries.clear()
        self._accounts.forget_stored()

    def _forget_spans(self) -> None:
        """What the old file had of the epochs at hand is gone with it, but not from the counter."""
        lives = {(entry.uuid, entry.counter.life): entry.counter for entry in self.journal.epochs}
        lives |= {(uuid, entry.counter.life): entry.counter for uuid, entry in self._entries.items()}
        for (uuid, life), counter in lives.items():
            if counter.opening is not None:
                known = sum(
                    span.millijoules
                    for span in self.journal.spans.values()
                    if (span.uuid, span.life) == (uuid, life)
                )
                self.journal.forgotten[uuid, life] = counter.booked - counter.opening - known


def _now(gpu: KeptGpu, kept: Kept, snapshot: Snapshot) -> EnergyCounter:
    """The counter with its last reading on the clock of this run."""
    if snapshot.boot_id and gpu.counter.epoch.boot_id == snapshot.boot_id:
        return gpu.counter
    age = kept.elapsed - gpu.counter.last_at + max(snapshot.unix - kept.unix, 0.0)
    return replace(gpu.counter, last_at=snapshot.elapsed - age)


def _facts(device: Device) -> tuple[object, ...]:
    if isinstance(device, Instance):
        return (device.parent.uuid, device.gi, device.ci, device.index, device.profile, device.sm_count)
    assert isinstance(device, Gpu)
    return (device.index, device.name, device.pci_bus_id, device.minor, device.serial, device.sm_count)
