"""Queue reader: reads records in order and skips damaged ones; and the delivered position of each shard."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from operator import add, sub
from pathlib import Path
from struct import error, pack, unpack_from
from typing import Final
from zlib import crc32

from gpuledger.agent.deliver.records import (
    HEADER_BYTES,
    MAGIC,
    Record,
    RecordTotals,
    decode_record,
    record_length,
)
from gpuledger.agent.deliver.segments import Segment, SegmentFiles, make_position, split_position

_CHUNK: Final = 256 << 10
# Temporary errors: the data is intact and must not be skipped.
_TEMPORARY: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM}
)


class QueueReader:
    """Reads records from a position onwards; skips and counts unreadable ones.

    `lost` (what the skipped parts held, according to the segment's totals) and `corrupt_records` (number of
    skipped parts) accumulate until the owner resets them.
    """

    def __init__(self, segments: SegmentFiles, position: int) -> None:
        self._segments = segments
        self._number, self._offset = split_position(position)
        self._seen = segments.totals_before(position)
        self._file: Path | None = None
        self._handle = -1
        self._buffer = b""
        self._buffer_at = 0
        self.lost = RecordTotals()
        self.corrupt_records = 0

    @property
    def position(self) -> int:
        """Position of the next record."""
        return make_position(self._number, self._offset)

    def next_record(self) -> tuple[int, Record] | None:
        """Return the next record and its position; None when all are read.

        Raises OSError without advancing while file descriptors, memory or a permission are missing.
        """
        while (segment := self._segment()) is not None:
            if self._offset >= segment.size:
                if segment is self._segments.all[-1]:
                    return None
                self._leave(segment)
                continue
            found = self._read(segment)
            if found is not None:
                self._seen = self._seen.plus(found[1])
                return found
        return None

    def skip_written(self, start: int, record: Record) -> bool:
        """Skip the record just written at `start` if it is the next one; return whether it was."""
        if self.position != start:
            if split_position(start)[1] or not self._left_all_but_last():
                return False
            self._enter(split_position(start)[0])
        self._offset = self._segments.all[-1].size
        self._seen = self._seen.plus(record)
        return True

    def unread(self, segment: Segment) -> RecordTotals:
        """Return the totals of a segment's unread records."""
        if segment.number > self._number:
            return segment.totals
        if segment.number < self._number:
            return RecordTotals()
        return _minus(segment.totals, self._seen)

    def skip_segment(self, segment: Segment) -> None:
        """Continue after a segment that is deleted."""
        if segment.number == self._number:
            self._enter(segment.number + 1)

    def finish_segment(self, segment: Segment) -> None:
        """Continue after a segment that is delivered completely."""
        if segment.number == self._number:
            self._leave(segment)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._file, self._buffer = -1, None, b""

    def _left_all_but_last(self) -> bool:
        """Leave the last but one segment if it is read completely; return whether it was."""
        if len(self._segments.all) > 1:
            before = self._segments.all[-2]
            if self._number < before.number or (self._number == before.number and self._offset < before.size):
                return False
            if self._number == before.number:
                self._leave(before)
        return True

    def _segment(self) -> Segment | None:
        for segment in self._segments.all:
            if segment.number >= self._number:
                if segment.number > self._number:
                    self._enter(segment.number)
                return segment
        return None

    def _enter(self, number: int) -> None:
        if number != self._number:
            self.close()
            self._number, self._offset, self._seen = number, 0, RecordTotals()

    def _leave(self, segment: Segment) -> None:
        missing = _minus(segment.totals, self._seen)
        self.lost = RecordTotals(*map(add, self.lost[:3], missing[:3]))
        self._enter(segment.number + 1)

    def _read(self, segment: Segment) -> tuple[int, Record] | None:
        """Return the record at the current offset; None after skipping a damaged part."""
        try:
            self._need(segment, HEADER_BYTES)
            length = record_length(self._buffer, self._offset - self._buffer_at)
            if length and self._offset + length <= segment.size:
                self._need(segment, length)
                record = decode_record(self._buffer, self._offset - self._buffer_at)
                if record is not None:
                    start = self.position
                    self._offset += length
                    return start, record
            self.corrupt_records += 1
            self._offset = self._next_whole(segment)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in _TEMPORARY:
                raise
            # A disk error, or the file was deleted.
            self.corrupt_records += 1
            self._offset = segment.size
        return None

    def _need(self, segment: Segment, length: int) -> None:
        """Fill the buffer with at least `length` bytes from the current offset."""
        ahead = self._buffer_at + len(self._buffer) - self._offset
        if self._offset >= self._buffer_at and ahead >= length:
            return
        if self._handle < 0 or self._file != segment.file:
            self.close()
            self._handle = os.open(segment.file, os.O_RDONLY | os.O_CLOEXEC)
            self._file = segment.file
        most = min(max(_CHUNK, length), segment.size - self._offset)
        self._buffer, self._buffer_at = os.pread(self._handle, most, self._offset), self._offset
        if len(self._buffer) < length:
            raise EOFError

    def _next_whole(self, segment: Segment) -> int:
        """Return the offset of the next whole record after a broken one, else the segment's end."""
        self._need(segment, segment.size - self._offset)
        at = self._offset - self._buffer_at
        while (at := self._buffer.find(MAGIC, at + 1)) >= 0:
            if len(self._buffer) - at >= HEADER_BYTES and decode_record(self._buffer, at) is not None:
                return self._buffer_at + at
        return segment.size


def _minus(all_: RecordTotals, some: RecordTotals) -> RecordTotals:
    """Return the difference of the counts, without times."""
    return RecordTotals(*(max(0, count) for count in map(sub, all_[:3], some[:3])))


_MAGIC: Final = b"gLp1"
_HALF: Final = 64 << 10
# First position after the last possible segment.
_POSITION_LIMIT: Final = 1 << 63
# Length of a half's header.
_HEAD_BYTES: Final = 24

PositionRow = tuple[int, ...]


class DeliveredPositions:
    """File with the delivered position of each shard, one row for each run.

    The file has two halves, written alternately. `rows` are those of earlier runs that are not passed yet.
    Methods raise OSError.
    """

    def __init__(self, file: Path) -> None:
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        contents = [os.pread(self._handle, _HALF, start) for start in (0, _HALF)]
        halves = [_rows_in(content) for content in contents]
        # Both halves are unreadable: all queued records are sent again.
        self.damaged = any(map(any, contents)) and not any(halves)
        # Reserve the space, so that positions can be saved on a full disk.
        with suppress(OSError):
            os.posix_fallocate(self._handle, 0, 2 * _HALF)
        self._turn, rows = max((half for half in halves if half), default=(0, ()))
        # All records before this position are delivered or dropped.
        self.lowest = max(map(min, rows), default=0)
        self.rows: tuple[PositionRow, ...] = tuple(row for row in rows if max(row) > self.lowest)
        # No higher position was ever saved.
        self.highest = max(map(max, rows), default=0)

    def is_delivered(self, shard: int, position: int) -> bool:
        """Return whether an earlier run delivered the record of this shard at this position."""
        return any(position < row[shard % len(row)] for row in self.rows)

    def save_positions(self, points: PositionRow) -> None:
        """Save the current position of each shard."""
        self.lowest = max(self.lowest, min(points))
        self.rows = tuple(row for row in self.rows if max(row) > self.lowest)
        self._turn += 1
        content = _content(self._turn, (*self.rows, points))
        os.pwrite(self._handle, content, self._turn % 2 * _HALF)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def _content(turn: int, rows: Sequence[PositionRow]) -> bytes:
    parts = [pack(f"<I{len(row)}Q", len(row), *row) for row in rows]
    # After very many restarts the oldest rows no longer fit: their records are sent again.
    while parts and sum(map(len, parts)) > _HALF - _HEAD_BYTES:
        del parts[0]
    body = pack("<QI", turn, len(parts)) + b"".join(parts)
    return _MAGIC + crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def _rows_in(half: bytes) -> tuple[int, tuple[PositionRow, ...]] | None:
    length = int.from_bytes(half[8:12], "little")
    body = half[12 : 12 + length]
    if half[:4] != _MAGIC or len(body) != length or crc32(body).to_bytes(4, "little") != half[4:8]:
        return None
    try:
        turn, count = unpack_from("<QI", body)
        at, rows = 12, []
        for _ in range(count):
            (size,) = unpack_from("<I", body, at)
            rows.append(unpack_from(f"<{size}Q", body, at + 4))
            at += 4 + 8 * size
    except error:
        return None
    # Even with a valid checksum, ignore positions that no segment can have.
    return turn, tuple(row for row in rows if row and max(row) < _POSITION_LIMIT)
