"""The files of one queue: numbered segments to whose last one is written, and whose first ones go away."""

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
    Sums,
    header_of,
    length_at,
    record_at,
    seal_of,
    sums_of,
)
from gpuledger.host.files import sync_directory

_NAME: Final = re.compile(r"(\d{12})\.blocks")
_OFFSET_BITS: Final = 40
# No queue comes to so many segments; a place in them still is a number of 64 bits.
_MOST: Final = 1 << 23
_OFFSET: Final = (1 << _OFFSET_BITS) - 1


def place(number: int, offset: int) -> int:
    """A point between two records, comparable with every other one of the same queue."""
    return number << _OFFSET_BITS | offset


def parted(where: int) -> tuple[int, int]:
    """Number of the segment, and offset in it."""
    return where >> _OFFSET_BITS, where & _OFFSET


class Segment:
    """One file: `size` bytes of records, behind which there is at most a seal (`file_size`)."""

    def __init__(self, number: int, file: Path, size: int = 0, sums: Sums = Sums()) -> None:  # noqa: B008  (frozen)
        self.number = number
        self.file = file
        self.size = size
        self.file_size = size
        self.sums = sums


class Segments:
    """All of them, oldest first. Methods raise OSError, and then have changed nothing."""

    def __init__(self, folder: Path, segment_bytes: int, *, synced: bool = True) -> None:
        """`synced`: what is written is brought to the disk, too, since `sync_job` is called now and then."""
        self.folder = folder
        self.torn_tails = 0
        self.all: deque[Segment] = deque()
        # What all files take.
        self.file_bytes = 0
        self.segment_bytes = segment_bytes
        self.synced = synced
        self._handle = -1
        self._next_number = 1
        self._unsynced: list[int] = []
        self._dirty = False

    def open(self, used: int) -> None:
        """Find what earlier runs left. No segment gets a number up to `used`.

        Records are only ever added to a new file, so that a place never means two records, even after a
        crash of the machine took some of the last ones away.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        matches = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        found = sorted((int(match[1]), path) for match, path in matches if match and int(match[1]) < _MOST)
        self._next_number = max([used, *(number for number, _ in found)]) + 1
        for number, file in found:
            segment = self._opened(number, file)
            if segment.size:
                self.all.append(segment)
                self.file_bytes += segment.file_size
            else:
                file.unlink()

    @property
    def end(self) -> int:
        """The place at which the next record will stand, but for a change of segment."""
        if not self.all:
            return place(self._next_number, 0)
        return place(self.all[-1].number, self.all[-1].size)

    def append(self, record: Record) -> int:
        """Write a record behind all others and answer its place.

        When this returns the kernel has the record, whatever becomes of this process.
        """
        header = header_of(record)
        length = len(header) + len(record.body)
        if self._handle < 0 or self.all[-1].size + length > self.segment_bytes:
            self._begin()
        segment = self.all[-1]
        # At an offset: a write that was cut off by a full disk is overwritten by the next.
        written = os.pwritev(self._handle, [header, record.body], segment.size)
        if written < length:
            self._finish(b"%b%b" % (header, record.body), written)
        start = place(segment.number, segment.size)
        segment.size += length
        segment.file_size += length
        self.file_bytes += length
        segment.sums = segment.sums.plus(record)
        self._dirty = True
        return start

    def drop_first(self) -> Segment:
        """Take the oldest segment away, the one that is written to included."""
        segment = self.all.popleft()
        self.file_bytes -= segment.file_size
        if not self.all:
            self._close()
        # If it cannot be taken away now, the next start finds it again.
        with suppress(OSError):
            segment.file.unlink()
        return segment

    def sync_job(self) -> Callable[[], None] | None:
        """What brings everything written so far to the disk, to be called in another thread; None: nothing.

        It raises OSError.
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
        """Seal what is written to. Idempotent."""
        self._close()
        if job := self.sync_job():
            with suppress(OSError):
                job()

    def sums_before(self, where: int) -> Sums:
        """What stands in a segment before a place in it; nothing when the segment is gone."""
        number, offset = parted(where)
        sums = Sums()
        for segment in self.all:
            if segment.number == number and offset:
                for record, end in records_in(segment.file.read_bytes()[: segment.size]):
                    if end > offset:
                        break
                    sums = sums.plus(record)
        return sums

    def _finish(self, content: bytes, written: int) -> None:
        """Write what a first write left, or undo it."""
        segment = self.all[-1]
        try:
            while written < len(content):
                written += os.pwrite(self._handle, content[written:], segment.size + written)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, segment.size)
            raise

    def _begin(self) -> None:
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

    def _opened(self, number: int, file: Path) -> Segment:
        length = file.stat().st_size
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            start = max(0, length - SEAL_BYTES)
            sums = sums_of(os.pread(handle, SEAL_BYTES, start))
            if sums is not None:
                segment = Segment(number, file, start, sums)
                segment.file_size = length
                return segment
            return self._mended(number, file, handle)
        finally:
            os.close(handle)

    def _mended(self, number: int, file: Path, handle: int) -> Segment:
        """A segment whose writer was killed, or whose machine was: cut behind the last whole record."""
        content = file.read_bytes()
        sums, end = Sums(), 0
        for record, after in records_in(content):
            sums, end = sums.plus(record), after
        if end < len(content):
            self.torn_tails += 1
            os.ftruncate(handle, end)
        segment = Segment(number, file, end, sums)
        _seal(handle, segment)
        return segment


def records_in(content: bytes) -> Iterator[tuple[Record, int]]:
    """Every whole record and where it ends, whatever stands between them."""
    at = 0
    while at + HEADER_BYTES <= len(content):
        length = length_at(content, at)
        record = record_at(content, at) if length else None
        if record is None:
            at = content.find(MAGIC, at + 1)
            if at < 0:
                return
            continue
        at += length
        yield record, at


def _seal(handle: int, segment: Segment) -> None:
    # Without it the next start reads the whole segment: no harm done.
    with suppress(OSError):
        if os.pwrite(handle, seal_of(segment.sums), segment.size) == SEAL_BYTES:
            segment.file_size = segment.size + SEAL_BYTES
        else:
            os.ftruncate(handle, segment.size)
