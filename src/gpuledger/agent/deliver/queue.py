"""Queue of one receiver: on disk, in memory while the disk is not writable, bounded by bytes and age."""

from __future__ import annotations

import errno
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuledger.agent.deliver import state
from gpuledger.agent.deliver.queue_reader import DeliveredPositions, PositionRow, QueueReader
from gpuledger.agent.deliver.records import HEADER_BYTES, Record, RecordTotals
from gpuledger.agent.deliver.segments import Segment, SegmentFiles, make_position, split_position
from gpuledger.agent.deliver.settings import DiskQueueLimits
from gpuledger.agent.deliver.state import ThrottledLog
from gpuledger.model.source import Clock

# Segment size: the unit in which a full queue drops records and delivery frees disk space.
_SEGMENT_BYTES: Final = 16 << 20
_SMALLEST_SEGMENT: Final = 16 << 10
_SEGMENTS: Final = 8
# Seconds until a failed disk write is retried.
_RETRY_SECONDS: Final = 1.0
# Errors that deleting a segment can fix.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_WHY: Final = {
    state.BYTES: "the queue has reached its max_bytes",
    state.AGE: "they are older than the queue's max_age",
    state.DISK: "the disk is full and the queue's memory_bytes are used up",
    state.CORRUPT: "their records in the queue are damaged",
    state.REJECTED: "the receiver rejected them",
    state.STOPPED: "they could not be written to the disk before the stop",
}


@dataclass(slots=True, eq=False)
class QueuedRecord:
    """A dequeued record.

    `position`: where it begins in the segment files. `in_memory`: it is in no file. `serial`: its number in
    dequeue order. `dequeued_at`: monotonic time in seconds.
    """

    serial: int
    dequeued_at: float
    position: int
    record: Record
    in_memory: bool = False


class ReceiverQueue:
    """FIFO queue of records.

    `next_record` returns every appended record once; the caller then passes it to `finish`,
    else it is returned again after a restart. At a bound, the oldest records are dropped first. The
    constructor raises OSError if the folder is unusable; later disk errors are counted and logged. `reader`
    has dequeued all records of the `segments` before its position.
    """

    def __init__(
        self, folder: Path, limits: DiskQueueLimits, clock: Clock, throttled_log: ThrottledLog
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._throttled_log = throttled_log
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.segments = SegmentFiles(folder, _segment_bytes(limits), synced=limits.sync_interval > 0)
        self._positions = DeliveredPositions(folder / "position")
        if self._positions.damaged:
            throttled_log.warn("position", f"{folder}/position is damaged: all queued samples are sent again")
        try:
            self.segments.open(split_position(self._positions.highest)[0])
        except OSError:
            self._positions.close()
            raise
        self.reader = QueueReader(self.segments, self._positions.lowest)
        self._waiting: deque[Record] = deque()
        self._serial = 0
        self._dropped_before, self._dropped_reason = 0, ""
        self._retry_at = 0.0
        self._error = 0
        self.memory_bytes = 0
        self.blocks = self.samples = self.bytes = 0
        self.corrupt_records = 0
        self.dropped: Counter[str] = Counter(dict.fromkeys(state.REASONS, 0))
        self._count_queued()

    @property
    def unread_since(self) -> int | None:
        """When the oldest record that is not dequeued was accepted, or slightly earlier; unix ms."""
        for segment in self.segments.all:
            if self.reader.unread(segment).blocks:
                return segment.totals.first
        return self._waiting[0].accepted if self._waiting else None

    def apply(self, limits: DiskQueueLimits) -> None:
        """Apply other bounds."""
        self.limits = limits
        self.segments.segment_bytes = _segment_bytes(limits)
        self.segments.synced = limits.sync_interval > 0
        self._keep_within_bytes()

    def append(self, record: Record, *, dequeue: bool) -> QueuedRecord | None:
        """Append a record. `dequeue`: if it would be the next one dequeued, dequeue and return it."""
        self._add(RecordTotals().plus(record))
        self._flush()
        start = None if self._waiting else self._write(record)
        if start is None:
            self._hold(record)
            return None
        found = self._item(start, record) if dequeue and self.reader.skip_written(start, record) else None
        self._keep_within_bytes()
        return found

    def next_record(self) -> QueuedRecord | None:
        """Dequeue the next record that no earlier run delivered; None if there is none or the disk fails."""
        while True:
            try:
                found = self.reader.next_record()
            except OSError as error:
                # Records in memory are newer and must wait too.
                self._throttled_log.warn(
                    "reading",
                    f"cannot read the queue in {self.segments.folder} ({error.strerror}); retrying",
                )
                return None
            self._throttled_log.log_recovery("reading", f"{self.segments.folder} is readable again")
            self._count_losses()
            if found is not None:
                start, record = found
                if not self._positions.is_delivered(record.shard, start):
                    return self._item(start, record)
            elif not self._waiting:
                return None
            elif not self._flush():
                record = self._waiting.popleft()
                self.memory_bytes -= _size(record)
                return self._item(self.segments.end_position, record, in_memory=True)

    def finish(self, items: Iterable[QueuedRecord], dropped: str = "") -> None:
        """Count these records as delivered, or as `dropped` for this reason."""
        for item in items:
            self._remove(RecordTotals().plus(item.record), dropped)

    def finish_partly(self, item: QueuedRecord, rejected: int) -> None:
        """Count a record as delivered but for this number of samples, which the receiver rejected."""
        self._remove(RecordTotals().plus(item.record))
        if rejected:
            self._count_dropped(state.REJECTED, rejected)

    def save_positions(self, points: PositionRow) -> None:
        """Save the position of each shard and delete finished segments."""
        # If this fails, more samples are sent again after a restart.
        with suppress(OSError):
            self._positions.save_positions(points)
        low = min(points)
        while len(self.segments.all) > 1 and make_position(self._first.number, self._first.size) <= low:
            self.reader.finish_segment(self._first)
            self.segments.drop_first()
            self._retry_at = 0.0
        self._count_losses()

    def drop_reason(self, item: QueuedRecord) -> str:
        """Return the reason to drop a dequeued record, or empty: too old, or its segment was dropped."""
        if item.record.accepted < self._oldest_allowed():
            return state.AGE
        return self._dropped_reason if item.position < self._dropped_before and not item.in_memory else ""

    def run_maintenance(self) -> None:
        """Drop segments that are too old and retry a failed disk."""
        oldest = self._oldest_allowed()
        while self.segments.all and 0 < self._first.totals.last < oldest:
            self._drop_first(state.AGE)
        self._flush()

    def close(self, unwritten: Iterable[QueuedRecord] = ()) -> None:
        """Append `unwritten` (undelivered in-memory records) to the files and close them.

        They keep their order only if no record of the files was dequeued after them.
        """
        self._retry_at = 0.0
        dequeued = [item.record for item in unwritten]
        self.memory_bytes += sum(map(_size, dequeued))
        self._waiting.extendleft(reversed(dequeued))
        self._flush()
        samples = sum(record.samples for record in self._waiting)
        if samples:
            for record in self._waiting:
                self._remove(RecordTotals().plus(record), state.STOPPED)
            self._throttled_log.warn(
                "stop", f"{samples} samples are lost: they could not be written to the disk before the stop"
            )
        self._waiting.clear()
        self.memory_bytes = 0
        self.reader.close()
        self.segments.close()
        self._positions.close()

    @property
    def _first(self) -> Segment:
        return self.segments.all[0]

    def _item(self, start: int, record: Record, *, in_memory: bool = False) -> QueuedRecord:
        self._serial += 1
        return QueuedRecord(self._serial, self._clock.elapsed(), start, record, in_memory)

    def _oldest_allowed(self) -> float:
        return (self._clock.unix() - self.limits.max_age) * 1000

    def _write(self, record: Record) -> int | None:
        try:
            start = self.segments.append(record)
        except OSError as error:
            self._error = error.errno or 0
            self._retry_at = self._clock.elapsed() + _RETRY_SECONDS
            remedy = "free disk space" if self._error in _FULL else "make the directory writable"
            self._throttled_log.warn(
                "disk",
                f"cannot write to {self.segments.folder} ({error.strerror}): up to "
                f"{self.limits.memory_bytes} bytes are queued in memory, then the oldest samples are "
                f"dropped; {remedy}",
            )
            return None
        self._error = 0
        self._throttled_log.log_recovery("disk", f"{self.segments.folder} is writable again")
        return start

    def _flush(self) -> int:
        """Write the records in memory to the disk if it is due; return the number written."""
        written = 0
        while self._waiting and self._clock.elapsed() >= self._retry_at:
            if self._write(self._waiting[0]) is None:
                break
            self.memory_bytes -= _size(self._waiting.popleft())
            written += 1
            self._keep_within_bytes()
        return written

    def _hold(self, record: Record) -> None:
        """Append a record in memory; drop the oldest records above memory_bytes."""
        self._waiting.append(record)
        self.memory_bytes += _size(record)
        if self.memory_bytes > self.limits.memory_bytes and self._error in _FULL and self.segments.all:
            self._drop_first(state.DISK)
            self._retry_at = 0.0
            self._flush()
        while self.memory_bytes > self.limits.memory_bytes:
            oldest = self._waiting.popleft()
            self.memory_bytes -= _size(oldest)
            self._remove(RecordTotals().plus(oldest), state.DISK)

    def _keep_within_bytes(self) -> None:
        while self.segments.file_bytes > self.limits.max_bytes and len(self.segments.all) > 1:
            self._drop_first(state.BYTES)

    def _drop_first(self, reason: str) -> None:
        segment = self._first
        unread = self.reader.unread(segment)
        self.segments.drop_first()
        self.reader.skip_segment(segment)
        # Dequeued records of the segment are dropped too: the oldest records go first.
        self._dropped_before, self._dropped_reason = make_position(segment.number + 1, 0), reason
        self._remove(unread, reason)

    def _count_losses(self) -> None:
        reader = self.reader
        if reader.corrupt_records:
            self.corrupt_records += reader.corrupt_records
            self._throttled_log.warn("corrupt", f"skipped damaged records in {self.segments.folder}")
            reader.corrupt_records = 0
        if reader.lost.blocks:
            self._remove(reader.lost, state.CORRUPT)
        reader.lost = RecordTotals()

    def _count_queued(self) -> None:
        """Initialize the counters from the files and the saved positions."""
        low = self._positions.lowest
        while self.segments.all and make_position(self._first.number, self._first.size) <= low:
            self.reader.skip_segment(self.segments.drop_first())
        for segment in self.segments.all:
            self._add(segment.totals)
        self._remove(self.segments.totals_before(low))
        top = max(map(max, self._positions.rows), default=0)
        probe = QueueReader(self.segments, low)
        while probe.position < top and (found := probe.next_record()):
            if self._positions.is_delivered(found[1].shard, found[0]):
                self._remove(RecordTotals().plus(found[1]))
        probe.close()

    def _add(self, totals: RecordTotals) -> None:
        self.blocks += totals.blocks
        self.samples += totals.samples
        self.bytes += totals.bytes

    def _remove(self, totals: RecordTotals, dropped: str = "") -> None:
        self.blocks -= totals.blocks
        self.samples -= totals.samples
        self.bytes -= totals.bytes
        if dropped and totals.blocks:
            self._count_dropped(dropped, totals.samples)

    def _count_dropped(self, reason: str, samples: int) -> None:
        self.dropped[reason] += samples
        self._throttled_log.warn(
            reason, f"{samples} samples dropped: {_WHY[reason]}; {self.dropped[reason]} since the start"
        )


def _segment_bytes(limits: DiskQueueLimits) -> int:
    return min(_SEGMENT_BYTES, max(_SMALLEST_SEGMENT, limits.max_bytes // _SEGMENTS))


def _size(record: Record) -> int:
    return HEADER_BYTES + len(record.body)
