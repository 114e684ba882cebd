"""How far a queue has been delivered, in a small file that is written after every answer.

A point per shard: all that the shard's records say before it is done. The number of shards may be another
one after a restart, so points of earlier numbers are kept until the last of them has been passed: a record
is done when one of the rows says so for its shard of that row.

The file has two halves that are written in turn; a half that a crash tore is told by its checksum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from struct import error, pack, unpack_from
from typing import Final
from zlib import crc32

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
