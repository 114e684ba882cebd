"""Segment files of one queue: records are appended to the last one, the first ones are deleted."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuledger.agent.deliver.records import (
    HEADER_BYTES,
    MAGIC,
    SEAL_BYTES,
    Record,
    RecordTotals,
    decode_record,
    decode_seal,
    encode_header,
    encode_seal,
    record_length,
)
from gpuledger.host.files import sync_directory

_NAME: Final = re.compile(r"(\d{12})\.blocks")
_OFFSET_BITS: Final = 40
# Upper bound for segment numbers: positions must fit 64 bits.
_MOST: Final = 1 << 23
_OFFSET: Final = (1 << _OFFSET_BITS) - 1


def make_position(number: int, offset: int) -> int:
    """Return the position of an offset in a segment: an integer ordered across all segments of the queue."""
    return number << _OFFSET_BITS | offset


def split_position(position: int) -> tuple[int, int]:
    """Return segment number and offset of a position."""
    return position >> _OFFSET_BITS, position & _OFFSET


class Segment:
    """One segment file: `size` bytes of records, `file_size` with the seal if there is one."""

    def __init__(self, number: int, file: Path, size: int = 0, totals: RecordTotals = RecordTotals()) -> None:  # noqa: B008  (frozen)
        self.number = number
        self.file = file
        self.size = size
        self.file_size = size
        self.totals = totals


class SegmentFiles:
    """All segments of a queue, oldest first. Methods raise OSError and then have no effect."""

    def __init__(self, folder: Path, segment_bytes: int, *, synced: bool = True) -> None:
        """`synced`: writes are fsynced, by `sync_job`, which the owner calls regularly."""
        self.folder = folder
        self.torn_tails = 0
        self.all: deque[Segment] = deque()
        # Size of all files.
        self.file_bytes = 0
        self.segment_bytes = segment_bytes
        self.synced = synced
        self._handle = -1
        self._next_number = 1
        self._unsynced: list[int] = []
        self._dirty = False

    def open(self, used: int) -> None:
        """Open the segments of earlier runs. New segments get numbers above `used`.

        Each run appends to a new file, so that a position never refers to two records, even if a crash of the
        machine lost the last records of a file.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        matches = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        found = sorted((int(match[1]), path) for match, path in matches if match and int(match[1]) < _MOST)
        self._next_number = max([used, *(number for number, _ in found)]) + 1
        for number, file in found:
            segment = self._open_segment(number, file)
            if segment.size:
                self.all.append(segment)
                self.file_bytes += segment.file_size
            else:
                file.unlink()

    @property
    def end_position(self) -> int:
        """Position of the next record, unless it starts a new segment."""
        if not self.all:
            return make_position(self._next_number, 0)
        return make_position(self.all[-1].number, self.all[-1].size)

    def append(self, record: Record) -> int:
        """Append a record and return its position.

        On return the kernel has the record, so it survives a crash of this process.
        """
        header = encode_header(record)
        length = len(header) + len(record.body)
        if self._handle < 0 or self.all[-1].size + length > self.segment_bytes:
            self._start_segment()
        segment = self.all[-1]
        # Written at an offset: the next write overwrites one that a full disk cut off.
        written = os.pwritev(self._handle, [header, record.body], segment.size)
        if written < length:
            self._complete_write(b"%b%b" % (header, record.body), written)
        start = make_position(segment.number, segment.size)
        segment.size += length
        segment.file_size += length
        self.file_bytes += length
        segment.totals = segment.totals.plus(record)
        self._dirty = True
        return start

    def drop_first(self) -> Segment:
        """Delete the oldest segment, even if it is the one being written."""
        segment = self.all.popleft()
        self.file_bytes -= segment.file_size
        if not self.all:
            self._close()
        # If this fails, the next start finds the file again.
        with suppress(OSError):
            segment.file.unlink()
        return segment

    def sync_job(self) -> Callable[[], None] | None:
        """Return a function that syncs all writes so far, for another thread; None if there are none.

        The function raises OSError.
        """
        mine = [os.dup(self._handle)] if self._dirty and self._handle >= 0 and self.synced else []
        handles, self._unsynced = [*self._unsynced, *mine], []
        self._dirty = False
        if not handles:
            return None
        folder = self.folder

        def job() -> None:
            try:
                for handle in handles:
                    os.fdatasync(handle)
                sync_directory(folder)
            finally:
                for handle in handles:
                    os.close(handle)

        return job

    def close(self) -> None:
        """Seal the current segment and sync. Idempotent."""
        self._close()
        if job := self.sync_job():
            with suppress(OSError):
                job()

    def totals_before(self, position: int) -> RecordTotals:
        """Return the totals of a segment's records before a position; zero if the segment is gone."""
        number, offset = split_position(position)
        totals = RecordTotals()
        for segment in self.all:
            if segment.number == number and offset:
                for record, end in iter_records(segment.file.read_bytes()[: segment.size]):
                    if end > offset:
                        break
                    totals = totals.plus(record)
        return totals

    def _complete_write(self, content: bytes, written: int) -> None:
        """Write the rest of a partial write, or undo it."""
        segment = self.all[-1]
        try:
            while written < len(content):
                written += os.pwrite(self._handle, content[written:], segment.size + written)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, segment.size)
            raise

    def _start_segment(self) -> None:
        number = self._next_number
        file = self.folder / f"{number:012}.blocks"
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._close()
        self._handle = handle
        self._next_number = number + 1
        self.all.append(Segment(number, file))

    def _close(self) -> None:
        if self._handle < 0:
            return
        if self.all:
            _seal(self._handle, self.all[-1])
            self.file_bytes += self.all[-1].file_size - self.all[-1].size
        if self.synced:
            self._unsynced.append(self._handle)
        else:
            os.close(self._handle)
        self._handle = -1

    def _open_segment(self, number: int, file: Path) -> Segment:
        length = file.stat().st_size
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            start = max(0, length - SEAL_BYTES)
            totals = decode_seal(os.pread(handle, SEAL_BYTES, start))
            if totals is not None:
                segment = Segment(number, file, start, totals)
                segment.file_size = length
                return segment
            return self._repair(number, file, handle)
        finally:
            os.close(handle)

    def _repair(self, number: int, file: Path, handle: int) -> Segment:
        """Truncate an unsealed segment after its last whole record: its writer was killed or crashed."""
        content = file.read_bytes()
        totals, end = RecordTotals(), 0
        for record, after in iter_records(content):
            totals, end = totals.plus(record), after
        if end < len(content):
            self.torn_tails += 1
            os.ftruncate(handle, end)
        segment = Segment(number, file, end, totals)
        _seal(handle, segment)
        return segment


def iter_records(content: bytes) -> Iterator[tuple[Record, int]]:
    """Yield every whole record and its end offset; skip damaged parts."""
    at = 0
    while at + HEADER_BYTES <= len(content):
        length = record_length(content, at)
        record = decode_record(content, at) if length else None
        if record is None:
            at = content.find(MAGIC, at + 1)
            if at < 0:
                return
            continue
        at += length
        yield record, at


def _seal(handle: int, segment: Segment) -> None:
    # Without a seal, the next start reads the whole segment.
    with suppress(OSError):
        if os.pwrite(handle, encode_seal(segment.totals), segment.size) == SEAL_BYTES:
            segment.file_size = segment.size + SEAL_BYTES
        else:
            os.ftruncate(handle, segment.size)
