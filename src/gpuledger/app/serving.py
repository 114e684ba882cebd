"""Shared by all serving programs: stop signals, repeated loop errors, file descriptors, log of addresses."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.config.node import ignored_flags
from gpuledger.host.clock import SystemClock
from gpuledger.http.addresses import Address, inherited_sockets
from gpuledger.http.connection import ClientConnection
from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.routes import Routes
from gpuledger.http.server import HttpServer
from gpuledger.http.settings import SocketActivationSettings
from gpuledger.model.settings import build_settings
from gpuledger.model.text import join_host_port

if TYPE_CHECKING:
    from gpuledger.http.web_config.security import WebSecurity


def prepare_loop(log: logging.Logger) -> asyncio.Event:
    """Prepare the running loop: errors are logged once, SIGTERM and SIGINT set the returned event.

    Without handlers, pid 1 of a container ignores both signals.
    """
    log_loop_errors_once(log)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


# Distinct errors that are logged: their texts can contain addresses and ports.
_MOST_ERRORS = 100


def log_loop_errors_once(log: logging.Logger) -> None:
    """Log each distinct error of the running loop once: without file descriptors it repeats one thousands of
    times.
    """
    logged: set[str] = set()

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context['message']}: {error}" if error else str(context["message"])
        if text not in logged and len(logged) < _MOST_ERRORS:
            logged.add(text)
            # For errors of the operating system a traceback adds nothing.
            where = None if isinstance(error, OSError) else error
            log.error("%s (repetitions are not logged)", text, exc_info=where)

    asyncio.get_running_loop().set_exception_handler(handle)


def warn_about_ignored_flags(values: Mapping[str, Any]) -> None:
    """Log the flags in these parsed values that have no effect."""
    if ignored := ignored_flags(values):
        log.warning("no effect: %s; gpuledger serve --help-compat has the reasons", ", ".join(ignored))


def log_addresses(log: logging.Logger, server: HttpServer, web: WebSecurity | None = None) -> None:
    """Log the listen addresses, with the real port where port 0 was configured, and who can read them."""
    scheme, is_open = (web.scheme if web else "http"), web is None or not web.authenticates
    for address in server.addresses:
        where, warning = address.host or "all addresses", ""
        if is_open and address.means_all:
            only_here = f"--listen-address 127.0.0.1:{address.port}"
            warning = f", without a password; to serve only this machine: {only_here}"
        log.info("listening on %s port %d (%s)%s", where, address.port, scheme, warning)


def page_url(server: HttpServer, web: WebSecurity | None) -> str:
    """The URL of the web page for a browser on this machine."""
    address = server.addresses[0]
    host = "localhost" if address.means_all else address.host
    return f"{web.scheme if web else 'http'}://{join_host_port(host, address.port)}/"


log = logging.getLogger("gpuledger")

# File descriptors for the ledger, owner indexes, watches, outgoing connections, libraries. Measured: < 60.
_OWN = 128


def open_web_security(file: str) -> WebSecurity | None:
    """The web config in `file`, None without one. Raises UsageError for one that cannot be used."""
    if not file:
        return None
    # Imported lazily: only needed with a web config file.
    from gpuledger.http.web_config.security import WebSecurity

    return WebSecurity(Path(file), SystemClock())


def create_server(
    listeners: Sequence[tuple[Address, Routes]],
    values: Mapping[str, Any],
    web: WebSecurity | None = None,
    reserved: int | None = _OWN,
) -> HttpServer:
    """A server with the limits of the settings in `values`; see `limit_to_descriptors` for `reserved`."""
    limits = limit_to_descriptors(build_settings(HttpLimits, values), reserved)
    factory = web.protocol_factory if web else ClientConnection
    activated = build_settings(SocketActivationSettings, values).systemd_socket
    inherited = inherited_sockets(os.environ, os.getpid()) if activated else ()
    return HttpServer(listeners, limits, protocol_factory=factory, inherited=inherited)


def limit_to_descriptors(limits: HttpLimits, reserved: int | None = _OWN) -> HttpLimits:
    """The limits with `connections` reduced to the available file descriptors, which is logged.

    Raises RLIMIT_NOFILE's soft limit up to the hard limit, as far as needed to keep `reserved` descriptors
    for other uses; None raises it to the hard limit. A server without descriptors cannot answer a probe.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = limits.connections + RESERVE_CONNECTIONS + (_OWN if reserved is None else reserved)
    if soft != unlimited and (reserved is None or soft < wanted):
        raised = hard if reserved is None or (hard != unlimited and hard < wanted) else wanted
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == unlimited or soft >= wanted:
        return limits
    fitting = max(1, limits.connections - (wanted - soft))
    log.warning(
        "serving at most %d connections, not %d (web.limits.connections): ulimit -n is %d; raise it to %d",
        fitting,
        limits.connections,
        soft,
        wanted,
    )
    return replace(limits, connections=fitting)
