"""One receiver's queue: on disk, in memory while the disk takes nothing, bounded by bytes and by age."""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuledger.agent.deliver import state
from gpuledger.agent.deliver.reader import Positions, Reader, Row
from gpuledger.agent.deliver.records import HEADER_BYTES, Record, Sums
from gpuledger.agent.deliver.segments import Segment, Segments, parted, place
from gpuledger.agent.deliver.settings import DiskQueue
from gpuledger.agent.deliver.state import Sayings
from gpuledger.model.source import Clock

# What is dropped at once when the bound is reached, and what is freed at once on delivery.
_SEGMENT_BYTES: Final = 16 << 20
_SMALLEST_SEGMENT: Final = 16 << 10
_SEGMENTS: Final = 8
# Seconds after which a disk that took nothing is tried again.
_AGAIN: Final = 1.0
# A file of ours less makes room.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WHY: Final = {
    state.BYTES: "the queue has reached its max_bytes",
    state.AGE: "they are older than the queue's max_age",
    state.DISK: "the disk is full and the queue's memory_bytes are used up",
    state.CORRUPT: "their records in the queue are damaged",
    state.REJECTED: "the receiver refuses them",
    state.STOPPED: "the disk does not take them",
}


class Item:
    """A record on its way: `place` is before it in the files, but `volatile` ones are in none.

    `serial` is its turn among all that come out, `arrived` when it came out, by the clock that never steps.
    """

    __slots__ = ("arrived", "place", "record", "serial", "volatile")

    def __init__(
        self, serial: int, arrived: float, place: int, record: Record, *, volatile: bool = False
    ) -> None:
        self.serial = serial
        self.arrived = arrived
        self.place = place
        self.record = record
        self.volatile = volatile


class Queue:
    """Records in the order in which they were accepted.

    Every record that was `put` comes out of `next` once and is then told to be `delivered` or to `drop`; what
    was neither comes out again after a restart. The oldest go first when a bound is reached. Raises OSError
    when it is made and the folder cannot be used; later trouble with the disk is counted and logged.
    """

    def __init__(self, folder: Path, limits: DiskQueue, clock: Clock, sayings: Sayings) -> None:
        self.limits = limits
        self._clock = clock
        self._sayings = sayings
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments = Segments(folder, _segment_bytes(limits), synced=limits.sync_interval > 0)
        self._positions = Positions(folder / "position")
        if self._positions.damaged:
            sayings.say("position", f"{folder}/position is damaged: all that is queued is sent again")
        try:
            self._segments.open(parted(self._positions.highest)[0])
        except OSError:
            self._positions.close()
            raise
        self._reader = Reader(self._segments, self._positions.low)
        self._waiting: deque[Record] = deque()
        self._serial = 0
        self._gone_to, self._gone_for = 0, ""
        self._try_at = 0.0
        self._error = 0
        self.memory_bytes = 0
        self.blocks = self.samples = self.bytes = 0
        self.corrupt_records = 0
        self.dropped: Counter[str] = Counter(dict.fromkeys(state.REASONS, 0))
        self._count_what_is_there()

    @property
    def torn_tails(self) -> int:
        """Files whose end a crash had cut short."""
        return self._segments.torn_tails

    @property
    def disk_bytes(self) -> int:
        """What the files take."""
        return self._segments.file_bytes

    @property
    def unread_since(self) -> int | None:
        """When the oldest record that has not come out was accepted, or a little earlier; unix ms."""
        for segment in self._segments.all:
            if self._reader.unread(segment).blocks:
                return segment.sums.first
        return self._waiting[0].accepted if self._waiting else None

    @property
    def read_to(self) -> int:
        """The place up to which all records of the files have come out."""
        return self._reader.where

    def apply(self, limits: DiskQueue) -> None:
        """Keep to other bounds from now on."""
        self.limits = limits
        self._segments.segment_bytes = _segment_bytes(limits)
        self._segments.synced = limits.sync_interval > 0
        self._keep_within_bytes()

    def put(self, record: Record, *, through: bool) -> Item | None:
        """Take a record. `through`: if it is the next to come out anyway, it does so now, as the answer."""
        self._add(Sums().plus(record))
        self._flush()
        start = None if self._waiting else self._write(record)
        if start is None:
            self._hold(record)
            return None
        found = self._item(start, record) if through and self._reader.jump(start, record) else None
        self._keep_within_bytes()
        return found

    def next(self) -> Item | None:
        """The next record that no earlier run delivered; None when there is none, or none can be read now."""
        while True:
            try:
                found = self._reader.next()
            except OSError as error:
                # What waits in memory is younger, and must wait, too.
                self._sayings.say(
                    "reading",
                    f"what is queued in {self._segments.folder} cannot be read now ({error.strerror}): it is "
                    "tried again every second",
                )
                return None
            self._sayings.over("reading", f"{self._segments.folder} can be read again")
            self._take_losses()
            if found is not None:
                start, record = found
                if not self._positions.done(record.shard, start):
                    return self._item(start, record)
            elif not self._waiting:
                return None
            elif not self._flush():
                record = self._waiting.popleft()
                self.memory_bytes -= _size(record)
                return self._item(self._segments.end, record, volatile=True)

    def delivered(self, items: Iterable[Item]) -> None:
        """These are done with."""
        for item in items:
            self._remove(Sums().plus(item.record))

    def drop(self, items: Iterable[Item], reason: str) -> None:
        """These will not be delivered."""
        for item in items:
            self._remove(Sums().plus(item.record), reason)

    def save(self, points: Row) -> None:
        """Remember how far each shard is; segments that are done with go away."""
        # Without it more is sent again after a restart, and that is all.
        with suppress(OSError):
            self._positions.save(points)
        low = min(points)
        while len(self._segments.all) > 1 and place(self._first.number, self._first.size) <= low:
            self._reader.finish(self._first)
            self._segments.drop_first()
            self._try_at = 0.0
        self._take_losses()

    def unwanted(self, item: Item) -> str:
        """Why it is not to be sent any more, though it came out: one of the reasons to drop, or empty.

        It has waited for longer than allowed, or its segment was dropped; what came after it may be wanted.
        """
        if item.record.accepted < self._oldest_allowed():
            return state.AGE
        return self._gone_for if item.place < self._gone_to and not item.volatile else ""

    def tend(self) -> None:
        """What is due now and then: drop what is too old, try a disk that took nothing."""
        oldest = self._oldest_allowed()
        while self._segments.all and 0 < self._first.sums.last < oldest:
            self._drop_first(state.AGE)
        self._flush()

    def sync_job(self) -> Callable[[], None] | None:
        """What brings all that was written to the disk itself, for another thread; it raises OSError."""
        return self._segments.sync_job()

    def close(self, volatile: Iterable[Item] = ()) -> None:
        """Let go of the files. `volatile` are those that came out of memory and were not delivered.

        They can be written behind what is in the files only if nothing was read from there after them.
        """
        self._try_at = 0.0
        came_out = [item.record for item in volatile]
        self.memory_bytes += sum(map(_size, came_out))
        self._waiting.extendleft(reversed(came_out))
        self._flush()
        samples = sum(record.samples for record in self._waiting)
        if samples:
            for record in self._waiting:
                self._remove(Sums().plus(record), state.STOPPED)
            self._sayings.say("stop", f"{samples} samples that the disk did not take are lost with this stop")
        self._waiting.clear()
        self.memory_bytes = 0
        self._reader.close()
        self._segments.close()
        self._positions.close()

    @property
    def _first(self) -> Segment:
        return self._segments.all[0]

    def _item(self, start: int, record: Record, *, volatile: bool = False) -> Item:
        self._serial += 1
        return Item(self._serial, self._clock.elapsed(), start, record, volatile=volatile)

    def _oldest_allowed(self) -> float:
        return (self._clock.unix() - self.limits.max_age) * 1000

    def _write(self, record: Record) -> int | None:
        try:
            start = self._segments.append(record)
        except OSError as error:
            self._error = error.errno or 0
            self._try_at = self._clock.elapsed() + _AGAIN
            remedy = "free space there" if self._error in _FULL else "see that files can be made there"
            self._sayings.say(
                "disk",
                f"{self._segments.folder} takes nothing ({error.strerror}): up to {self.limits.memory_bytes} "
                f"bytes wait in memory, then the oldest samples are dropped; {remedy}",
            )
            return None
        self._error = 0
        self._sayings.over("disk", f"{self._segments.folder} is written to again")
        return start

    def _flush(self) -> int:
        """Write what waits in memory, if the disk takes it now; answers how many records that were."""
        written = 0
        while self._waiting and self._clock.elapsed() >= self._try_at:
            if self._write(self._waiting[0]) is None:
                break
            self.memory_bytes -= _size(self._waiting.popleft())
            written += 1
            self._keep_within_bytes()
        return written

    def _hold(self, record: Record) -> None:
        """Keep it in memory, behind the others; the oldest go when there are too many."""
        self._waiting.append(record)
        self.memory_bytes += _size(record)
        if self.memory_bytes > self.limits.memory_bytes and self._error in _FULL and self._segments.all:
            self._drop_first(state.DISK)
            self._try_at = 0.0
            self._flush()
        while self.memory_bytes > self.limits.memory_bytes:
            oldest = self._waiting.popleft()
            self.memory_bytes -= _size(oldest)
            self._remove(Sums().plus(oldest), state.DISK)

    def _keep_within_bytes(self) -> None:
        while self._segments.file_bytes > self.limits.max_bytes and len(self._segments.all) > 1:
            self._drop_first(state.BYTES)

    def _drop_first(self, reason: str) -> None:
        segment = self._first
        unread = self._reader.unread(segment)
        self._segments.drop_first()
        self._reader.leave(segment)
        # What came out of it goes as well, or the oldest would be kept and younger ones be dropped.
        self._gone_to, self._gone_for = place(segment.number + 1, 0), reason
        self._remove(unread, reason)

    def _take_losses(self) -> None:
        reader = self._reader
        if reader.corrupt_records:
            self.corrupt_records += reader.corrupt_records
            self._sayings.say("corrupt", f"records in {self._segments.folder} are damaged and passed over")
            reader.corrupt_records = 0
        if reader.lost.blocks:
            self._remove(reader.lost, state.CORRUPT)
        reader.lost = Sums()

    def _count_what_is_there(self) -> None:
        low = self._positions.low
        while self._segments.all and place(self._first.number, self._first.size) <= low:
            self._reader.leave(self._segments.drop_first())
        for segment in self._segments.all:
            self._add(segment.sums)
        self._remove(self._segments.sums_before(low))
        top = max(map(max, self._positions.rows), default=0)
        probe = Reader(self._segments, low)
        while probe.where < top and (found := probe.next()):
            if self._positions.done(found[1].shard, found[0]):
                self._remove(Sums().plus(found[1]))
        probe.close()

    def _add(self, sums: Sums) -> None:
        self.blocks += sums.blocks
        self.samples += sums.samples
        self.bytes += sums.bytes

    def _remove(self, sums: Sums, dropped: str = "") -> None:
        self.blocks -= sums.blocks
        self.samples -= sums.samples
        self.bytes -= sums.bytes
        if dropped and sums.blocks:
            self.dropped[dropped] += sums.samples
            self._sayings.say(
                dropped,
                f"{sums.samples} samples dropped: {_WHY[dropped]}; {self.dropped[dropped]} so far",
            )


def _segment_bytes(limits: DiskQueue) -> int:
    return min(_SEGMENT_BYTES, max(_SMALLEST_SEGMENT, limits.max_bytes // _SEGMENTS))


def _size(record: Record) -> int:
    return HEADER_BYTES + len(record.body)
