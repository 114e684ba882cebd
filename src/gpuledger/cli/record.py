"""`gpuledger record`: record Snapshots of a source to a file that `--source replay:FILE` replays."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import IO, Any

from gpuledger import __version__
from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.app.logs import configure_logging
from gpuledger.app.stop_signals import StopRequest
from gpuledger.config.load import load_values
from gpuledger.config.node import ALL_GROUPS, RECORD_GROUPS
from gpuledger.config.settings import LogSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, build_settings, duration, option
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock, Source
from gpuledger.sources.replay.masking import Masker, strip_arguments
from gpuledger.sources.replay.recording import Outage, RecordingEntry, RecordingWriter
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
from gpuledger.workloads.owner_lookup import OwnerLookup

log = logging.getLogger("gpuledger.record")

_ALL = frozenset(QUANTITIES.values())
_STDOUT = "-"

_ABOUT = """\
Record the readings of a source to FILE (gzip when its name ends in .gz; - is stdout).

Identifiers are masked: UUIDs, serial numbers, users, pods, namespaces, containers, jobs, units, directories,
and all but well-known programs. An identifier has the same mask throughout the file, and masks cannot be
reversed. Process ids, times, models and measurements are kept; arguments of programs and the name of this
machine are never written.
"""
_EXAMPLES = """\
report a bug:
  gpuledger record bug.jsonl.gz --for 2m         while it happens; then attach the file
  zcat bug.jsonl.gz | less                       review the file before you send it

replay a recording:
  gpuledger serve --source replay:bug.jsonl.gz               at its original speed
  gpuledger serve --source replay:bug.jsonl.gz --speed 10    ten times as fast

more:
  gpuledger record mine.jsonl --unmask --for 0   nothing masked, until stopped with Ctrl-C
  gpuledger record node.jsonl --source simulator --every 500ms --for 10s
  kubectl exec POD -- gpuledger record - --for 1m > pod.jsonl
"""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Interval, duration and masking of a recording."""

    every: float = option("record.every", duration("s", lowest=0.05), 1.0, "time between readings")
    lasting: float = option(
        "record.for",
        duration("s"),
        60.0,
        "stop after this time; 0 records until SIGINT (Ctrl-C) or SIGTERM, which stop it at any time",
    )
    unmask: bool = option(
        "record.unmask", boolean, False, "write identifiers unmasked; such a file shows who works on what"
    )
    force: bool = option("record.force", boolean, False, "replace an existing file")


def run(arguments: Sequence[str]) -> int:
    """Record until the time is over or a signal requests a stop."""
    groups = {"recording": RecordSettings, **RECORD_GROUPS}
    made = build_parser("record", _ABOUT, _EXAMPLES, groups)
    made.usage = "gpuledger record FILE [FLAGS]"
    given = parse_flags(made, groups.values(), arguments, environ)
    if len(given.arguments) != 1:
        raise UsageError("record needs one FILE; see gpuledger record --help")
    values = load_values(groups.values(), given.flags, environ, given.config, ALL_GROUPS)
    configure_logging(build_settings(LogSettings, values))
    _record(given.arguments[0], build_settings(RecordSettings, values), values)
    return 0


def _record(name: str, settings: RecordSettings, values: Mapping[str, Any]) -> None:
    if name != _STDOUT and not settings.force and Path(name).exists():
        raise GpuledgerError(f"{name} already exists; choose another name, or --force to replace it")
    clock = SystemClock()
    host_settings = build_settings(HostSettings, values)
    users = PasswdUsers(host_settings.passwd)
    host = ProcFs(host_settings.procfs, pids=host_settings.pids, users=users)
    source = open_source(
        build_settings(SourceSettings, values), build_settings(SmiSettings, values), host, clock
    )
    try:
        with StopRequest() as stop:
            ticks = _Ticks(source, OwnerLookup(users.name), clock)
            # Read before creating the file: a machine that cannot be read leaves no empty file.
            first = ticks.first()
            with _opened(name, settings.force) as stream:
                packed = name.endswith(".gz")
                program = f"gpuledger {__version__}"
                writer = RecordingWriter(
                    stream, compressed=packed, masked=not settings.unmask, program=program
                )
                _write(writer, first, ticks, settings, clock, stop)
                writer.write_trailer()
    except OSError as error:
        raise GpuledgerError(f"cannot write {name}: {error.strerror or error}") from None
    finally:
        source.close()
    masked = "NOT masked: the file shows who works on what" if settings.unmask else "masked"
    # stderr if the recording goes to stdout.
    output = sys.stderr if name == _STDOUT else sys.stdout
    output.write(f"{name}: {writer.snapshots} snapshots, {writer.size} bytes, identifiers {masked}\n")


def _write(
    writer: RecordingWriter,
    first: Snapshot,
    ticks: _Ticks,
    settings: RecordSettings,
    clock: Clock,
    stop: StopRequest,
) -> None:
    mask = (lambda entry: entry) if settings.unmask else Masker()
    began = due = clock.elapsed()
    entry: RecordingEntry = first
    while True:
        writer.write(mask(strip_arguments(entry)))
        now = clock.elapsed()
        due = max(due + settings.every, now)
        if settings.lasting and due - began > settings.lasting:
            return
        if stop.wait(due - now):
            return
        entry = ticks.read()


class _Ticks:
    """Snapshots of a source with owners, and an Outage where reading failed."""

    def __init__(self, source: Source, workloads: OwnerLookup, clock: Clock) -> None:
        self._source = source
        self._workloads = workloads
        self._clock = clock
        # The source's elapsed time minus the clock's, to compute the time of an Outage.
        self._ahead = 0.0
        self._lost = ""

    def first(self) -> Snapshot:
        """The next Snapshot; raises SourceUnavailable when reading fails."""
        snapshot = self._workloads.assign_owners(self._source.read(_ALL))
        self._ahead = snapshot.elapsed - self._clock.elapsed()
        self._lost = ""
        return snapshot

    def read(self) -> RecordingEntry:
        """The next Snapshot or Outage."""
        try:
            return self.first()
        except SourceUnavailable as error:
            if str(error) != self._lost:
                self._lost = str(error)
                log.error("%s", error)
            elapsed = self._clock.elapsed() + self._ahead
            return Outage(self._clock.unix(), elapsed, error.reason, str(error))


@contextmanager
def _opened(name: str, force: bool) -> Iterator[IO[bytes]]:
    if name == _STDOUT:
        yield sys.stdout.buffer
    else:
        with Path(name).open("wb" if force else "xb") as stream:
            yield stream
