"""`gpuledger record`: Snapshots of a source to a file that `--source replay:FILE` tells again."""

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
from gpuledger.app.flags import parse, parser
from gpuledger.app.logs import set_up
from gpuledger.app.signals import StopRequest
from gpuledger.config.assemble import assemble
from gpuledger.config.node import EVERYTHING, NODE
from gpuledger.config.settings import LogSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, build, duration, setting
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock, Source
from gpuledger.sources.open import open_source
from gpuledger.sources.replay.masking import Masker, strip_arguments
from gpuledger.sources.replay.recording import Entry, Outage, Writer
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.workloads.naming import Workloads

log = logging.getLogger("gpuledger.record")

_ALL = frozenset(QUANTITIES.values())
_STDOUT = "-"

_ABOUT = """\
Write what a source says, reading by reading, to FILE (gzip when it ends in .gz; - is stdout).

Identifiers are masked: UUIDs, serial numbers, users, pods, namespaces, containers, jobs, units, directories,
and programs but for well-known ones. The same one has the same mask throughout the file, and no mask can be
turned back. Process ids, times, models and measures stay; arguments of programs and the name of this machine
are never written.
"""
_EXAMPLES = """\
report a bug:
  gpuledger record bug.jsonl.gz --for 2m         while it happens; then attach the file
  zcat bug.jsonl.gz | less                       see what you are about to send

see what was recorded:
  gpuledger serve --source replay:bug.jsonl.gz               as it went
  gpuledger serve --source replay:bug.jsonl.gz --speed 10    ten times as fast

more:
  gpuledger record mine.jsonl --unmask --for 0   nothing masked, until stopped with Ctrl-C
  gpuledger record node.jsonl --source simulator --every 500ms --for 10s
  kubectl exec POD -- gpuledger record - --for 1m > pod.jsonl
"""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """What is recorded, and for how long."""

    every: float = setting(
        "record.every",
        duration("s", lowest=0.05),
        1.0,
        "time between readings",
        flags=("--every",),
        metavar="DURATION",
    )
    lasting: float = setting(
        "record.for",
        duration("s"),
        60.0,
        "stop after this time; 0 records until SIGINT (Ctrl-C) or SIGTERM, which end it at any time",
        flags=("--for",),
        metavar="DURATION",
    )
    unmask: bool = setting(
        "record.unmask",
        boolean,
        False,
        "write identifiers as they are; such a file tells who works on what",
        flags=("--unmask",),
    )
    force: bool = setting(
        "record.force", boolean, False, "replace the file if it is there", flags=("--force",)
    )


_GROUPS = (SourceSettings, SmiSettings, HostSettings, LogSettings)


def run(arguments: Sequence[str]) -> int:
    """Record until the time is over or a signal says so."""
    groups = {
        "the recording": RecordSettings,
        **{title: kind for title, kind in NODE.items() if kind in _GROUPS},
    }
    made = parser("record", _ABOUT, _EXAMPLES, groups)
    made.usage = "gpuledger record FILE [FLAGS]"
    given = parse(made, groups.values(), arguments, environ)
    if len(given.words) != 1:
        raise UsageError("record wants one FILE; see gpuledger record --help")
    values = assemble(groups.values(), given.flags, environ, given.config, EVERYTHING)
    set_up(build(LogSettings, values))
    _record(given.words[0], build(RecordSettings, values), values)
    return 0


def _record(name: str, settings: RecordSettings, values: Mapping[str, Any]) -> None:
    if name != _STDOUT and not settings.force and Path(name).exists():
        raise GpuledgerError(f"{name} is there already; choose another name, or --force to replace it")
    clock = SystemClock()
    host_settings = build(HostSettings, values)
    users = PasswdUsers(host_settings.passwd)
    host = ProcFs(host_settings.procfs, pids=host_settings.pids, users=users)
    source = open_source(build(SourceSettings, values), build(SmiSettings, values), host, clock)
    try:
        with StopRequest() as stop:
            ticks = _Ticks(source, Workloads(users.name), clock)
            # Before the file is made: a machine that cannot be read leaves none behind.
            first = ticks.first()
            with _opened(name, settings.force) as stream:
                packed = name.endswith(".gz")
                program = f"gpuledger {__version__}"
                writer = Writer(stream, packed=packed, masked=not settings.unmask, program=program)
                _write(writer, first, ticks, settings, clock, stop)
                writer.finish()
    except OSError as error:
        raise GpuledgerError(f"cannot write {name}: {error.strerror or error}") from None
    finally:
        source.close()
    masked = "NOT masked: it tells who works on what" if settings.unmask else "masked"
    # Not in the recording, where that goes to stdout.
    told = sys.stderr if name == _STDOUT else sys.stdout
    told.write(f"{name}: {writer.snapshots} snapshots, {writer.size} bytes, identifiers {masked}\n")


def _write(
    writer: Writer,
    first: Snapshot,
    ticks: _Ticks,
    settings: RecordSettings,
    clock: Clock,
    stop: StopRequest,
) -> None:
    mask = (lambda entry: entry) if settings.unmask else Masker()
    began = due = clock.elapsed()
    entry: Entry = first
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
    """Named Snapshots of a source, and an Outage where there is none."""

    def __init__(self, source: Source, workloads: Workloads, clock: Clock) -> None:
        self._source = source
        self._workloads = workloads
        self._clock = clock
        # The source's own time less the clock's: an Outage has no time of the source.
        self._ahead = 0.0
        self._lost = ""

    def first(self) -> Snapshot:
        """A Snapshot; raises SourceUnavailable when there is none."""
        snapshot = self._workloads.name(self._source.read(_ALL))
        self._ahead = snapshot.elapsed - self._clock.elapsed()
        self._lost = ""
        return snapshot

    def read(self) -> Entry:
        """What the source says now."""
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
