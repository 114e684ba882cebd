"""SIGINT and SIGTERM as a request to finish, for commands without an event loop."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Any, Self

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Inside `with`, the first signal asks to stop; the second acts as it did before.

    A threading.Event would not do: a handler that sets it while the same thread waits for it can lock up.
    """

    def __init__(self) -> None:
        self.told = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._hears, self._tells = os.pipe()
        self._before = {number: signal.signal(number, self._tell) for number in _STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        os.close(self._hears)
        os.close(self._tells)

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until asked to stop; whether that was asked."""
        select.select([self._hears], [], [], max(0.0, seconds))
        return self.told

    def _tell(self, _number: int, _frame: FrameType | None) -> None:
        self.told = True
        # A driver that hangs must not keep the program from ending when asked twice.
        self._restore()
        os.write(self._tells, b"!")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
