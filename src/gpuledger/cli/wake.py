"""What a command that keeps running waits for: a signal to end, a new Page, or time."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ROOM = 4096


class Wake:
    """Between `__enter__` and `__exit__` SIGTERM and SIGINT end the wait and not the process.

    A pipe, because a wait on a lock could be reached by its own signal handler while it holds the lock, and
    because the driver's threads can write to it. For the main thread.
    """

    def __init__(self) -> None:
        self.told = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._tell) for number in _SIGNALS}
        self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._descriptor)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def up(self) -> None:
        """End the running or next wait. From any thread, also after the end."""
        # Full of wakes that nobody has answered yet: one more would say nothing new.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def wait(self, seconds: float | None) -> bool:
        """Wait for `up`, a signal or the time; answers whether a signal has told us to end."""
        if not self.told:
            select.select([self._reader], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._reader, _ROOM)
        return self.told

    def _tell(self, _number: int, _frame: FrameType | None) -> None:
        self.told = True
