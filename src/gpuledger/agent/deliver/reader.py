"""Reading a queue's records one after the other, whatever has become of the files meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import error, pack, unpack_from
from typing import Final
from zlib import crc32

from gpuledger.agent.deliver.records import HEADER_BYTES, MAGIC, Record, Sums, length_at, record_at
from gpuledger.agent.deliver.segments import Segment, Segments, parted, place

_CHUNK: Final = 256 << 10
# What cannot be read for one of these is whole, and can be read once there is what is missing now.
_NOT_NOW: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES, errno.EPERM}
)


class Reader:
    """Stands at a place and goes forward. What cannot be read is passed over, and counted.

    `lost` and `corrupt_records` are what was passed over since somebody set them back: how much it held, as
    far as the segment's sums tell, and how many places they were.
    """

    def __init__(self, segments: Segments, where: int) -> None:
        self._segments = segments
        self._number, self._offset = parted(where)
        self._seen = segments.sums_before(where)
        self._file: Path | None = None
        self._handle = -1
        self._buffer = b""
        self._buffer_at = 0
        self.lost = Sums()
        self.corrupt_records = 0

    @property
    def where(self) -> int:
        """The place of the next record."""
        return place(self._number, self._offset)

    def next(self) -> tuple[int, Record] | None:
        """The next record and its place; None when all have been read.

        Raises OSError, and stays where it is, while descriptors, memory or a permission are missing.
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

    def jump(self, start: int, record: Record) -> bool:
        """Pass over the record just written at `start`, if it is the next; answers whether it was."""
        if self.where != start:
            if parted(start)[1] or not self._left_all_but_last():
                return False
            self._enter(parted(start)[0])
        self._offset = self._segments.all[-1].size
        self._seen = self._seen.plus(record)
        return True

    def unread(self, segment: Segment) -> Sums:
        """What of a segment has not been read yet."""
        if segment.number > self._number:
            return segment.sums
        if segment.number < self._number:
            return Sums()
        return _minus(segment.sums, self._seen)

    def leave(self, segment: Segment) -> None:
        """Go on behind a segment that is taken away."""
        if segment.number == self._number:
            self._enter(segment.number + 1)

    def finish(self, segment: Segment) -> None:
        """Go on behind a segment of which nothing is left to deliver."""
        if segment.number == self._number:
            self._leave(segment)

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._file, self._buffer = -1, None, b""

    def _left_all_but_last(self) -> bool:
        """Leave the last segment but one, if all of it has been read; answers whether it had been."""
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
            self._number, self._offset, self._seen = number, 0, Sums()

    def _leave(self, segment: Segment) -> None:
        missing = _minus(segment.sums, self._seen)
        self.lost = Sums(
            self.lost.blocks + missing.blocks,
            self.lost.samples + missing.samples,
            self.lost.bytes + missing.bytes,
        )
        self._enter(segment.number + 1)

    def _read(self, segment: Segment) -> tuple[int, Record] | None:
        """The record here, or the first one behind what is none; None at the segment's end."""
        try:
            self._need(segment, HEADER_BYTES)
            length = length_at(self._buffer, self._offset - self._buffer_at)
            if length and self._offset + length <= segment.size:
                self._need(segment, length)
                record = record_at(self._buffer, self._offset - self._buffer_at)
                if record is not None:
                    start = self.where
                    self._offset += length
                    return start, record
            self.corrupt_records += 1
            self._offset = self._next_whole(segment)
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in _NOT_NOW:
                raise
            # The disk gives it no more, or somebody took the file away.
            self.corrupt_records += 1
            self._offset = segment.size
        return None

    def _need(self, segment: Segment, length: int) -> None:
        """Have so many bytes from here on in the buffer."""
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
        """Where the next whole record begins behind a broken one; the segment's end if there is none."""
        self._need(segment, segment.size - self._offset)
        at = self._offset - self._buffer_at
        while (at := self._buffer.find(MAGIC, at + 1)) >= 0:
            if len(self._buffer) - at >= HEADER_BYTES and record_at(self._buffer, at) is not None:
                return self._buffer_at + at
        return segment.size


def _minus(all_: Sums, some: Sums) -> Sums:
    return Sums(
        max(0, all_.blocks - some.blocks),
        max(0, all_.samples - some.samples),
        max(0, all_.bytes - some.bytes),
    )


_MAGIC: Final = b"gLp1"
_HALF: Final = 64 << 10
# The place that the segment after the last possible one would begin at.
_NOWHERE: Final = 1 << 63
# What a half holds before its rows.
_HEAD_BYTES: Final = 24

Row = tuple[int, ...]


class Positions:
    """`rows` are those of earlier runs, without those that have been passed. Methods raise OSError."""

    def __init__(self, file: Path) -> None:
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        contents = [os.pread(self._handle, _HALF, start) for start in (0, _HALF)]
        halves = [_rows_in(content) for content in contents]
        # There is something in it, and nothing that can be read: what is queued is sent from its beginning.
        self.damaged = any(map(any, contents)) and not any(halves)
        # What is written later has its room already, also on a disk that is full by then.
        with suppress(OSError):
            os.posix_fallocate(self._handle, 0, 2 * _HALF)
        self._turn, rows = max((half for half in halves if half), default=(0, ()))
        self.rows: tuple[Row, ...] = _not_passed(rows)
        # Up to here everything is done.
        self.low = max(map(min, rows), default=0)
        # No place of a segment above this one was ever told.
        self.highest = max(map(max, rows), default=0)

    def done(self, shard: int, where: int) -> bool:
        """Whether an earlier run has delivered the record of this shard at this place."""
        return any(where < row[shard % len(row)] for row in self.rows)

    def save(self, points: Row) -> None:
        """Remember how far each shard is now."""
        self.low = max(self.low, min(points))
        self.rows = tuple(row for row in self.rows if max(row) > self.low)
        self._turn += 1
        content = _content(self._turn, (*self.rows, points))
        os.pwrite(self._handle, content, self._turn % 2 * _HALF)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)


def _not_passed(rows: Sequence[Row]) -> tuple[Row, ...]:
    low = max(map(min, rows), default=0)
    return tuple(row for row in rows if max(row) > low)


def _content(turn: int, rows: Sequence[Row]) -> bytes:
    parts = [pack(f"<I{len(row)}Q", len(row), *row) for row in rows]
    # A row that no longer fits, after very many restarts, costs that what it says is sent once more.
    while parts and sum(map(len, parts)) > _HALF - _HEAD_BYTES:
        del parts[0]
    body = pack("<QI", turn, len(parts)) + b"".join(parts)
    return _MAGIC + crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def _rows_in(half: bytes) -> tuple[int, tuple[Row, ...]] | None:
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
    # A checksum does not make a place of what no segment can have.
    return turn, tuple(row for row in rows if row and max(row) < _NOWHERE)
