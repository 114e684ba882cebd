"""What all programs that serve do alike: hear of their end, complain once, say where they listen."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuledger.http.limits import RESERVE, Limits
from gpuledger.http.server import HttpServer


def stop_request() -> asyncio.Event:
    """What SIGTERM and SIGINT set from here on. A container's first program hears neither without it."""
    told = asyncio.Event()
    hear(told)
    return told


def hear(told: asyncio.Event) -> None:
    """Have SIGTERM and SIGINT set it, whoever may have taken them meanwhile."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)


def complain_once(log: logging.Logger) -> None:
    """Have `log` say once what the running loop keeps complaining of: out of descriptors, it does so
    thousandfold.
    """
    said: set[str] = set()

    def take(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context['message']}: {error}" if error else str(context["message"])
        if text not in said:
            said.add(text)
            # What the system refuses is no defect of ours: where it was met says nothing more.
            where = None if isinstance(error, OSError) else error
            log.error("%s (further ones like this are not logged)", text, exc_info=where)

    asyncio.get_running_loop().set_exception_handler(take)


def say_addresses(log: logging.Logger, server: HttpServer, scheme: str = "http") -> None:
    """Have `log` say where it listens, with the real port where 0 was asked for."""
    for address in server.addresses:
        log.info("listening on %s port %d (%s)", address.host or "every address", address.port, scheme)


log = logging.getLogger("gpuledger")

# Books, maps, watches, sockets to elsewhere, libraries: fewer than sixty are seen.
_OWN = 128


def within_descriptors(limits: Limits, beside: int | None = _OWN) -> Limits:
    """The limits, with no more connections than there are file descriptors for, and a word in the log then.

    The soft limit is raised towards the hard one, so far as `beside` descriptors are left for other things;
    None raises it all the way. A server out of descriptors could not answer a probe either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = limits.connections + RESERVE + (_OWN if beside is None else beside)
    if soft != unlimited and (beside is None or soft < wanted):
        raised = hard if beside is None or (hard != unlimited and hard < wanted) else wanted
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == unlimited or soft >= wanted:
        return limits
    fitting = max(1, limits.connections - (wanted - soft))
    log.warning(
        "of %d connections (web.limits.connections) %d are served: ulimit -n is %d, %d is needed",
        limits.connections,
        fitting,
        soft,
        wanted,
    )
    return replace(limits, connections=fitting)
