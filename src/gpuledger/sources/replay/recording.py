"""The file of a recording: JSON lines, a header and then a line per tick; gzip when its name ends in .gz."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from json import dumps, loads
from math import inf
from pathlib import Path
from typing import IO, Any, Final, cast
from zlib import error as ZlibError  # noqa: N812  (the module calls its exception `error`)

from gpuledger.model.errors import UsageError
from gpuledger.model.process import GpuProcess, Usage
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.sources.replay.codec import ReadTable, WriteTable, layout_of, record_of

_MOST_PID: Final = 2**32
# Above the microseconds of samples and the millijoules of counters, which have 64 bits.
_BEYOND: Final = 2**64


def no_number(written: str) -> float:
    """Refuse NaN and the infinities, which JSON does not know and Python's reader does: raises ValueError."""
    raise ValueError(f"{written} is no number of JSON")


def check_time(unix: float, elapsed: float, before: float) -> None:
    """Raise ValueError for moments that are none, and for one that lies before the last one."""
    _check_numbers(unix, elapsed)
    if elapsed < before:
        raise ValueError("time goes back")


def admitted(snapshot: Snapshot) -> Snapshot:
    """The Snapshot without values that are not believed: they are absent, whoever says them.

    Raises ValueError for what no source tells: a Device twice, a pid that is none, a share of time above one.
    """
    _once(reading.device.uuid for reading in snapshot.readings)
    if not 0 <= snapshot.invalid < _BEYOND:
        raise ValueError("a count that is none")
    for reading in snapshot.readings:
        _check_reading(reading)
    if all(_believed(reading) is reading for reading in snapshot.readings):
        return snapshot
    return replace(snapshot, readings=tuple([_believed(reading) for reading in snapshot.readings]))


def _believed(reading: Reading) -> Reading:
    values = {
        quantity: value
        for quantity, value in reading.values.items()
        if -_BEYOND < value < _BEYOND and quantity.believes(value)
    }
    return reading if len(values) == len(reading.values) else replace(reading, values=values)


def _check_reading(reading: Reading) -> None:
    _once(process.pid for process in reading.processes or ())
    for process in reading.processes or ():
        _check_process(process)
        if process.device != reading.device:
            raise ValueError(f"pid {process.pid} is told of another device")
    for sample in reading.samples or ():
        _check_numbers(sample.at)
        _check_shares(sample.sm, sample.memory, sample.encoder, sample.decoder, sample.jpeg, sample.ofa)
    for record in reading.accounting:
        _check_numbers(record.began, 0 if record.ended is None else record.ended)


def _check_process(process: GpuProcess) -> None:
    if not 0 <= process.pid < _MOST_PID:
        raise ValueError(f"{process.pid} is no pid")
    if process.memory is not None and not 0 <= process.memory < _BEYOND:
        raise ValueError(f"pid {process.pid} holds memory that there is not")
    _check_numbers(process.host.start.unix)
    usage: Usage = process.usage
    _check_shares(usage.sm, usage.memory, usage.encoder, usage.decoder, usage.jpeg, usage.ofa)


def _check_numbers(*numbers: float) -> None:
    if not all(-_BEYOND < number < _BEYOND for number in numbers):
        raise ValueError("a number beyond all that are told")


def _check_shares(*shares: float | None) -> None:
    if not all(share is None or 0 <= share <= 1 for share in shares):
        raise ValueError("a share of time is not between none and all")


def _once(names: Iterable[object]) -> None:
    told: set[object] = set()
    for name in names:
        if name in told:
            raise ValueError(f"{name} is told twice")
        told.add(name)


log = logging.getLogger("gpuledger.replay")

_FORMAT: Final = "gpuledger-recording"
VERSION: Final = 1
_GZIP: Final = b"\x1f\x8b"
_LONGEST_HEADER: Final = 1 << 20
# A tick of sixteen GPUs with thousands of processes has some MiB.
_LONGEST_LINE: Final = 64 << 20
# What json, gzip and the codec raise for bytes that are not what was written.
_DAMAGE: Final = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    OSError,
    EOFError,
    ZlibError,
)


@dataclass(frozen=True, slots=True)
class Outage:
    """A tick in which the source could not be read at all: its SourceUnavailable, `text` and `reason`."""

    unix: float
    elapsed: float
    reason: str
    text: str


Entry = Snapshot | Outage


class Writer:
    """Writes a recording into a stream that the caller opens and closes.

    Each line is flushed, so that a kill loses at most the one being written.
    """

    def __init__(self, stream: IO[bytes], *, packed: bool, masked: bool, program: str) -> None:
        self._out = _Counting(stream)
        # No name and no time in gzip's own header: they would tell of the machine.
        self._packer = gzip.GzipFile("", "wb", fileobj=cast("Any", self._out), mtime=0) if packed else None
        self._table = WriteTable()
        self.snapshots = 0
        layout = layout_of(Snapshot) | layout_of(Outage)
        header = {"format": _FORMAT, "version": VERSION, "program": program, "masked": masked}
        self._write({**header, "layout": layout})

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._out.size

    def write(self, entry: Entry) -> None:
        """Append a tick; raises OSError."""
        if isinstance(entry, Snapshot):
            content = {"snapshot": record_of(Snapshot).encode(entry, self._table)}
            self.snapshots += 1
        else:
            content = {"outage": record_of(Outage).encode(entry, self._table)}
        new, self._table.new = self._table.new, []
        self._write({"new": new, **content} if new else content)

    def finish(self) -> None:
        """Write what gzip has at its end; the stream stays open."""
        if self._packer is not None:
            self._packer.close()
        self._out.flush()

    def _write(self, line: object) -> None:
        text = dumps(line, separators=(",", ":")).encode() + b"\n"
        target = self._packer or self._out
        target.write(text)
        target.flush()


class _Counting:
    """The little of a stream that GzipFile asks for, with the bytes counted."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.size = 0

    def write(self, text: bytes) -> int:
        self.size += len(text)
        self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class Reader:
    """The entries of a recording, one after the other."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the file cannot be read, is no recording, or of another version."""
        self._path = path
        self._number = 1
        try:
            self._stream = _opened(path)
        except OSError as error:
            raise UsageError(f"cannot read the recording {path}: {error.strerror}") from None
        try:
            self._table = ReadTable(self._layout())
        except UsageError:
            self._stream.close()
            raise

    def __iter__(self) -> Iterator[Entry]:
        """Whole lines only: a last line that was cut off ends the recording, with a warning."""
        line = b""
        before = -inf
        while True:
            try:
                line = self._stream.readline(_LONGEST_LINE)
                if not line:
                    return
                self._number += 1
                entry = self._entry(line)
                check_time(entry.unix, entry.elapsed, before)
                before = entry.elapsed
            except _DAMAGE as error:
                what = "cut off" if isinstance(error, EOFError) or not line.endswith(b"\n") else "damaged"
                log.warning(
                    "%s is %s in line %d; what stands before it counts", self._path, what, self._number
                )
                return
            yield entry

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._stream.close()

    def _entry(self, line: bytes) -> Entry:
        content = loads(line, parse_constant=no_number)
        for entry in content.get("new", ()):
            self._table.add(entry)
        if "outage" in content:
            return cast("Outage", record_of(Outage).decode(content["outage"], self._table))
        snapshot = cast("Snapshot", record_of(Snapshot).decode(content["snapshot"], self._table))
        return admitted(snapshot)

    def _layout(self) -> dict[str, list[str]]:
        wrong = UsageError(f"{self._path} is not a recording; make one with: gpuledger record FILE")
        try:
            header = loads(self._stream.readline(_LONGEST_HEADER))
        except _DAMAGE:
            raise wrong from None
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise wrong
        if header.get("version") != VERSION:
            raise UsageError(
                f"{self._path} is a recording of version {header.get('version')}, this program reads "
                f"version {VERSION}; it was made by {header.get('program')}"
            )
        layout = header.get("layout")
        if not isinstance(layout, dict):
            raise wrong
        return layout


def _opened(path: Path) -> IO[bytes]:
    stream = path.open("rb")
    if stream.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
        return stream
    stream.close()
    return cast("IO[bytes]", gzip.open(path, "rb"))
