"""Exported counters of GPU time, by account and owner, by one basis.

As with energy, a new series is 0 for `hold` seconds and then has its full value, and it ends `retention`
seconds after its owner was last present. Time of an owner known only by id waits for its names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gpuledger.ledger.energy.counter import LONGEST_INTERVAL
from gpuledger.ledger.owners import Labels, labels_of
from gpuledger.ledger.ownership import OWNER_TIMEOUT
from gpuledger.ledger.time.account import OWNER, UNCUT, TimeAccount, is_named
from gpuledger.ledger.time.span import TimePosting
from gpuledger.ledger.time.split import ALLOCATION
from gpuledger.model.session import IDLE, TimeRow, TimeState
from gpuledger.model.workload import PENDING_NAMES, UNKNOWN, Workload

_NO_OWNER: Labels = ("",) * 6


@dataclass(slots=True)
class _TimeCounter:
    """One series in microseconds.

    `exported` is the highest value until now: one more microsecond of a Gpu can leave an account one less.
    `born` and `alive` (when its owner was last present) are seconds of the source's clock.
    """

    born: float
    alive: float
    microseconds: int = 0
    exported: int = 0


class _Waiting(NamedTuple):
    """The key of an owner without a name: uuid and Instance, then the ids of pod and container."""

    uuid: str
    instance: str
    pod_uid: str
    container_id: str


class TimeAccounts:
    """All time since the ledger was created, by exported series. Used only by the tick thread.

    `hold` and `retention` are seconds. Per Gpu, exported + pending + closed is the watched time, within a
    microsecond for each series.
    """

    def __init__(self, hold: float, retention: float, basis: str = ALLOCATION) -> None:
        self.hold = hold
        self.retention = retention
        self.basis = basis
        self._series: dict[Labels, _TimeCounter] = {}
        self._waiting: dict[_Waiting, _TimeCounter] = {}
        self._closed: Counter[str] = Counter()
        # The counters of the newest span of each Gpu, in the order of its accounts.
        self._of_span: dict[str, tuple[int, list[_TimeCounter]]] = {}
        self._now = 0.0
        # When time of a Gpu was last decided.
        self._decided: dict[str, float] = {}

    def post(self, posted: list[TimePosting], now: float) -> None:
        """Book the time of one tick."""
        self._now = now
        for one in posted:
            self._decided[one.gpu.uuid] = now
            changes = one.allocation if self.basis == ALLOCATION else one.residence
            for counter, change in zip(self._counters(one), changes, strict=True):
                counter.microseconds += change
                if counter.alive < now:
                    counter.alive = now
                if counter.microseconds > counter.exported:
                    counter.exported = counter.microseconds
        if self._waiting:
            self._expire_waiting()
        self._end_series()

    def _counters(self, posting: TimePosting) -> list[_TimeCounter]:
        span, uuid = posting.span, posting.gpu.uuid
        number, counters = self._of_span.get(uuid, (0, []))
        if number != span.number:
            split = span.split(self.basis)
            counters = [
                self._counter(uuid, account, owner)
                for account, owner in zip(split.accounts, split.owners, strict=True)
            ]
            self._of_span[uuid] = (span.number, counters)
        return counters

    def _counter(self, uuid: str, account: TimeAccount, owner: Workload | None) -> _TimeCounter:
        if owner is None:
            name = IDLE if account.account == UNCUT else account.account
            counter = self._open((uuid, "", name, *_NO_OWNER))
            # A Gpu's own accounts never end.
            counter.alive = inf
            return counter
        key = _Waiting(uuid, account.instance, owner.pod_uid, owner.container_id)
        if not is_named(owner) and owner.missing in PENDING_NAMES:
            return self._waiting.setdefault(key, _TimeCounter(self._now, self._now))
        counter = self._open((uuid, account.instance, account.account, *labels_of(owner)))
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            _move(waiting, counter)
        return counter

    def _open(self, labels: Labels) -> _TimeCounter:
        counter = self._series.get(labels)
        if counter is None:
            counter = self._series[labels] = _TimeCounter(self._now, self._now)
        return counter

    def _has_left(self, uuid: str, counter: _TimeCounter) -> bool:
        """Whether the owner has left, or its Gpu: while time is pending, nobody knows who left."""
        is_decided = counter.alive < self._decided.get(uuid, 0.0)
        return self._now - counter.alive > (0 if is_decided else LONGEST_INTERVAL)

    def _expire_waiting(self) -> None:
        """Export waiting owners as unknown if they left or if their names did not arrive in time."""
        for key, waiting in list(self._waiting.items()):
            is_gone = self._has_left(key.uuid, waiting)
            if waiting.microseconds and (is_gone or self._now - waiting.born >= OWNER_TIMEOUT):
                unknown = self._open((key.uuid, key.instance, OWNER, *labels_of(UNKNOWN)))
                unknown.alive = max(unknown.alive, waiting.alive)
                _move(waiting, unknown)
            if is_gone:
                del self._waiting[key]

    def _end_series(self) -> None:
        """Drop series that were exported long enough after their owner left."""
        now = self._now
        gone = [
            labels
            for labels, counter in self._series.items()
            if now - counter.alive >= self.retention
            and self._has_left(labels[0], counter)
            and now - counter.born >= 2 * self.hold
        ]
        for labels in gone:
            self._closed[labels[0]] += self._series.pop(labels).microseconds
            # A span may go on with its counter after a pause.
            self._of_span.pop(labels[0], None)

    def state(self, watched: Mapping[str, int]) -> TimeState:
        """The exported state after a posting. `watched` are all microseconds of each Gpu, by uuid."""
        rows, now, hold = [], self._now, self.hold
        pending = Counter(watched)
        for labels, counter in self._series.items():
            shown = counter.exported if now - counter.born >= hold else 0
            rows.append(TimeRow(labels, shown))
            if shown:
                pending[labels[0]] -= counter.microseconds
        closed = {uuid: self._closed[uuid] for uuid in watched}
        pending.subtract(closed)
        return TimeState(self.basis, tuple(rows), dict(watched), dict(pending), closed)


def _move(source: _TimeCounter, target: _TimeCounter) -> None:
    target.microseconds += source.microseconds
    target.exported = max(target.exported, target.microseconds)
    source.microseconds = source.exported = 0
