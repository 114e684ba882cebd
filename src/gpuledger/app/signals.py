"""SIGINT and SIGTERM as a request to finish, for commands without an event loop."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_ROOM = 4096


class StopRequest:
    """Inside `with`, the first signal asks to stop; the second acts as it did before.

    A threading.Event would not do: a handler that sets it while the same thread waits for it can lock up.
    """

    def __init__(self) -> None:
        self.told = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._hears, self._tells = os.pipe()
        self._before = {number: signal.signal(number, self._tell) for number in _STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)
        os.close(self._hears)
        os.close(self._tells)

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until asked to stop; whether that was asked."""
        select.select([self._hears], [], [], max(0.0, seconds))
        return self.told

    def _tell(self, _number: int, _frame: FrameType | None) -> None:
        self.told = True
        # A driver that hangs must not keep the program from ending when asked twice.
        _restore(self._before)
        os.write(self._tells, b"!")


class Wake:
    """Inside `with`, signals end a wait and not the process, and so does whoever calls `up`.

    A pipe, because a wait on a lock could be reached by its own signal handler while it holds the lock, and
    because the driver's threads can write to it. For the main thread.
    """

    def __init__(self) -> None:
        self.told = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._tell) for number in _STOPPING}
        self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._descriptor)
        _restore(self._before)

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


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
