"""`gpuledger record`: record Snapshots of a source to a file that `--source replay:FILE` replays."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from os import environ
from pathlib import Path
from typing import IO, Any

from gpuledger import __version__
from gpuledger.app.flags import parse_command
from gpuledger.app.logs import configure_logging
from gpuledger.app.stop_signals import StopRequest
from gpuledger.config.commands import RECORD_GROUPS
from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import open_users
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.quantities import QUANTITIES
from gpuledger.model.settings import boolean, build_settings, duration, option
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
    given, read = parse_command("record", _ABOUT, _EXAMPLES, groups, arguments, argument="FILE")
    values = read()
    configure_logging(values)
    _record(given.arguments[0], build_settings(RecordSettings, values), values)
    return 0


def _record(name: str, settings: RecordSettings, values: Mapping[str, Any]) -> None:
    if name != _STDOUT and not settings.force and Path(name).exists():
        raise GpuledgerError(f"{name} already exists; choose another name, or --force to replace it")
    clock = SystemClock()
    host_settings = build_settings(HostSettings, values)
    users = open_users(host_settings, values, environ)
    host = ProcFs(host_settings.procfs, pids=host_settings.pids, users=users)
    pci = PciBus(host_settings.sysfs, procfs=host_settings.procfs)
    source = open_source(
        build_settings(SourceSettings, values), build_settings(SmiSettings, values), host, clock, pci
    )
    try:
        with StopRequest() as stop:
            entries = _read_entries(
                source, OwnerLookup(users.name, name_changes=lambda: users.changes), clock, settings, stop
            )
            # Read before creating the file: a machine that cannot be read leaves no empty file.
            first = next(entries)
            with _open(name, settings.force) as stream:
                packed = name.endswith(".gz")
                program = f"gpuledger {__version__}"
                writer = RecordingWriter(
                    stream, compressed=packed, masked=not settings.unmask, program=program
                )
                mask = (lambda entry: entry) if settings.unmask else Masker()
                for entry in chain([first], entries):
                    writer.write(mask(strip_arguments(entry)))
                writer.write_trailer()
    except OSError as error:
        raise GpuledgerError(f"cannot write {name}: {error.strerror or error}") from None
    finally:
        source.close()
    masked = "NOT masked: the file shows who works on what" if settings.unmask else "masked"
    # stderr if the recording goes to stdout.
    output = sys.stderr if name == _STDOUT else sys.stdout
    output.write(f"{name}: {writer.snapshots} snapshots, {writer.size} bytes, identifiers {masked}\n")


def _read_entries(
    source: Source, workloads: OwnerLookup, clock: Clock, settings: RecordSettings, stop: StopRequest
) -> Iterator[RecordingEntry]:
    """Snapshots with owners, and an Outage where reading failed. The first failure is raised."""
    # The source's elapsed time minus the clock's, to compute the time of an Outage.
    ahead: float | None = None
    lost = ""
    began = due = 0.0
    while True:
        entry: RecordingEntry
        try:
            entry = workloads.assign_owners(source.read(_ALL))
        except SourceUnavailable as error:
            if ahead is None:
                raise
            if str(error) != lost:
                log.error("%s", error)
            lost = str(error)
            entry = Outage(clock.unix(), clock.elapsed() + ahead, error.reason, lost)
        else:
            if ahead is None:
                began = due = clock.elapsed()
            ahead, lost = entry.elapsed - clock.elapsed(), ""
        yield entry
        now = clock.elapsed()
        due = max(due + settings.every, now)
        if settings.lasting and due - began > settings.lasting:
            return
        if stop.wait(due - now):
            return


def _open(name: str, force: bool) -> AbstractContextManager[IO[bytes]]:
    if name == _STDOUT:
        return nullcontext(sys.stdout.buffer)
    return Path(name).open("wb" if force else "xb")
