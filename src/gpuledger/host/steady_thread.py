"""Threads that go on after memory was short."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from time import sleep

log = logging.getLogger("gpuledger.threads")

# Seconds. Memory that is short is short for longer.
PAUSE = 1.0


def keep_running(run: Callable[[], None], is_stopping: Callable[[], bool]) -> None:
    """Call `run` until it returns because `is_stopping`; again a second after a failed allocation.

    Waiting, reading a clock and handling an error need memory, too: no thread can handle each such failure
    itself, and a program without one of its threads looks alive and reads nothing.
    """
    while not is_stopping():
        try:
            run()
        except (MemoryError, RuntimeError, SystemError):
            # The last two come from Python's C code, as "can't allocate lock".
            with suppress(MemoryError, RuntimeError, SystemError):
                log.exception("a thread begins again")
            sleep(PAUSE)
