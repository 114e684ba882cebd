"""`gpuledger collect`: metrics as a file for node_exporter, or on stdout."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

from gpuledger import __version__
from gpuledger.app.flags import begin
from gpuledger.app.logs import quiet_node, set_up, warn_if_simulated
from gpuledger.app.signals import Wake
from gpuledger.app.wiring import PATIENCE, Parts, assemble_parts, does_not_answer, vocabularies
from gpuledger.config.node import COLLECT
from gpuledger.config.settings import LogSettings
from gpuledger.dialects.catalogue import known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition.merging import check_specs
from gpuledger.model.errors import GpuledgerError, SourceUnavailable, UsageError
from gpuledger.model.node_state import Dialect, NodeState
from gpuledger.model.settings import build
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.outputs.textfile import Neighbours, Textfile, write_all

log = logging.getLogger("gpuledger.collect")

_ABOUT = """\
Read this machine's GPUs and write who uses them into a file that node_exporter's textfile collector reads:
once, for a CronJob or a timer, or with --every for as long as it runs.
"""
_EXAMPLES = """\
examples:
  gpuledger collect --stdout                       one look, printed
  gpuledger collect                                one look, into the directory of node_exporter
  gpuledger collect --every 60s                    look each --interval, write each minute, until stopped
  gpuledger collect --source simulator --textfile-dir /tmp
  gpuledger collect --every 30s --file gpu_native.prom --dialect native

every minute, by cron or by systemd:
  * * * * * root gpuledger collect
  gpuledger-collect.service: [Service] Type=oneshot, ExecStart=/usr/bin/gpuledger collect
  gpuledger-collect.timer:   [Timer] OnCalendar=minutely, AccuracySec=1s

node_exporter must be told the directory:
  --collector.textfile.directory=/var/lib/node_exporter/textfile_collector

Once, a file tells process and session, what --dialect tells by default then: counters and books need a
program that keeps running, --every. Without readings there is no file: what a failed source told before is
removed, not left to be read as the present. Exit code 0 written, 1 not written (why is on stderr), 2 a flag
must be changed. More: docs/textfile.md
"""

# Their families are states of the moment: another process can go on where the last one ended.
_ONCE = ("process", "session")

# Seconds after which a directory that took no file is tried again.
_AGAIN = 5.0


def run(arguments: Sequence[str]) -> int:
    """Write once and end, or until SIGTERM or SIGINT."""
    _, read = begin("collect", _ABOUT, _EXAMPLES, COLLECT, arguments)
    values = read()
    set_up(build(LogSettings, values))
    settings = build(TextfileSettings, values)
    _check(settings, values)
    every = vocabularies(values)
    names = _names(settings, values, every)
    if settings.stdout:
        return _print(assemble_parts(values, every, names, keeps_books=False), names)
    families = {spec.name for name in names for spec in every[name].specs}
    file = Textfile(Path(settings.directory), settings.file)
    neighbours = Neighbours(file.path, families)
    if settings.every is None:
        return _write_once(assemble_parts(values, every, names, keeps_books=False), names, file, neighbours)
    wake = Wake()
    parts = assemble_parts(values, every, names, published=wake.up)
    return _keep_writing(parts, names, file, neighbours, settings.every, wake)


def _check(settings: TextfileSettings, values: Mapping[str, Any]) -> None:
    if settings.every is None:
        return
    if settings.stdout:
        raise UsageError("--stdout prints one page; drop --every, or write a file")
    interval = build(NodeSettings, values).interval
    if settings.every < interval:
        raise UsageError(
            f"--every {settings.every:g}s is shorter than --interval {interval:g}s: nothing new would be"
            f" written; give --interval {settings.every:g}s too"
        )


def _names(
    settings: TextfileSettings, values: Mapping[str, Any], every: Mapping[str, Dialect]
) -> tuple[str, ...]:
    once = settings.every is None
    if once and "dialect" not in values:
        return _ONCE
    names = known(build(DialectSettings, values).dialect, dict(every))
    check_specs(chain.from_iterable(every[name].specs for name in names))
    kept = [name for name in names if name not in _ONCE]
    if once and kept and not settings.stdout:
        raise UsageError(
            f"dialect {kept[0]} needs a program that keeps running: its counters would start anew in each"
            f" run; add --every 60s, or tell --dialect {','.join(_ONCE)}"
        )
    return names


def _print(parts: Parts, names: tuple[str, ...]) -> int:
    body = _read_once(parts, names)
    sys.stdout.flush()
    try:
        # Past Python's buffer, which would fail once more at exit.
        write_all(sys.stdout.fileno(), body)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise GpuledgerError(f"cannot write to stdout: {error.strerror}; see where it is sent") from None
    warn_if_simulated(parts.source.info)
    return 0


def _write_once(parts: Parts, names: tuple[str, ...], file: Textfile, neighbours: Neighbours) -> int:
    # The file first: who cannot write must not have touched the driver.
    with file:
        _warn_of_clashes(neighbours)
        try:
            body = _read_once(parts, names)
        except SourceUnavailable as error:
            if not file.remove():
                raise
            raise SourceUnavailable(f"{error} ({file.path} told older readings and is removed)") from None
        file.put(body)
    warn_if_simulated(parts.source.info)
    return 0


def _read_once(parts: Parts, names: tuple[str, ...]) -> bytes:
    """One tick's page. Raises SourceUnavailable when there are no readings."""
    parts.maps.read_once()
    with quiet_node():
        # A thread, because a call of a hanging driver cannot be interrupted; daemon, because it may be left.
        tick = Thread(target=parts.node.tick, name="tick", daemon=True)
        tick.start()
        tick.join(PATIENCE)
    if tick.is_alive():
        raise does_not_answer(parts.source.info, PATIENCE)
    page, body = parts.pages.text(names)
    _check_read(page)
    parts.source.close()
    parts.maps.stop()
    return body


def _check_read(page: NodeState) -> None:
    if not page.health.tried:
        raise GpuledgerError("the reading failed, as told above: an error of gpuledger; please report it")
    if page.snapshot is None:
        raise SourceUnavailable(page.health.status)
    if not page.health.healthy:
        log.warning("%s", page.health.status)


def _keep_writing(
    parts: Parts, names: tuple[str, ...], file: Textfile, neighbours: Neighbours, every: float, wake: Wake
) -> int:
    with wake, file:
        log.info(
            "gpuledger %s, source %s, writing %s every %g s",
            __version__,
            parts.source.info.name,
            file.path,
            every,
        )
        warn_if_simulated(parts.source.info)
        parts.start()
        try:
            _write_until_told(parts, names, file, neighbours, every, wake)
            log.info("stopping: %s goes with the program that kept it", file.path)
            # Nobody keeps it true from here on.
            file.remove()
        finally:
            parts.stop()
    return 0


def _write_until_told(
    parts: Parts, names: tuple[str, ...], file: Textfile, neighbours: Neighbours, every: float, wake: Wake
) -> None:
    due = parts.clock.elapsed()
    readable: bool | None = None
    refused = ""
    while not wake.told:
        wait = None
        page = parts.pages.page
        if page.health.tried:
            now = parts.clock.elapsed()
            # Readings that end or come back are not left to the next turn: a file that tells what is no
            # longer known would be believed until then.
            if now >= due or (page.snapshot is not None) is not readable:
                _warn_of_clashes(neighbours)
                page, body = parts.pages.text(names)
                refused = _put(file, body, refused)
                readable = page.snapshot is not None
                due = now + (min(every, _AGAIN) if refused else every)
            wait = max(0.0, due - parts.clock.elapsed())
        wake.wait(wait)


def _put(file: Textfile, body: bytes, before: str) -> str:
    """Why the file could not be put in place, said once; empty when it was. `before` is the last answer."""
    try:
        file.put(body)
    except GpuledgerError as error:
        if str(error) != before:
            log.error("%s; the books go on, and it is tried again", error)
        return str(error)
    if before:
        log.info("writing %s again", file.path)
    return ""


def _warn_of_clashes(neighbours: Neighbours) -> None:
    for path, families in neighbours.clashes():
        log.warning(
            "%s tells %s too: node_exporter keeps one of two equal series and drops the other; stop what"
            " writes that file and remove it, or tell another --dialect here",
            path,
            ", ".join(families),
        )
