"""Exported counters of GPU time, by account and owner, by one basis.

As with energy, a new series is 0 for `hold` seconds and then has its full value, and it ends `retention`
seconds after its owner was last present. Time of an owner known only by id waits for its names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from gpuledger.ledger.exported_counters import ExportedCounter, ExportedCounters, Labels
from gpuledger.ledger.journal import TIME, Journal, StoredSeries
from gpuledger.ledger.owners import labels_of
from gpuledger.ledger.ownership import OWNER_TIMEOUT
from gpuledger.ledger.time.account import OWNER, UNCUT, TimeAccount, is_named
from gpuledger.ledger.time.span import TimePosting
from gpuledger.model.session import ALLOCATION, IDLE, TimeRow, TimeState
from gpuledger.model.snapshot import LONGEST_INTERVAL
from gpuledger.model.workload import PENDING_NAMES, UNKNOWN, Workload, best_known

_NO_OWNER: Labels = ("",) * 6
_WAITING = "waiting"


class _Waiting(NamedTuple):
    """The key of an owner without a name: uuid and Instance, then `Workload.ids`."""

    uuid: str
    instance: str
    pod_uid: str
    container_id: str

    @property
    def labels(self) -> Labels:
        """The labels under which the store keeps the time; no series has so few."""
        return (self.uuid, self.instance, _WAITING, self.pod_uid, self.container_id)


_Series = list[tuple[Labels, ExportedCounter]]


class TimeAccounts:
    """All time since the ledger was created, by exported series. Used only by the tick thread.

    `hold` and `retention` are seconds. Per Gpu, exported + pending + closed is the watched time, within a
    microsecond for each series.
    """

    def __init__(self, hold: float, retention: float, basis: str = ALLOCATION) -> None:
        self.basis = basis
        self._counters = ExportedCounters(hold, retention)
        self._waiting: dict[_Waiting, ExportedCounter] = {}
        # What is known of the waiting owners; nothing after a restart, until they are seen.
        self._best_known: dict[_Waiting, Workload] = {}
        # The series of the newest span of each Gpu, in the order of its accounts.
        self._of_span: dict[str, tuple[int, _Series]] = {}
        # Series that got time since the store took the changes.
        self._posted: list[_Series] = []
        self._now = 0.0
        # When time of a Gpu was last decided.
        self._decided: dict[str, float] = {}

    def set_hold(self, seconds: float) -> None:
        """Export new series as 0 for this many seconds from now on."""
        self._counters.hold = seconds

    def export_until(self, latest: float) -> None:
        """Export series in full that began until then, as an earlier run did."""
        self._counters.export_until(latest)

    def set_retention(self, seconds: float) -> None:
        """Export ended series for this many seconds from now on."""
        self._counters.retention = seconds

    @property
    def closed(self) -> Mapping[str, int]:
        """Microseconds of series that have ended, by Gpu uuid."""
        return self._counters.closed

    def post(self, posted: list[TimePosting], now: float) -> None:
        """Book the time of one tick."""
        self._now = now
        for one in posted:
            self._decided[one.gpu.uuid] = now
            changes = one.allocation if self.basis == ALLOCATION else one.residence
            series = self._series(one)
            for (_, counter), change in zip(series, changes, strict=True):
                counter.amount += change
            # Several accounts can have one series: its highest amount is that after all of them.
            for _, counter in series:
                if counter.alive < now:
                    counter.alive = now
                if counter.amount > counter.measured:
                    counter.measured = counter.amount
            self._posted.append(series)
        if self._waiting:
            self._expire_waiting()
        for labels in self._counters.end(now, self._has_left):
            # A span may go on with its counter after a pause.
            self._of_span.pop(labels[0], None)

    def _series(self, posting: TimePosting) -> _Series:
        span, uuid = posting.span, posting.gpu.uuid
        number, series = self._of_span.get(uuid, (0, []))
        if number != span.number:
            split = span.split(self.basis)
            series = [
                self._account_series(uuid, account, owner)
                for account, owner in zip(split.accounts, split.owners, strict=True)
            ]
            self._of_span[uuid] = (span.number, series)
        return series

    def _account_series(
        self, uuid: str, account: TimeAccount, owner: Workload | None
    ) -> tuple[Labels, ExportedCounter]:
        if owner is None:
            labels = (uuid, "", IDLE if account.account == UNCUT else account.account, *_NO_OWNER)
            counter = self._counters.open(labels, self._now)
            # A Gpu's own accounts never end.
            counter.alive = inf
            return labels, counter
        key = _Waiting(uuid, account.instance, *owner.ids)
        if not is_named(owner) and owner.missing in PENDING_NAMES:
            self._best_known[key] = best_known(owner)
            return key.labels, self._waiting.setdefault(key, ExportedCounter(self._now, self._now))
        labels = (uuid, account.instance, account.account, *labels_of(owner))
        counter = self._counters.open(labels, self._now)
        for ids in owner.earlier_ids if self._waiting else ():
            key = _Waiting(uuid, account.instance, *ids)
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                self._best_known.pop(key, None)
                self._move(waiting, labels)
                self._counters.drop(waiting)
        return labels, counter

    def _move(self, waiting: ExportedCounter, labels: Labels) -> None:
        target = self._counters.series[labels]
        target.amount += waiting.amount
        target.measured = max(target.measured, target.amount)
        waiting.amount = waiting.measured = 0
        self._counters.changed.add(labels)

    def _has_left(self, uuid: str, counter: ExportedCounter) -> bool:
        """Whether the owner has left, or its Gpu: while time is pending, nobody knows who left."""
        is_decided = counter.alive < self._decided.get(uuid, 0.0)
        return self._now - counter.alive > (0 if is_decided else LONGEST_INTERVAL)

    def _expire_waiting(self) -> None:
        """Export waiting owners as far as known if their names did not arrive in time.

        An owner may be missing before: time goes to its Allocation until its processes have their names, and
        after a restart to nobody until both were read.
        """
        for key, waiting in list(self._waiting.items()):
            if self._now - waiting.born < OWNER_TIMEOUT:
                continue
            if waiting.amount:
                owner = self._best_known.get(key, UNKNOWN)
                labels = (key.uuid, key.instance, OWNER, *labels_of(owner))
                unknown = self._counters.open(labels, self._now)
                unknown.alive = max(unknown.alive, waiting.alive)
                self._move(waiting, labels)
            if self._has_left(key.uuid, waiting):
                del self._waiting[key]
                self._best_known.pop(key, None)
                self._counters.drop(waiting)

    def resume(self, uuid: str, stored: Iterable[StoredSeries], closed: int, now: float) -> None:
        """Continue the series that an earlier run stored for a Gpu."""
        self._counters.closed[uuid] += closed
        for one in stored:
            alive = inf if one.lasting else now
            counter = ExportedCounter(now - one.age, alive, one.amount, one.measured, one.number)
            counter.renamed, counter.stored = False, True
            if one.labels[2] == _WAITING:
                _, instance, _, pod_uid, container_id = one.labels
                ids = Workload(pod_uid=pod_uid, container_id=container_id).ids
                self._waiting[_Waiting(uuid, instance, *ids)] = counter
            else:
                self._counters.series[one.labels] = counter

    def record_changes(self, journal: Journal) -> None:
        """Add everything that the store does not have yet to the journal."""
        counters = self._counters
        for series in self._posted:
            for labels, counter in series:
                if labels[2] != _WAITING and counter.number not in counters.dropped:
                    journal.add_series(TIME, labels, counter, None)
        for labels in counters.changed:
            journal.add_series(TIME, labels, counters.series[labels], None)
        if self._waiting:
            for key, waiting in self._waiting.items():
                journal.add_series(TIME, key.labels, waiting, None)
        journal.drop_series(counters.dropped)
        self.discard_changes()

    def discard_changes(self) -> None:
        """Discard the changes to be stored."""
        self._posted.clear()
        self._counters.changed.clear()
        self._counters.dropped.clear()

    def mark_all_changed(self) -> None:
        """Mark everything as not stored: the store was replaced."""
        self._counters.changed.update(self._counters.series)
        self._counters.dropped.clear()
        for counter in (*self._counters.series.values(), *self._waiting.values()):
            counter.renamed, counter.stored = True, False

    def state(self, watched: Mapping[str, int]) -> TimeState:
        """The exported state after a posting. `watched` are all microseconds of each Gpu, by uuid."""
        rows, pending = [], Counter(watched)
        latest = self._counters.latest(self._now)
        for labels, counter in self._counters.series.items():
            shown = counter.measured if counter.born <= latest else 0
            rows.append(TimeRow(labels, shown))
            if shown:
                pending[labels[0]] -= counter.amount
        closed = {uuid: self.closed[uuid] for uuid in watched}
        pending.subtract(closed)
        return TimeState(self.basis, tuple(rows), dict(watched), dict(pending), closed)
