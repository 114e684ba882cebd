"""What is to be looked at, and when: each thing once, however often it was asked for."""

from __future__ import annotations

import asyncio


class Due:
    """Keys with the time at which each is due, by the running loop's clock."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._changed = asyncio.Event()

    def wake(self, key: str, after: float = 0.0) -> None:
        """In so many seconds, or when it was due already if that is sooner."""
        at = asyncio.get_running_loop().time() + after
        if at < self._times.get(key, float("inf")):
            self._times[key] = at
            self._changed.set()

    async def next(self) -> str:
        """The next key, once it is due."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            soonest = min(self._times, key=self._times.__getitem__, default=None)
            left = None if soonest is None else self._times[soonest] - loop.time()
            if soonest is not None and left is not None and left <= 0:
                del self._times[soonest]
                return soonest
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue
