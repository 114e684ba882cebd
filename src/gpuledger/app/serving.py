"""Shared by all serving programs: stop signals, repeated loop errors, file descriptors, log of addresses."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuledger.config.node import ignored_flags
from gpuledger.http.limits import RESERVE_CONNECTIONS, HttpLimits
from gpuledger.http.server import HttpServer


def install_stop_handlers() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Without handlers, pid 1 of a container ignores both signals."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def log_loop_errors_once(log: logging.Logger) -> None:
    """Log each distinct error of the running loop once: without file descriptors it repeats one thousands of
    times.
    """
    logged: set[str] = set()

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context['message']}: {error}" if error else str(context["message"])
        if text not in logged:
            logged.add(text)
            # For errors of the operating system a traceback adds nothing.
            where = None if isinstance(error, OSError) else error
            log.error("%s (repetitions are not logged)", text, exc_info=where)

    asyncio.get_running_loop().set_exception_handler(handle)


def warn_about_ignored_flags(values: Mapping[str, Any]) -> None:
    """Log the flags in these parsed values that have no effect."""
    if ignored := ignored_flags(values):
        log.warning("no effect: %s; gpuledger serve --help-compat has the reasons", ", ".join(ignored))


def log_addresses(log: logging.Logger, server: HttpServer, scheme: str = "http") -> None:
    """Log the listen addresses, with the real port where port 0 was configured."""
    for address in server.addresses:
        log.info("listening on %s port %d (%s)", address.host or "all addresses", address.port, scheme)


log = logging.getLogger("gpuledger")

# File descriptors for the ledger, owner indexes, watches, outgoing connections, libraries. Measured: < 60.
_OWN = 128


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
