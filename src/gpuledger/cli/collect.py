"""`gpuledger collect`: write metrics into a file for node_exporter, or to stdout."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

from gpuledger import __version__
from gpuledger.app.flags import parse_command
from gpuledger.app.logs import configure_logging, silence_node_log, warn_if_simulated
from gpuledger.app.node_assembly import assemble_parts, build_dialects
from gpuledger.app.node_parts import (
    COMMAND_READING_TIMEOUT,
    READING_TIMEOUT,
    NodeParts,
    no_reading_error,
    page_conflict,
)
from gpuledger.app.stop_signals import SignalPipe
from gpuledger.config.commands import COLLECT_GROUPS
from gpuledger.dialects.catalogue import ONCE_DIALECTS, check_dialect_names
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition.merging import check_family_specs
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.devices import Instance
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.node_state import Dialect, NodeState
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.outputs.textfile import Textfile, write_all
from gpuledger.outputs.textfile_neighbours import NeighbourFiles

log = logging.getLogger("gpuledger.collect")

_ABOUT = """\
Read this machine's GPUs and write metrics of their users into a file for node_exporter's textfile collector:
once, for a CronJob or a timer, or repeatedly with --every.
"""
_EXAMPLES = """\
examples:
  gpuledger collect --stdout                       one reading, printed
  gpuledger collect                                one reading, into the directory of node_exporter
  gpuledger collect --every 60s                    read every --interval, write every minute, until stopped
  gpuledger collect --source simulator --textfile-dir /tmp
  gpuledger collect --every 30s --file gpu_native.prom --dialect native

every minute, with cron or systemd:
  * * * * * root gpuledger collect
  gpuledger-collect.service: [Service] Type=oneshot, ExecStart=/usr/bin/gpuledger collect
  gpuledger-collect.timer:   [Timer] OnCalendar=minutely, AccuracySec=1s

node_exporter needs the directory:
  --collector.textfile.directory=/var/lib/node_exporter/textfile_collector

A single run exports the dialects process and session by default: counters and the ledger need a program that
keeps running (--every). Without readings there is no file: the file of an earlier run is removed, so that old
data are not taken for current ones. Exit codes: 0 written, 1 not written (stderr has the reason), 2 a flag is
wrong. More: docs/textfile.md
"""

# Seconds until a failed write is retried.
_AGAIN = 5.0


def run(arguments: Sequence[str]) -> int:
    """Write once, or repeatedly until SIGTERM or SIGINT."""
    _, read = parse_command("collect", _ABOUT, _EXAMPLES, COLLECT_GROUPS, arguments)
    values = read()
    configure_logging(values)
    settings = build_settings(TextfileSettings, values)
    _check(settings, values)
    every = build_dialects(values)
    names = _names(settings, values, every)
    families = {spec.name for name in names for spec in every[name].specs}
    file = Textfile(Path(settings.directory), settings.file)
    neighbours = NeighbourFiles(file.path, families)
    if settings.every is not None:
        wake = SignalPipe()
        # A file that has a new series as 0 must be there when node_exporter is scraped.
        ledger = build_settings(LedgerSettings, values)
        hold = max(ledger.zero_hold, settings.every + LedgerSettings().zero_hold)
        held = {**values, "energy.zero_hold": hold}
        parts = assemble_parts(held, every, names, on_publish=wake.wake)
        _Writer(parts, names, file, neighbours, settings.every, wake).run()
        return 0
    parts = assemble_parts(values, every, names, keep_ledger=False)
    if settings.stdout:
        _print(parts, names)
    else:
        _write_once(parts, names, file, neighbours)
    warn_if_simulated(parts.source.info)
    return 0


def _check(settings: TextfileSettings, values: Mapping[str, Any]) -> None:
    if settings.every is None:
        return
    if settings.stdout:
        raise UsageError("--stdout prints one page; drop --every, or write a file")
    settings.check_interval(build_settings(NodeSettings, values).interval)


def _names(
    settings: TextfileSettings, values: Mapping[str, Any], every: Mapping[str, Dialect]
) -> tuple[str, ...]:
    once = settings.every is None
    if once and "dialect" not in values:
        return ONCE_DIALECTS
    names = check_dialect_names(build_settings(DialectSettings, values).dialect, dict(every))
    try:
        check_family_specs(chain.from_iterable(every[name].specs for name in names))
    except ValueError as error:
        raise page_conflict(error) from None
    kept = [name for name in names if name not in ONCE_DIALECTS]
    if once and kept and not settings.stdout:
        raise UsageError(
            f"dialect {kept[0]} needs a program that keeps running: its counters would restart in each run;"
            f" add --every 60s, or use --dialect {','.join(ONCE_DIALECTS)}"
        )
    return names


def _print(parts: NodeParts, names: tuple[str, ...]) -> None:
    _, body = _read_once(parts, names)
    sys.stdout.flush()
    try:
        # Unbuffered: Python would report a failed buffered write a second time at exit.
        write_all(sys.stdout.fileno(), body)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise GpuledgerError(f"cannot write to stdout: {error.strerror}; check its redirection") from None


def _write_once(parts: NodeParts, names: tuple[str, ...], file: Textfile, neighbours: NeighbourFiles) -> None:
    # Open the file first: a command that cannot write must not use the driver.
    with file:
        _warn_of_neighbours(neighbours)
        try:
            counts, body = _read_once(parts, names)
        except SourceUnavailable as error:
            if not file.remove():
                raise
            raise SourceUnavailable(f"{error} (removed {file.path}, which had older readings)") from None
        file.write(body)
    # The log of the CronJob shows that it worked.
    log.info("wrote %s: %s", file.path, counts)


def _read_once(parts: NodeParts, names: tuple[str, ...]) -> tuple[str, bytes]:
    """What one tick found, in words, and its metrics text. Raises SourceUnavailable without readings."""
    parts.owner_indexes.read_once()
    with silence_node_log():
        # A daemon thread: a hung driver call cannot be interrupted, so the thread may have to be abandoned.
        tick = Thread(target=parts.node.tick, name="tick", daemon=True)
        tick.start()
        limit = COMMAND_READING_TIMEOUT if "smi" in parts.source.info.name.split("+") else READING_TIMEOUT
        tick.join(limit)
    if tick.is_alive():
        raise no_reading_error(parts.source.info, limit)
    state, body = parts.pages.encode_text(names)
    snapshot = _check_read(state)
    parts.source.close()
    parts.owner_indexes.stop()
    return _counts(snapshot), body


def _counts(snapshot: Snapshot) -> str:
    gpus = len({reading.device.gpu.uuid for reading in snapshot.readings})
    instances = sum(isinstance(reading.device, Instance) for reading in snapshot.readings)
    processes = list(snapshot.processes)
    in_pods = sum(bool(process.workload.pod) for process in processes)
    return f"{gpus} GPUs, {instances} MIG instances, {len(processes)} processes, {in_pods} of them in pods"


def _check_read(state: NodeState) -> Snapshot:
    if not state.health.attempted:
        raise GpuledgerError("internal error in gpuledger; please report the log lines above")
    if state.snapshot is None:
        raise SourceUnavailable(state.health.status)
    if not state.health.healthy:
        log.warning("%s", state.health.status)
    return state.snapshot


@dataclass(slots=True)
class _Writer:
    """Writes the file repeatedly. `wake` ends each wait when there is a new state."""

    parts: NodeParts
    names: tuple[str, ...]
    file: Textfile
    neighbours: NeighbourFiles
    every: float
    wake: SignalPipe
    # The error of the last write, empty after a successful one.
    refused: str = ""

    def run(self) -> None:
        """Write until a signal requests a stop."""
        parts, file = self.parts, self.file
        with self.wake, file:
            name = parts.source.info.name
            log.info(
                "gpuledger %s, source %s, writing %s every %g s", __version__, name, file.path, self.every
            )
            warn_if_simulated(parts.source.info)
            parts.start()
            try:
                self._write_until_stopped()
                log.info("stopping: removing %s", file.path)
                # Without this program the file would become stale.
                file.remove()
            finally:
                parts.stop()

    def _write_until_stopped(self) -> None:
        due = self.parts.clock.elapsed()
        readable: bool | None = None
        while not self.wake.requested:
            wait = None
            state = self.parts.pages.state
            if state.health.attempted:
                now = self.parts.clock.elapsed()
                # Write immediately when readings stop or return, so that the file never exposes old readings.
                if now >= due or (state.snapshot is not None) is not readable:
                    _warn_of_neighbours(self.neighbours)
                    state, body = self.parts.pages.encode_text(self.names)
                    self._put(body)
                    readable = state.snapshot is not None
                    due = now + (min(self.every, _AGAIN) if self.refused else self.every)
                wait = max(0.0, due - self.parts.clock.elapsed())
            self.wake.wait(wait)

    def _put(self, body: bytes) -> None:
        """Write the file. Logs an error that differs from the last one."""
        try:
            self.file.write(body)
        except GpuledgerError as error:
            if str(error) != self.refused:
                log.error("%s; will retry; the ledger is not affected", error)
            self.refused = str(error)
        else:
            if self.refused:
                log.info("writing %s again", self.file.path)
            self.refused = ""


def _warn_of_neighbours(neighbours: NeighbourFiles) -> None:
    for problem in neighbours.find_problems():
        log.warning("%s; %s", problem.why, problem.remedy)
