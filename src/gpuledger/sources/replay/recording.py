"""Reader and writer of recordings: JSON lines, a header and one line per tick, compressed if named *.gz."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from json import dumps, loads
from math import inf
from pathlib import Path
from typing import IO, Final, cast

from gpuledger.model.errors import UsageError
from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.sources.replay.codec import ReadTable, WriteTable, get_record_codec, list_field_names

_PID_LIMIT: Final = 2**32
# Above all microseconds of samples and millijoules of counters, which are 64-bit integers.
_LIMIT_64_BIT: Final = 2**64


def reject_non_finite(written: str) -> float:
    """Raise ValueError for NaN and infinities, which Python's JSON parser accepts but JSON does not have."""
    raise ValueError(f"{written} is not a JSON number")


def check_times(unix: float, elapsed: float, before: float) -> None:
    """Raise ValueError for impossible times, and for a time before that of the previous tick."""
    _check_numbers(unix, elapsed)
    if elapsed < before:
        raise ValueError("time goes back")


def validate_snapshot(snapshot: Snapshot) -> Snapshot:
    """Return the Snapshot without impossible values.

    Raises ValueError for data that no source produces: duplicate Devices, invalid pids, shares above one.
    """
    _check_unique(reading.device.uuid for reading in snapshot.readings)
    if not 0 <= snapshot.invalid < _LIMIT_64_BIT:
        raise ValueError(f"{snapshot.invalid} is not a count of invalid values")
    for reading in snapshot.readings:
        _check_reading(reading)
    if all(_drop_impossible_values(reading) is reading for reading in snapshot.readings):
        return snapshot
    return replace(
        snapshot, readings=tuple([_drop_impossible_values(reading) for reading in snapshot.readings])
    )


def _drop_impossible_values(reading: Reading) -> Reading:
    values = {
        quantity: value
        for quantity, value in reading.values.items()
        if -_LIMIT_64_BIT < value < _LIMIT_64_BIT and quantity.is_possible(value)
    }
    return reading if len(values) == len(reading.values) else replace(reading, values=values)


def _check_reading(reading: Reading) -> None:
    _check_unique(process.pid for process in reading.processes or ())
    for process in reading.processes or ():
        _check_process(process)
        if process.device != reading.device:
            raise ValueError(f"pid {process.pid} is listed under another device than its own")
    for sample in reading.samples or ():
        _check_numbers(sample.at)
        _check_shares(sample.sm, sample.memory, sample.encoder, sample.decoder, sample.jpeg, sample.ofa)
    for record in reading.accounting:
        _check_numbers(record.began, 0 if record.ended is None else record.ended)


def _check_process(process: GpuProcess) -> None:
    if not 0 <= process.pid < _PID_LIMIT:
        raise ValueError(f"{process.pid} is not a pid")
    if process.memory is not None and not 0 <= process.memory < _LIMIT_64_BIT:
        raise ValueError(f"pid {process.pid} uses an impossible amount of memory")
    _check_numbers(process.host.start.unix)
    usage: Usage = process.usage
    _check_shares(usage.sm, usage.memory, usage.encoder, usage.decoder, usage.jpeg, usage.ofa)


def _check_numbers(*numbers: float) -> None:
    if not all(-_LIMIT_64_BIT < number < _LIMIT_64_BIT for number in numbers):
        raise ValueError("number out of range")


def _check_shares(*shares: float | None) -> None:
    if not all(share is None or 0 <= share <= 1 for share in shares):
        raise ValueError("a share of time is not between 0 and 1")


def _check_unique(names: Iterable[object]) -> None:
    found: set[object] = set()
    for name in names:
        if name in found:
            raise ValueError(f"{name} is listed twice")
        found.add(name)


log = logging.getLogger("gpuledger.replay")

_FORMAT: Final = "gpuledger-recording"
VERSION: Final = 1
_GZIP: Final = b"\x1f\x8b"
# `wbits` of zlib for the largest window with a gzip header and trailer.
_GZIP_FORMAT: Final = 16 + zlib.MAX_WBITS
_MAX_HEADER_BYTES: Final = 1 << 20
# A tick of sixteen GPUs with thousands of processes has a few MiB.
_MAX_LINE_BYTES: Final = 64 << 20
# Exceptions of json, gzip and the codec for damaged data.
_DAMAGE_ERRORS: Final = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    OSError,
    EOFError,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class Outage:
    """A tick in which the source was unavailable: `text` and `reason` of its SourceUnavailable."""

    unix: float
    elapsed: float
    reason: str
    text: str


RecordingEntry = Snapshot | Outage


class RecordingWriter:
    """Writes a recording to a stream that the caller opens and closes.

    Each line is flushed, so that a kill loses at most the current line.
    """

    def __init__(self, stream: IO[bytes], *, compressed: bool, masked: bool, program: str) -> None:
        self._stream = stream
        # A gzip header without file name and time, because they may identify the machine.
        self._compressor = zlib.compressobj(9, wbits=_GZIP_FORMAT) if compressed else None
        # Bytes written so far.
        self.size = 0
        self._table = WriteTable()
        self.snapshots = 0
        layout = list_field_names(Snapshot) | list_field_names(Outage)
        header = {"format": _FORMAT, "version": VERSION, "program": program, "masked": masked}
        self._write({**header, "layout": layout})

    def write(self, entry: RecordingEntry) -> None:
        """Append a tick. Raises OSError."""
        if isinstance(entry, Snapshot):
            content = {"snapshot": get_record_codec(Snapshot).encode(entry, self._table)}
            self.snapshots += 1
        else:
            content = {"outage": get_record_codec(Outage).encode(entry, self._table)}
        new, self._table.new = self._table.new, []
        self._write({"new": new, **content} if new else content)

    def write_trailer(self) -> None:
        """Write gzip's trailer; the stream remains open."""
        if self._compressor:
            self._write_bytes(self._compressor.flush())

    def _write(self, line: object) -> None:
        text = dumps(line, separators=(",", ":")).encode() + b"\n"
        if self._compressor:
            text = self._compressor.compress(text) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
        self._write_bytes(text)

    def _write_bytes(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()
        self.size += len(data)


class RecordingReader:
    """Iterates over the entries of a recording."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the file cannot be read, is not a recording, or has another version."""
        self._path = path
        self._number = 1
        try:
            self._stream = _open_stream(path)
        except OSError as error:
            raise UsageError(f"cannot read the recording {path}: {error.strerror}") from None
        try:
            self._table = ReadTable(self._read_layout())
        except UsageError:
            self._stream.close()
            raise

    def __iter__(self) -> Iterator[RecordingEntry]:
        """Yield the entries; an incomplete or damaged line ends the recording, with a warning."""
        line = b""
        before = -inf
        while True:
            try:
                line = self._stream.readline(_MAX_LINE_BYTES)
                if not line:
                    return
                self._number += 1
                entry = self._parse_entry(line)
                check_times(entry.unix, entry.elapsed, before)
                before = entry.elapsed
            except _DAMAGE_ERRORS as error:
                truncated = isinstance(error, EOFError) or not line.endswith(b"\n")
                log.warning(
                    "recording %s is %s in line %d: only the lines before it are replayed",
                    self._path,
                    "truncated" if truncated else "damaged",
                    self._number,
                )
                return
            yield entry

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._stream.close()

    def _parse_entry(self, line: bytes) -> RecordingEntry:
        content = loads(line, parse_constant=reject_non_finite)
        for entry in content.get("new", ()):
            self._table.add(entry)
        if "outage" in content:
            return cast("Outage", get_record_codec(Outage).decode(content["outage"], self._table))
        snapshot = cast("Snapshot", get_record_codec(Snapshot).decode(content["snapshot"], self._table))
        return validate_snapshot(snapshot)

    def _read_layout(self) -> dict[str, list[str]]:
        not_recording = UsageError(f"{self._path} is not a recording; create one with: gpuledger record FILE")
        try:
            header = loads(self._stream.readline(_MAX_HEADER_BYTES))
        except _DAMAGE_ERRORS:
            raise not_recording from None
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise not_recording
        if header.get("version") != VERSION:
            raise UsageError(
                f"{self._path} is a recording of version {header.get('version')}, but this program reads "
                f"version {VERSION}; it was created by {header.get('program')}"
            )
        layout = header.get("layout")
        if not isinstance(layout, dict):
            raise not_recording
        return layout


def _open_stream(path: Path) -> IO[bytes]:
    stream = path.open("rb")
    if stream.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
        return stream
    stream.close()
    return cast("IO[bytes]", gzip.open(path, "rb"))
