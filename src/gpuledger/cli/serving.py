"""What all programs that serve do alike: hear of their end, complain once, say where they listen."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

from gpuledger.outputs.http import HttpServer


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
