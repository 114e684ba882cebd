"""Accounts of booked energy as exported counters: by owner (native dialect) and by process (`energy`)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from math import inf

from gpuledger.ledger.energy.booking import INTEGRATED, MEASURED
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.exported_counters import ExportedCounter, ExportedCounters, Labels
from gpuledger.ledger.journal import OWNERS, ROWS, Journal, StoredGpu
from gpuledger.ledger.ownership import Ownership
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import (
    IDLE,
    PROCESS,
    UNATTRIBUTED,
    UNOBSERVED,
    AccountRow,
    EnergyRow,
    EnergyState,
)
from gpuledger.model.workload import UNKNOWN

log = logging.getLogger("gpuledger.ledger")

OTHER = "other"
_NO_OWNER: Labels = ("", "", "", "", "", "")


class Accounts:
    """All energy booked since the ledger was created, by exported series.

    Used only by the tick thread. `hold` and `retention` are seconds. Per Gpu, exported + pending + closed
    always equals the Gpu's total.
    """

    def __init__(self, hold: float, retention: float) -> None:
        self._now = 0.0
        # Gpus without a meter now, and rows that have had none so far.
        self.unmetered: frozenset[str] = frozenset()
        self._unmetered_rows: set[Labels] = set()
        self._omitted: frozenset[ProcessKey] = frozenset()
        self._owners = ExportedCounters(hold, retention)
        self._rows = ExportedCounters(hold, retention)
        self._known: dict[ProcessKey, Ownership] = {}
        # The owner and the labeled process of each row. A name that arrives late creates another row.
        self._row_of: dict[Labels, tuple[Ownership, GpuProcess]] = {}
        # Processes that have ended, and whether the store has a row of them.
        self._ended: dict[ProcessKey, bool] = {}

    def set_hold(self, seconds: float) -> None:
        """Export new series as 0 for this many seconds from now on."""
        self._owners.hold = self._rows.hold = seconds

    def export_until(self, latest: float) -> None:
        """Export series in full that began until then, as an earlier run did."""
        self._owners.export_until(latest)
        self._rows.export_until(latest)

    def set_retention(self, seconds: float) -> None:
        """Export ended series for this many seconds from now on."""
        self._owners.retention = self._rows.retention = seconds

    def post(
        self,
        postings: list[Posting],
        alive: Mapping[ProcessKey, GpuProcess],
        omitted: frozenset[ProcessKey],
        now: float,
    ) -> None:
        """Book the intervals of one tick. `alive` are its processes; `omitted` are those beyond the cap.

        Earlier processes are booked first: a new process with a reused pid must not get the energy or the row
        of the old one.
        """
        self._now, self._omitted = now, omitted
        for labels in [one for one in self._unmetered_rows if one[0] not in self.unmetered]:
            self._meter_row(labels)
        for posting in postings:
            self._book_gpu_accounts(posting)
            self._post_residents(posting, [one for one in posting.residents if one.key not in alive])
        for key in [key for key in self._known if key not in alive]:
            self._end_process(key)
        for key, process in alive.items():
            self._update_owner(key, process)
        for posting in postings:
            self._post_residents(posting, [one for one in posting.residents if one.key in alive])
        self._owners.end(now)
        for labels in self._rows.end(now):
            self._row_of.pop(labels, None)
            self._unmetered_rows.discard(labels)

    def _meter_row(self, labels: Labels) -> None:
        """Begin the exported energy of a row at 0 now: the Gpu had no meter before."""
        self._unmetered_rows.discard(labels)
        self._rows.series[labels].born = self._now
        self._rows.rename(labels)

    def _post_residents(self, posting: Posting, residents: list[Residence]) -> None:
        for resident in residents:
            if resident.key not in self._known:
                self._update_owner(resident.key, resident.process)
            joules = posting.booked.processes.get(resident.key, 0)
            if joules:
                self._book(self._known[resident.key], posting.booked.method, joules)

    def _update_owner(self, key: ProcessKey, process: GpuProcess) -> None:
        now = self._now
        ownership = self._known.get(key)
        if ownership is None:
            ownership = self._known[key] = Ownership(process, now)
        if ownership.update(process, now):
            self._open_row(ownership)
        if ownership.owner is not None:
            for method in ownership.methods:
                self._owners.keep_alive(_owner_labels(ownership, method), now)
            self._rows.keep_alive(_row_labels(ownership, self._omitted), now)

    def _open_row(self, ownership: Ownership) -> None:
        """Open the row of a process with a known owner and book the energy that waited for it."""
        labels = _row_labels(ownership, self._omitted)
        before = self._row_of.get(labels)
        if labels[2] != OTHER and before is not None and before[0].process.key != ownership.process.key:
            self._rows.replace(labels)
        if not self._rows.open(labels, self._now).amount and labels[0] in self.unmetered:
            self._unmetered_rows.add(labels)
        if before is None or before[0] is not ownership:
            self._set_row_process(labels, ownership)
        for method, joules in ownership.waiting.items():
            self._book(ownership, method, joules)
        ownership.waiting.clear()

    def _set_row_process(self, labels: Labels, ownership: Ownership) -> None:
        self._row_of[labels] = (ownership, ownership.shown or ownership.process)
        self._rows.rename(labels)

    def _book(self, ownership: Ownership, method: str, joules: int) -> None:
        if ownership.owner is None:
            ownership.waiting[method] += joules
            ownership.changed = True
            return
        self._owners.add(_owner_labels(ownership, method), joules, self._now)
        if method not in ownership.methods:
            ownership.methods.add(method)
            ownership.changed = True
        measured = joules if method == MEASURED else 0
        labels = _row_labels(ownership, self._omitted)
        self._rows.add(labels, joules, self._now, measured)
        if self._unmetered_rows and labels in self._unmetered_rows:
            self._meter_row(labels)
        if labels not in self._row_of:
            self._set_row_process(labels, ownership)

    def _end_process(self, key: ProcessKey) -> None:
        ownership = self._known.pop(key)
        if ownership.owner is None:
            # No better answer will arrive.
            ownership.freeze_best_known()
            self._open_row(ownership)
        self._ended[key] = ownership.stored

    def _book_gpu_accounts(self, posting: Posting) -> None:
        uuid, booked = posting.gpu.uuid, posting.booked
        self._book_gpu_account(uuid, IDLE, booked.method, booked.idle)
        self._book_gpu_account(uuid, UNATTRIBUTED, booked.method, booked.unattributed)
        method = INTEGRATED if posting.integrated else MEASURED
        self._book_gpu_account(uuid, UNOBSERVED, method, posting.unobserved)

    def _book_gpu_account(self, uuid: str, account: str, method: str, joules: int) -> None:
        if joules:
            labels = (uuid, account, method, *_NO_OWNER)
            self._owners.add(labels, joules, self._now)
            # A Gpu's own accounts never end.
            self._owners.series[labels].alive = inf

    def balance(self, totals: Mapping[str, int]) -> None:
        """Book energy that a failed posting left in no account as unobserved."""
        for uuid, missing in self.state(totals).imbalance.items():
            if missing > 0:
                log.error("GPU %s: a posting failed; its %d mJ are booked as unobserved", uuid, missing)
                self._book_gpu_account(uuid, UNOBSERVED, MEASURED, missing)

    def resume(self, gpu: StoredGpu, now: float) -> None:
        """Continue the series and owners that an earlier run stored for a Gpu."""
        for stored in gpu.owners:
            owner = Ownership(
                stored.process,
                now - stored.age,
                stored.owner,
                None if stored.owner is None else stored.process,
                stored.resolved,
                Counter(stored.waiting),
                set(stored.methods),
                changed=False,
                stored=True,
            )
            self._known[stored.process.key] = owner
        self._owners.closed[gpu.entry.uuid] += gpu.entry.closed
        for one in gpu.series:
            counter = ExportedCounter(
                now - one.age, inf if one.lasting else now, one.amount, one.measured, one.number
            )
            counter.renamed, counter.stored = False, True
            (self._owners if one.process is None else self._rows).series[one.labels] = counter
            if one.process is not None:
                self._row_of[one.labels] = self._row_process(one.labels, one.process)
                if not one.amount:
                    # Perhaps it had no meter; the next posting decides.
                    self._unmetered_rows.add(one.labels)

    def _row_process(self, labels: Labels, process: GpuProcess) -> tuple[Ownership, GpuProcess]:
        known = self._known.get(process.key)
        if known is not None and known.shown is not None:
            if labels[2] == OTHER or _row_labels(known, frozenset()) == labels:
                return known, known.shown
            return known, process
        return Ownership(process, 0.0, process.workload, process, resolved=True, changed=False), process

    def record_changes(self, journal: Journal) -> None:
        """Add everything that the store does not have yet to the journal."""
        for counters, book in ((self._owners, OWNERS), (self._rows, ROWS)):
            for labels in counters.changed:
                counter = counters.series[labels]
                process = self._row_of[labels][1] if book == ROWS else None
                journal.add_series(book, labels, counter, process)
            counters.changed.clear()
            journal.drop_series(counters.dropped)
            counters.dropped.clear()
        for key, ownership in self._known.items():
            if ownership.changed:
                ownership.changed = False
                journal.owners[key] = ownership
        for key, stored in self._ended.items():
            if key not in self._known:
                journal.end_owner(key, stored=stored)
        self._ended.clear()

    def discard_changes(self) -> None:
        """Discard the changes to be stored: there is no store."""
        for counters in (self._owners, self._rows):
            counters.changed.clear()
            counters.dropped.clear()
        self._ended.clear()

    def mark_all_changed(self) -> None:
        """Mark everything as not stored: the store was replaced."""
        for counters in (self._owners, self._rows):
            counters.changed.update(counters.series)
            counters.dropped.clear()
            for counter in counters.series.values():
                counter.renamed, counter.stored = True, False
        for ownership in self._known.values():
            ownership.changed, ownership.stored = True, False

    @property
    def closed(self) -> Mapping[str, int]:
        """Millijoules of series that have ended, by Gpu uuid."""
        return self._owners.closed

    def state(self, totals: Mapping[str, int]) -> EnergyState:
        """The exported state after a posting. `totals` are all millijoules of each Gpu, by uuid."""
        now = self._now
        owners = tuple(AccountRow(labels, joules) for labels, joules, _ in self._owners.exported(now))
        pending = Counter(self._owners.pending(now))
        for ownership in self._known.values():
            if ownership.waiting:
                pending[ownership.process.device.gpu.uuid] += ownership.waiting.total()
        closed = self._owners.closed
        exported = Counter(closed)
        for row in owners:
            exported[row.labels[0]] += row.millijoules
        return EnergyState(
            rows=tuple(self._row(*row) for row in self._rows.exported(now)),
            owners=owners,
            totals=dict(totals),
            pending={uuid: pending[uuid] for uuid in totals},
            closed={uuid: closed[uuid] for uuid in totals},
            imbalance={uuid: totals[uuid] - exported[uuid] - pending[uuid] for uuid in totals},
            unmetered=self.unmetered,
        )

    def _row(self, labels: Labels, millijoules: int, measured: int) -> EnergyRow:
        ownership, shown = self._row_of[labels]
        active = ownership.shown is shown and self._known.get(shown.key) is ownership
        metered = not self._unmetered_rows or labels not in self._unmetered_rows
        return EnergyRow(shown, millijoules, measured, active, other=labels[2] == OTHER, metered=metered)


def _owner_labels(ownership: Ownership, method: str) -> Labels:
    labels = ownership.owner_labels.get(method)
    if labels is None:
        owner = ownership.owner or UNKNOWN
        uuid = ownership.process.device.gpu.uuid
        names = (owner.kind, owner.namespace, owner.pod, owner.container, owner.user, owner.job)
        labels = ownership.owner_labels[method] = (uuid, PROCESS, method, *names)
    return labels


def _row_labels(ownership: Ownership, omitted: frozenset[ProcessKey]) -> Labels:
    process = ownership.shown or ownership.process
    device = process.device
    if omitted and process.key in omitted:
        return (device.gpu.uuid, device.uuid, OTHER)
    if ownership.labels is not None:
        return ownership.labels
    owner = process.workload
    names = (owner.pod, owner.namespace, owner.container, owner.pod_uid, owner.container_id)
    labels = (device.gpu.uuid, device.uuid, str(process.pid), process.command, *names)
    if ownership.shown is not None:
        ownership.labels = labels
    return labels
