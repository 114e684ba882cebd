"""Records what each owner does on each Device, tick by tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuledger.ledger.holders import holding_allocations
from gpuledger.ledger.service_processes import NO_PROCESSES
from gpuledger.ledger.sessions import RATIO, OpenSession, Sessions
from gpuledger.ledger.throttling import ThrottledInterval
from gpuledger.ledger.usage.usage_cell import UsageCell
from gpuledger.ledger.usage.usage_period import (
    UNKNOWN_START,
    WAITING,
    Tick,
    TickSums,
    UsageKey,
    UsagePeriod,
    usage_key,
)
from gpuledger.ledger.watched_time import MINUTE, QUARTER, observed_seconds
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.model.process import ProcessKey
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import PENDING_NAMES, Workload, merge_owner

# A presence ends after an absence of this many seconds: programs that run one after the other are one.
_ABSENCE: Final = 60.0
# Seconds between two times that cells are stored, unless an owner comes or goes: they change at every tick.
_STORE_PERIOD: Final = 10.0
# The counters of bytes, in the order of `BYTES`.
_COUNTERS: Final = (q.PCIE_TX, q.PCIE_RX, q.NVLINK_TX, q.NVLINK_RX)
_NO_COUNTERS: Final = (None,) * len(_COUNTERS)


@dataclass(slots=True)
class _DeviceUsage:
    """The presences on one Device. `placed` has the owner and the presence of each Session, by number.

    `groups` are the Sessions of each presence at the last reading; `is_renamed` requests new ones.
    `allocated` are the owners of the last allocations with their presences, `present` the presences of the
    last reading. `counters` are the last values of the counters of bytes, `reads` counts readings with a
    process list.
    """

    device: Device
    owners: dict[UsageKey, UsagePeriod] = field(default_factory=dict)
    placed: dict[int, tuple[Workload, UsagePeriod]] = field(default_factory=dict)
    groups: dict[UsagePeriod, list[OpenSession]] = field(default_factory=dict)
    is_renamed: bool = True
    allocated: list[tuple[Workload, UsagePeriod]] = field(default_factory=list)
    present: tuple[UsagePeriod, ...] = ()
    counters: tuple[float | None, ...] = _NO_COUNTERS
    reads: int = 0
    memory: int | None = None

    def moved(self, reading: Reading) -> tuple[int | None, ...]:
        """Bytes moved since the last tick; empty if no counter is read, None for one that restarted."""
        before, now = self.counters, tuple(map(reading.values.get, _COUNTERS))
        self.counters = now
        return () if now == _NO_COUNTERS else tuple(map(_moved, before, now))


class UsageRecorder:
    """Sums by owner and Device, in cells of a quarter. Used only by the tick thread.

    Time counts as in Sessions: from one reading of the process list to the next, at most a minute. What was
    not seen is in no cell: means are over the time that was seen.
    """

    def __init__(self) -> None:
        self._devices: dict[str, _DeviceUsage] = {}
        self._elapsed: float | None = None
        self._next = 1
        # What is not in the journal yet.
        self._cells: dict[tuple[int, int], UsageCell] = {}
        self._changed: list[UsagePeriod] = []
        self._memory: dict[str, int] = {}
        # When the cells are to be stored again, on the source's clock; whether it is time.
        self._due = 0.0
        self.is_due = False

    def resume(self, stored: Iterable[UsagePeriod], next_number: int, seen_at: float) -> None:
        """Continue the presences that an earlier run left; number new ones from `next_number`.

        `seen_at` is the end of that run on the source's clock.
        """
        for period in stored:
            period.seen_at = seen_at
            one = self._devices.setdefault(period.device.uuid, _DeviceUsage(period.device))
            one.owners[period.key] = period
        self._next = next_number

    def interrupt(self) -> None:
        """Observation stops until the next posting."""
        self._elapsed = None

    def post(
        self,
        snapshot: Snapshot,
        sessions: Sessions,
        passive: frozenset[ProcessKey] = NO_PROCESSES,
        throttled: Mapping[str, ThrottledInterval] | None = None,
    ) -> None:
        """Add one tick. `sessions` are those after this tick.

        `passive` are processes that only serve others or draw. `throttled` are the intervals of throttling
        that end with this tick, by Gpu uuid; None if the counters were not read now.
        """
        seconds = observed_seconds(self._elapsed, snapshot.elapsed)
        self._elapsed = snapshot.elapsed
        if not seconds:
            self._forget_waits()
        allocated = holding_allocations(snapshot)
        begins, unix = snapshot.unix - seconds, snapshot.unix
        milliseconds = round(seconds * 1000)
        quarter, bar = int(begins // QUARTER), int(begins % QUARTER // MINUTE)
        tick = Tick(1000 * milliseconds, milliseconds, begins, unix, snapshot.elapsed, quarter, bar)
        here: set[str] = set()
        unread: set[str] = set()
        for reading in snapshot.process_readings:
            uuid = reading.device.uuid
            here.add(uuid)
            one = self._devices.get(uuid)
            if one is None:
                one = self._devices[uuid] = _DeviceUsage(reading.device)
            moved = one.moved(reading) if isinstance(reading.device, Gpu) else ()
            if reading.processes is None or not reading.up:
                unread.add(uuid)
                continue
            one.device, one.reads = reading.device, one.reads + 1
            tick.read, tick.busy, tick.moved = one.reads, _busy(reading), moved
            found = self._tick_sums(one, sessions, allocated.get(uuid, ()), passive, tick)
            self._book(one, found, tick)
            self._record_memory(one, reading)
        if throttled is not None:
            self._add_throttled(throttled)
        self._end_absent(snapshot, here, unread)
        if self.is_due or self._changed or not 0 < self._due - snapshot.elapsed <= _STORE_PERIOD:
            self.is_due, self._due = True, snapshot.elapsed + _STORE_PERIOD

    def _forget_waits(self) -> None:
        """After a gap it is not known whether an engine was busy for those who waited."""
        for one in self._devices.values():
            for period in one.owners.values():
                if period.start is WAITING:
                    period.start = UNKNOWN_START
                    self._changed.append(period)

    def _tick_sums(
        self,
        one: _DeviceUsage,
        sessions: Sessions,
        allocated: Sequence[Workload],
        passive: frozenset[ProcessKey],
        tick: Tick,
    ) -> dict[UsagePeriod, TickSums]:
        """The sums of each presence on a Device, in order of allocations and processes."""
        found: dict[UsagePeriod, TickSums] = {}
        for period in self._allocated(one, allocated, tick):
            if period not in found:
                found[period] = TickSums(period, is_allocated=True)
        uuid = one.device.uuid
        is_same = uuid not in sessions.unsteady and not one.is_renamed
        if not is_same:
            sessions.unsteady.discard(uuid)
            one.is_renamed = False
            self._group(one, sessions.by_device.get(uuid, {}).values(), found, tick)
        for period, group in one.groups.items():
            sums = found.get(period)
            if sums is None:
                sums = found[period] = TickSums(period)
            if is_same and not passive:
                sums.add_old_sessions(group)
                continue
            for session in group:
                # As in Sessions, time counts from the first sight on.
                is_old = session.first_seen != tick.unix
                is_passive = bool(passive) and session.process.key in passive
                sums.add_session(session, is_old=is_old, is_passive=is_passive)
        return found

    def _group(
        self,
        one: _DeviceUsage,
        present: Iterable[OpenSession],
        found: dict[UsagePeriod, TickSums],
        tick: Tick,
    ) -> None:
        """Assign the processes on a Device to presences."""
        before, one.placed, one.groups = one.placed, {}, {}
        for session in present:
            number, owner = session.number, session.process.workload
            placed = before.get(number)
            if placed is None or placed[0] is not owner or placed[1].over:
                was, placed = placed, (owner, self._place(one, owner, placed, before, tick))
                self._follow(one, found, placed[1], was)
            one.placed[number] = placed
            one.groups.setdefault(placed[1], []).append(session)

    def _follow(
        self,
        one: _DeviceUsage,
        found: dict[UsagePeriod, TickSums],
        period: UsagePeriod,
        was: tuple[Workload, UsagePeriod] | None,
    ) -> None:
        """Move what this tick counted under an id to the owner that it turned out to be."""
        if was is None or was[1] is period or not was[1].over:
            return
        moved = found.pop(was[1], None)
        if moved is not None:
            sums = found.setdefault(period, TickSums(period))
            sums.add_sums(moved)
            sums.is_allocated = sums.is_allocated or moved.is_allocated
        one.groups.setdefault(period, []).extend(one.groups.pop(was[1], ()))

    def _allocated(self, one: _DeviceUsage, owners: Sequence[Workload], tick: Tick) -> list[UsagePeriod]:
        """The presences of the owners to which the Device is allocated."""
        known = one.allocated
        if not known and not owners:
            return []
        if len(known) != len(owners) or any(
            before[0] is not owner or before[1].over for before, owner in zip(known, owners, strict=True)
        ):
            known = []
            for owner in owners:
                key = usage_key(owner)
                period = one.owners.get(key) or self._begin(one, key, owner, tick)
                known.append((owner, period))
            one.allocated = known
        return [period for _, period in known]

    def _begin(self, one: _DeviceUsage, key: UsageKey, owner: Workload, tick: Tick) -> UsagePeriod:
        """A new presence. One that is found after a gap began at an unknown time."""
        start = WAITING if tick.microseconds else UNKNOWN_START
        period = UsagePeriod(self._next, one.device, owner, tick.unix, tick.elapsed, key, start)
        self._next += 1
        one.owners[key] = period
        self._changed.append(period)
        return period

    def _place(
        self,
        one: _DeviceUsage,
        owner: Workload,
        placed: tuple[Workload, UsagePeriod] | None,
        before: Mapping[int, tuple[Workload, UsagePeriod]],
        tick: Tick,
    ) -> UsagePeriod:
        """The presence of a process that is new, or has another owner than at the last tick."""
        key = usage_key(owner)
        period = one.owners.get(key) or _same_pod(one, owner)
        old = None if placed is None else placed[1]
        if old is not None and old is not period and not old.over and _can_be_renamed(old, before):
            if period is None:
                del one.owners[old.key]
                old.key, one.owners[key], period = key, old, old
            else:
                self._merge(one, old, period)
        if period is None:
            return self._begin(one, key, owner, tick)
        self._name(period, owner)
        return period

    def _name(self, period: UsagePeriod, owner: Workload) -> None:
        """Use the newest names of an owner."""
        known = merge_owner(period.owner, owner)
        if known != period.owner and not (known.missing in PENDING_NAMES and usage_key(known) != period.key):
            period.owner = known
            self._changed.append(period)

    def _merge(self, one: _DeviceUsage, old: UsagePeriod, period: UsagePeriod) -> None:
        """End a presence that was known by an id only: it is that of another presence.

        Its stored cells remain, under the name of the other. The sums of readers are of both.
        """
        del one.owners[old.key]
        old.owner, old.over, one.is_renamed = period.owner, True, True
        period.read = max(period.read, old.read)
        self._changed.append(old)

    def _book(self, one: _DeviceUsage, found: dict[UsagePeriod, TickSums], tick: Tick) -> None:
        tick.owners = sum([sums.is_allocated or sums.is_owner for sums in found.values()])
        if one.present != (present := tuple(found)):
            one.present, self.is_due = present, True
        for period, sums in found.items():
            start = period.start
            self._cells[tick.quarter, period.number] = sums.book(tick)
            if period.start is not start:
                self._changed.append(period)

    def _record_memory(self, one: _DeviceUsage, reading: Reading) -> None:
        size = reading.values.get(q.MEMORY_TOTAL)
        if size is not None and size != one.memory:
            one.memory = self._memory[one.device.uuid] = int(size)

    def _add_throttled(self, throttled: Mapping[str, ThrottledInterval]) -> None:
        """Add the throttled time of an interval to all who were there, in proportion to their time in it."""
        for one in self._devices.values():
            interval = throttled.get(one.device.gpu.uuid)
            for period in one.owners.values():
                seen, period.unthrottled = period.unthrottled, 0
                cell = period.cell
                if interval is None or not seen or cell is None:
                    continue
                seen = min(seen, interval.microseconds)
                cell.throttle_known += seen
                cell.add_throttled(
                    {
                        reason: slowed * seen // interval.microseconds
                        for reason, slowed in interval.reasons.items()
                    }
                )
                self._cells[cell.quarter, period.number] = cell

    def _end_absent(self, snapshot: Snapshot, here: set[str], unread: set[str]) -> None:
        """End presences of which nothing was seen for a while, unless their Device could not be read."""
        oldest = snapshot.elapsed - _ABSENCE
        for uuid, one in list(self._devices.items()):
            if uuid in unread or (uuid not in here and not snapshot.is_gone(one.device)):
                continue
            for key in [key for key, period in one.owners.items() if period.seen_at < oldest]:
                self._end(one.owners.pop(key))
            if uuid not in here and not one.owners:
                del self._devices[uuid]

    def _end(self, period: UsagePeriod) -> None:
        period.over = True
        self._changed.append(period)

    def take_changed(
        self,
    ) -> tuple[list[UsagePeriod], dict[tuple[int, int], UsageCell], dict[str, int]]:
        """The presences, cells (by quarter and presence) and memory sizes that are not stored yet.

        `is_due` says whether the cells are to be stored now.
        """
        found = (self._changed, self._cells, self._memory)
        self._changed, self._cells, self._memory = [], {}, {}
        self.is_due = False
        return found

    def mark_all_changed(self) -> None:
        """Mark everything in memory as not stored: the store was replaced."""
        for uuid, one in self._devices.items():
            for period in one.owners.values():
                self._changed.append(period)
                if period.cell is not None:
                    self._cells[period.cell.quarter, period.number] = period.cell
            if one.memory is not None:
                self._memory[uuid] = one.memory


def _moved(before: float | None, now: float | None) -> int | None:
    """The rise of a counter; None if it restarted, or was not read at both ends."""
    return None if before is None or now is None or now < before else int(now - before)


def _busy(reading: Reading) -> int | None:
    """The Device's own utilization in ten-thousandths; None if it is not reported."""
    is_instance = isinstance(reading.device, Instance)
    share = reading.values.get(q.ENGINE_ACTIVITY if is_instance else q.UTILIZATION)
    return None if share is None else round(share * RATIO)


def _same_pod(one: _DeviceUsage, owner: Workload) -> UsagePeriod | None:
    """The presence of the named pod of a process of which only the UID of the pod is known."""
    if owner.missing not in PENDING_NAMES or not owner.pod_uid or owner.pod:
        return None
    named = (period for period in one.owners.values() if period.owner.pod)
    return next((period for period in named if period.owner.pod_uid == owner.pod_uid), None)


def _can_be_renamed(old: UsagePeriod, before: Mapping[int, tuple[Workload, UsagePeriod]]) -> bool:
    """Whether a presence is that of the owner that one of its processes has now."""
    if old.awaits_name:
        return True
    return old.owner.kind == "unknown" and sum(period is old for _, period in before.values()) == 1
