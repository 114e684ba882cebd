"""SIGINT and SIGTERM as a request to stop, for commands without an event loop."""

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
    """Inside `with`, the first signal requests a stop; the second has its original effect.

    A pipe, not a threading.Event: setting an Event in a handler can deadlock with a wait of the same thread.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        self._before = {number: signal.signal(number, self._handle) for number in _STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds` or until a stop is requested; returns whether it was."""
        select.select([self._reader], [], [], max(0.0, seconds))
        return self.requested

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        # A second signal must end the program even when a driver call hangs.
        _restore(self._before)
        os.write(self._writer, b"!")


class WakePipe:
    """Inside `with`, signals and calls of `wake` end a wait; signals do not end the process.

    A pipe, because a signal handler can interrupt a wait that holds a lock, and because other threads can
    write to it. Used in the main thread.
    """

    def __init__(self) -> None:
        self.requested = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _STOPPING}
        self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._descriptor)
        _restore(self._before)

    def wake(self) -> None:
        """End the running or next wait. Callable from any thread, also after `with`."""
        # A full pipe already holds wake-ups that are not handled yet.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def wait(self, seconds: float | None) -> bool:
        """Wait for `wake`, a signal or the timeout; returns whether a signal has requested a stop."""
        if not self.requested:
            select.select([self._reader], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._reader, _ROOM)
        return self.requested

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
