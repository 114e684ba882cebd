"""Booked energy as it is told: by owner (native) and by process (`energy`), held back as series need it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from math import inf

from gpuledger.ledger.energy.booking import INTEGRATED, MEASURED
from gpuledger.ledger.energy.gpu_book import Posted
from gpuledger.ledger.energy.residence import Residence
from gpuledger.ledger.held_series import Held, HeldSeries, Labels
from gpuledger.ledger.journal import OWNERS, ROWS, Journal, KeptGpu
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
_NOBODY: Labels = ("", "", "", "", "", "")


class Accounts:
    """Every joule booked since the books were opened, by the series that tell it.

    Used by the tick thread alone. `hold` and `retention` are seconds. Per Gpu, told + pending + closed is
    the Gpu's total at any moment.
    """

    def __init__(self, hold: float, retention: float) -> None:
        self._owners = HeldSeries(hold, retention)
        self._rows = HeldSeries(hold, retention)
        self._known: dict[ProcessKey, Ownership] = {}
        # Who stands behind a row, and as what process: a name that comes late makes another row.
        self._row_of: dict[Labels, tuple[Ownership, GpuProcess]] = {}
        # Processes that have gone, and whether the store knows of them.
        self._left: dict[ProcessKey, bool] = {}

    def retain(self, seconds: float) -> None:
        """From here on, go on telling those that have ended for so many seconds."""
        self._owners.retention = self._rows.retention = seconds

    def post(
        self,
        posted: list[Posted],
        alive: Mapping[ProcessKey, GpuProcess],
        untold: frozenset[ProcessKey],
        now: float,
    ) -> None:
        """Book the intervals of one tick. `alive` are its processes, named; `untold` those beyond the cap.

        Those that were there before come first: a new process under the same pid must not get the joules or
        the row of the old one.
        """
        for one in posted:
            self._post_own(one, now)
            self._post_residents(one, [who for who in one.residents if who.key not in alive], untold, now)
        for key in [key for key in self._known if key not in alive]:
            self._leave(key, untold, now)
        for key, process in alive.items():
            self._meet(key, process, untold, now)
        for one in posted:
            self._post_residents(one, [who for who in one.residents if who.key in alive], untold, now)
        self._owners.end(now)
        for labels in self._rows.end(now):
            self._row_of.pop(labels, None)

    def _post_residents(
        self, one: Posted, residents: list[Residence], untold: frozenset[ProcessKey], now: float
    ) -> None:
        for resident in residents:
            if resident.key not in self._known:
                self._meet(resident.key, resident.process, untold, now)
            joules = one.booked.processes.get(resident.key, 0)
            if joules:
                self._book(self._known[resident.key], one.booked.method, joules, untold, now)

    def _meet(self, key: ProcessKey, process: GpuProcess, untold: frozenset[ProcessKey], now: float) -> None:
        ownership = self._known.get(key)
        if ownership is None:
            ownership = self._known[key] = Ownership(process, now)
        if ownership.learn(process, now):
            self._open(ownership, untold, now)
        if ownership.owner is not None:
            for method in ownership.methods:
                self._owners.keep_alive(_owner_labels(ownership, method), now)
            self._rows.keep_alive(_row_labels(ownership, untold), now)

    def _open(self, ownership: Ownership, untold: frozenset[ProcessKey], now: float) -> None:
        """The owner is known: its row begins, and it gets what waited."""
        labels = _row_labels(ownership, untold)
        before = self._row_of.get(labels)
        if labels[2] != OTHER and before is not None and before[0].process.key != ownership.process.key:
            self._rows.replace(labels)
        self._rows.open(labels, now)
        if before is None or before[0] is not ownership:
            self._stand_behind(labels, ownership)
        for method, joules in ownership.waiting.items():
            self._book(ownership, method, joules, untold, now)
        ownership.waiting.clear()

    def _stand_behind(self, labels: Labels, ownership: Ownership) -> None:
        self._row_of[labels] = (ownership, ownership.shown or ownership.process)
        self._rows.rename(labels)

    def _book(
        self,
        ownership: Ownership,
        method: str,
        joules: int,
        untold: frozenset[ProcessKey],
        now: float,
    ) -> None:
        if ownership.owner is None:
            ownership.wait(method, joules)
            return
        self._owners.add(_owner_labels(ownership, method), joules, now)
        ownership.add_method(method)
        measured = joules if method == MEASURED else 0
        labels = _row_labels(ownership, untold)
        self._rows.add(labels, joules, now, measured)
        if labels not in self._row_of:
            self._stand_behind(labels, ownership)

    def _leave(self, key: ProcessKey, untold: frozenset[ProcessKey], now: float) -> None:
        ownership = self._known.pop(key)
        if ownership.owner is None:
            ownership.give_up()
            self._open(ownership, untold, now)
        self._left[key] = ownership.stored

    def _post_own(self, one: Posted, now: float) -> None:
        uuid, method = one.gpu.uuid, one.booked.method
        own = (
            (IDLE, method, one.booked.idle),
            (UNATTRIBUTED, method, one.booked.unattributed),
            (UNOBSERVED, INTEGRATED if one.integrated else MEASURED, one.unobserved),
        )
        for account, by, joules in own:
            if joules:
                self._give(uuid, account, by, joules, now)

    def _give(self, uuid: str, account: str, method: str, joules: int, now: float) -> None:
        labels = (uuid, account, method, *_NOBODY)
        self._owners.add(labels, joules, now)
        # A Gpu's own accounts do not end.
        self._owners.series[labels].alive = inf

    def balance(self, totals: Mapping[str, int], now: float) -> None:
        """Make good a posting that broke off: what it took and gave to nobody is unobserved."""
        for uuid, missing in self.state(totals, now).imbalance.items():
            if missing > 0:
                log.error("GPU %s: %d mJ of a posting that failed are booked as unobserved", uuid, missing)
                self._give(uuid, UNOBSERVED, MEASURED, missing, now)

    def resume(self, gpu: KeptGpu, now: float) -> None:
        """Go on from what an earlier run told of a Gpu."""
        for kept in gpu.owners:
            owner = Ownership(
                kept.process,
                now - kept.age,
                kept.owner,
                None if kept.owner is None else kept.process,
                kept.resolved,
                Counter(kept.waiting),
                set(kept.methods),
                changed=False,
                stored=True,
            )
            self._known[kept.process.key] = owner
        self._owners.closed[gpu.uuid] += gpu.closed
        for one in gpu.series:
            held = Held(now - one.age, inf if one.lasting else now, one.millijoules, one.measured, one.number)
            held.renamed, held.stored = False, True
            (self._owners if one.process is None else self._rows).series[one.labels] = held
            if one.process is not None:
                self._row_of[one.labels] = self._behind(one.labels, one.process)

    def _behind(self, labels: Labels, process: GpuProcess) -> tuple[Ownership, GpuProcess]:
        known = self._known.get(process.key)
        if known is not None and known.shown is not None:
            if labels[2] == OTHER or _row_labels(known, frozenset()) == labels:
                return known, known.shown
            return known, process
        return Ownership(process, 0.0, process.workload, process, resolved=True, changed=False), process

    def take(self, journal: Journal) -> None:
        """Hand over what is not stored yet."""
        for book, of in ((self._owners, OWNERS), (self._rows, ROWS)):
            for labels in book.changed:
                held = book.series[labels]
                behind = self._row_of[labels][1] if of == ROWS else None
                journal.take_series(of, labels, held, behind)
            book.changed.clear()
            journal.drop_series(book.dropped)
            book.dropped.clear()
        for key, ownership in self._known.items():
            if ownership.changed:
                ownership.changed = False
                journal.owners[key] = ownership
        for key, stored in self._left.items():
            if key not in self._known:
                journal.leave(key, stored=stored)
        self._left.clear()

    def keep_nothing(self) -> None:
        """There is no store: forget what would have been handed over to one."""
        for book in (self._owners, self._rows):
            book.changed.clear()
            book.dropped.clear()
        self._left.clear()

    def forget_stored(self) -> None:
        """The store is a new one: everything is to be handed over again."""
        for book in (self._owners, self._rows):
            book.changed.update(book.series)
            book.dropped.clear()
            for held in book.series.values():
                held.renamed, held.stored = True, False
        for ownership in self._known.values():
            ownership.changed, ownership.stored = True, False

    @property
    def closed(self) -> Mapping[str, int]:
        """Millijoules of series that have ended, by Gpu uuid."""
        return self._owners.closed

    def state(self, totals: Mapping[str, int], now: float) -> EnergyState:
        """As the page tells it. `totals` are millijoules by Gpu uuid since the books were opened."""
        owners = tuple(AccountRow(labels, joules) for labels, joules, _ in self._owners.told(now))
        pending = Counter(self._owners.pending(now))
        for ownership in self._known.values():
            if ownership.waiting:
                pending[ownership.process.device.gpu.uuid] += ownership.waiting.total()
        closed = self._owners.closed
        told = Counter(closed)
        for row in owners:
            told[row.labels[0]] += row.millijoules
        return EnergyState(
            rows=tuple(self._row(*told_row) for told_row in self._rows.told(now)),
            owners=owners,
            totals=dict(totals),
            pending={uuid: pending[uuid] for uuid in totals},
            closed={uuid: closed[uuid] for uuid in totals},
            imbalance={uuid: totals[uuid] - told[uuid] - pending[uuid] for uuid in totals},
        )

    def _row(self, labels: Labels, millijoules: int, measured: int) -> EnergyRow:
        ownership, shown = self._row_of[labels]
        active = ownership.shown is shown and self._known.get(shown.key) is ownership
        return EnergyRow(shown, millijoules, measured, active, other=labels[2] == OTHER)


def _owner_labels(ownership: Ownership, method: str) -> Labels:
    labels = ownership.owner_labels.get(method)
    if labels is None:
        owner = ownership.owner or UNKNOWN
        uuid = ownership.process.device.gpu.uuid
        who = (owner.kind, owner.namespace, owner.pod, owner.container, owner.user, owner.job)
        labels = ownership.owner_labels[method] = (uuid, PROCESS, method, *who)
    return labels


def _row_labels(ownership: Ownership, untold: frozenset[ProcessKey]) -> Labels:
    process = ownership.shown or ownership.process
    device = process.device
    if untold and process.key in untold:
        return (device.gpu.uuid, device.uuid, OTHER)
    if ownership.labels is not None:
        return ownership.labels
    owner = process.workload
    names = (owner.pod, owner.namespace, owner.container, owner.pod_uid, owner.container_id)
    labels = (device.gpu.uuid, device.uuid, str(process.pid), process.command, *names)
    if ownership.shown is not None:
        ownership.labels = labels
    return labels
