"""`gpuledger serve`: run the Prometheus exporter and the web page of a node."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger import __version__
from gpuledger.app.flags import ReadSettings, parse_command
from gpuledger.app.logs import configure_logging, warn_if_simulated
from gpuledger.app.node_assembly import assemble_node
from gpuledger.app.node_parts import NodeParts
from gpuledger.app.reload import Reloader
from gpuledger.app.serving import (
    create_server,
    log_addresses,
    open_web_security,
    page_url,
    prepare_loop,
    warn_about_ignored_flags,
)
from gpuledger.config.access import OWN, AccessSettings
from gpuledger.config.node import OWN_GROUPS, other_exporter_groups, serve_groups
from gpuledger.http.settings import HttpSettings
from gpuledger.model.settings import build_settings
from gpuledger.model.source import Clock
from gpuledger.web.settings import WebSettings

if TYPE_CHECKING:
    from gpuledger.http.web_config.security import WebSecurity

log = logging.getLogger("gpuledger.serve")

_ABOUT = """\
Run the Prometheus exporter of this node: read its GPUs once a second, and serve usage by process and owner as
Prometheus metrics and as a web page.
"""
_EXAMPLES = """\
examples:
  gpuledger serve                                  the driver of this machine, on port 9400
  gpuledger serve --source simulator               a simulated Kubernetes node with 8 GPUs, MIG and sharing
  gpuledger serve --listen-address :9400=native --listen-address 127.0.0.1:9401=process,session
  gpuledger serve --devices 0,2 --interval 5s --log-format json

then:
  curl -s localhost:9400/metrics                   the dialects of --dialect
  curl -s localhost:9400/metrics/native            one dialect
  gpuledger pause                                  release the driver, for an upgrade or a profiler
"""


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    groups = serve_groups(arguments, environ)
    given, read = parse_command("serve", _ABOUT, _EXAMPLES, groups, arguments, rare=other_exporter_groups)
    return serve_node(read(), read, () if given.config is None else (given.config,))


# Called after the port is bound and before the first tick, with the node and the event of a stop.
Preparation = Callable[[NodeParts, asyncio.Event], Awaitable[None]]


def serve_node(
    values: Mapping[str, Any],
    read: ReadSettings,
    files: Iterable[Path],
    clock: Clock | None = None,
    prepare: Preparation | None = None,
) -> int:
    """Serve these settings until SIGTERM or SIGINT. `clock` replaces the machine's."""
    configure_logging(values)
    warn_about_ignored_flags(values)
    # A tick computes for a few milliseconds: with the default switch interval of 5 ms a scrape would wait for
    # the interpreter that long.
    sys.setswitchinterval(0.0005)
    return asyncio.run(_serve(values, read, files, clock, prepare))


async def _serve(
    values: Mapping[str, Any],
    read: ReadSettings,
    files: Iterable[Path],
    clock: Clock | None,
    prepare: Preparation | None,
) -> int:
    stop = prepare_loop(log)
    web = open_web_security(build_settings(HttpSettings, values).web_config)
    node = assemble_node(values, clock)
    server = create_server(node.listeners, values, web)
    # `read` translates the settings of other exporters into these.
    node.parts.control.set_watcher(
        Reloader(read, values, OWN_GROUPS.values(), files, node.parts, node.listeners)
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, node.parts.control.request_reload)
    try:
        # Bind the port first: a program that cannot listen must not use the driver.
        await server.start()
        _log_start(node.parts)
        log_addresses(log, server, web)
        _warn_about_access(values, web, node.parts.readers.unknown_groups())
        if prepare is not None:
            await prepare(node.parts, stop)
        # Stopped while it prepared: its source may be closed.
        if not stop.is_set():
            node.parts.start()
            if build_settings(WebSettings, values).page != "off":
                log.info("page: %s", page_url(server, web))
        await stop.wait()
        log.info("stopping")
    finally:
        await server.stop()
        node.parts.stop()
    return 0


def _warn_about_access(values: Mapping[str, Any], web: WebSecurity | None, unknown: Sequence[str]) -> None:
    """Log that nobody can read anything over HTTP, if so, and administrators that do not exist."""
    for name in unknown:
        log.warning("access.admins: this machine has no group %s: correct the name, or add the group", name)
    access = build_settings(AccessSettings, values)
    if access.mode == OWN and (web is None or not web.authenticates):
        log.warning(
            "access.mode is own, and no request over HTTP has a name: only health is served until"
            " --web.config.file has basic_auth_users, or client certificates"
        )


def _log_start(parts: NodeParts) -> None:
    log.info("gpuledger %s, source %s", __version__, parts.source.info.name)
    warn_if_simulated(parts.source.info)
    if parts.store is None:
        log.info("ledger in memory only: it is lost when this program stops; --state-dir DIR keeps it")
    elif parts.store.on_disk:
        log.info("ledger in %s", parts.store.file)
