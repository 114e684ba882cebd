"""SIGINT and SIGTERM as a request to stop, for commands without an event loop; waits that can be ended."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType
from typing import Any, Self

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_ROOM = 4096


class WakePipe:
    """Wakes a thread that waits in `select` for this object.

    A pipe, not a threading.Event: a signal handler can interrupt a wait that holds the lock of an Event.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor that is readable after `wake`."""
        return self._reader

    def wake(self) -> None:
        """End the running or next wait. Callable from any thread and from a signal handler."""
        # A full pipe already holds wake-ups that are not handled yet.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def drain(self) -> None:
        """Forget the wake-ups so far."""
        with suppress(BlockingIOError):
            os.read(self._reader, _ROOM)


class SignalPipe(WakePipe):
    """Inside `with`, signals and calls of `wake` end a wait; signals do not end the process.

    Used in the main thread.
    """

    requested = False

    def __enter__(self) -> Self:
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._handle) for number in _STOPPING
        }
        self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._descriptor)
        self._restore()

    def wait(self, seconds: float | None) -> bool:
        """Wait for `wake`, a signal or the timeout; returns whether a signal has requested a stop."""
        if not self.requested:
            select.select([self], [], [], None if seconds is None else max(0.0, seconds))
        self.drain()
        return self.requested

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class StopRequest(SignalPipe):
    """Inside `with`, the first signal requests a stop; the second has its original effect."""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        super()._handle(number, frame)
        # A second signal must end the program even when a driver call hangs.
        self._restore()
