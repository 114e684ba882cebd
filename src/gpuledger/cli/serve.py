"""`gpuledger serve`: the node exporter."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.app.flags import Read, begin
from gpuledger.app.logs import set_up, warn_if_simulated
from gpuledger.app.reload import Reloader
from gpuledger.app.serving import complain_once, say_addresses, stop_request, within_descriptors
from gpuledger.app.wiring import Parts, assemble_node
from gpuledger.config.node import NODE
from gpuledger.config.settings import LogSettings
from gpuledger.http.connection import Connection
from gpuledger.http.limits import Limits
from gpuledger.http.server import HttpServer
from gpuledger.model.settings import build

log = logging.getLogger("gpuledger.serve")

_ABOUT = """\
Read this machine's GPUs once a second and serve who uses them, as Prometheus metrics and as a page.
"""
_EXAMPLES = """\
examples:
  gpuledger serve                                  the driver of this machine, on port 9400
  gpuledger serve --source simulator               a made-up Kubernetes node with 8 GPUs, MIG and sharing
  gpuledger serve --source simulator:workstation   a made-up desktop with two GPUs
  gpuledger serve --listen-address :9400=native --listen-address 127.0.0.1:9401=process,session
  gpuledger serve --devices 0,2 --interval 5s --log-format json

then:
  curl -s localhost:9400/metrics                   the dialects of --dialect
  curl -s localhost:9400/metrics/native            one dialect
  gpuledger pause                                  let the driver go, for an upgrade or a profiler
  xdg-open http://localhost:9400/                  what people look at
"""


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    given, read = begin("serve", _ABOUT, _EXAMPLES, NODE, arguments)
    values = read()
    set_up(build(LogSettings, values))
    # The tick computes in bursts of a few milliseconds; the default of 5 ms per turn would be what a
    # scrape waits for the interpreter.
    sys.setswitchinterval(0.0005)
    return asyncio.run(_serve(values, read, () if given.config is None else (given.config,)))


async def _serve(values: Mapping[str, Any], read: Read, files: Iterable[Path]) -> int:
    told = stop_request()
    made = assemble_node(values)
    complain_once(log)
    limits = within_descriptors(build(Limits, values))
    server = HttpServer(made.listeners, limits, speaker=made.web.speaker if made.web else Connection)
    made.parts.control.watch(Reloader(read, values, NODE.values(), files, made.parts, made.listeners))
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, made.parts.control.nudge)
    try:
        # Port first: who cannot listen must not have touched the driver.
        await server.start()
        _greet(made.parts, server, made.web.scheme if made.web else "http")
        made.parts.start()
        await told.wait()
        log.info("stopping")
    finally:
        await server.stop()
        made.parts.stop()
    return 0


def _greet(parts: Parts, server: HttpServer, scheme: str) -> None:
    log.info("gpuledger %s, source %s", __version__, parts.source.info.name)
    warn_if_simulated(parts.source.info)
    if parts.store is None:
        log.info("books in memory alone: they end with this program")
    elif parts.store.on_disk:
        log.info("books in %s", parts.store.file)
    say_addresses(log, server, scheme)
