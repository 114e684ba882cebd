"""The open connections of a server: how many there may be, and when each has taken too long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gpuledger.outputs.limits import Limits

# Connections beyond the limit that are being told so. Past these a connection is dropped without a word.
_REFUSALS = 64


class Guarded(Protocol):
    """What the registry needs of a connection."""

    deadline: float

    @property
    def idle(self) -> bool:
        """Between two requests, with nothing received of the next one."""

    def expire(self) -> None:
        """The deadline has passed."""

    def finish(self) -> None:
        """End after the running request, at once when there is none."""

    def close(self) -> None:
        """End when what was written has been sent."""

    def abort(self) -> None:
        """End now."""


class Registry:
    """Keeps the connections of one server. Used by the event loop's thread alone.

    One sweep looks at all deadlines, instead of a timer for each: a scrape then costs two assignments. It
    runs only while something is open.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopping = False
        # All connections read into it by turns: what was received is consumed before the next one reads.
        self.buffer = bytearray(16 * 1024)
        self._open: set[Guarded] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that the connections will live in."""
        self._loop = loop

    @property
    def now(self) -> float:
        """The loop's clock in seconds."""
        return self.loop.time()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of `attach`."""
        if self._loop is None:
            raise RuntimeError("the server was not started")
        return self._loop

    def admit(self, connection: Guarded) -> bool:
        """Take it in; False when there are too many already and it is to be refused.

        A connection that idles between two scrapes makes room: its owner opens another one unharmed.
        """
        others = len(self._open)
        self._open.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self.limits.sweep_seconds, self._sweep)
        if others < self.limits.connections:
            return True
        idle = [other for other in self._open if other.idle]
        if idle:
            min(idle, key=lambda other: other.deadline).close()
            return True
        if others >= self.limits.connections + _REFUSALS:
            connection.abort()
        return False

    def forget(self, connection: Guarded) -> None:
        """It is closed."""
        self._open.discard(connection)
        if self._open:
            return
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def drain(self, grace: float) -> None:
        """Close what is idle, let running requests end within `grace` seconds, cut off what is left."""
        self.stopping = True
        for connection in tuple(self._open):
            connection.finish()
        if not self._open:
            return
        if self._emptied is None:
            self._emptied = self.loop.create_future()
        cut = self.loop.call_later(grace, self._abort_all)
        await self._emptied
        cut.cancel()

    def _abort_all(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    def _sweep(self) -> None:
        now = self.now
        for connection in tuple(self._open):
            if now >= connection.deadline:
                connection.expire()
        self._sweeper = None
        if self._open:
            self._sweeper = self.loop.call_later(self.limits.sweep_seconds, self._sweep)
