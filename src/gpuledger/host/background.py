"""Maps of owners that are kept up to date beside the tick: what each is, and how a polled one is kept.

The tick only ever reads the last known value. A kubelet or a socket that hangs costs the tick nothing, and a
failed reading keeps the last good value, its age told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from dataclasses import replace
from random import Random
from threading import Condition, Thread
from typing import Generic, Protocol, TypeVar

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.workloads")

T = TypeVar("T", bound=Sized)

# The error of a map that was not tried yet.
NOT_READ = "not read yet"
# A failing reading is tried again after the period, twice it, four times it, up to this.
_LONGEST_BACKOFF = 60.0
# Nudges come with every process not known yet: not more often than this is anybody asked.
_LEAST_GAP = 1.0


class OwnerIndex(Protocol):
    """What is the same of every map. Its value is read through its own type."""

    @property
    def health(self) -> IndexHealth:
        """How it stands now."""

    def start(self) -> None:
        """Begin to keep it up to date."""

    def stop(self, patience: float = 2.0) -> None:
        """End its thread; one that hangs is left behind after `patience` seconds."""

    def nudge(self) -> None:
        """Somebody is not in it yet: look again soon. Cheap, and harmless when called every tick."""


def is_tried(health: IndexHealth) -> bool:
    """Whether there was a first try, well or not."""
    return health.success or health.error != NOT_READ


def internal_error(error: Exception) -> str:
    """What health says of a map that failed by our own fault; the log has where."""
    return f"internal error in gpuledger, please report it: {type(error).__name__}: {error}"


class BackgroundIndex:
    """What every OwnerMap with a thread of its own has: its health, and how the thread begins and ends.

    `_run` is what the thread does: it waits for `_changed`, and returns when `_stopping` is set.
    """

    def __init__(self, name: str, clock: Clock, random: Random | None) -> None:
        self.name = name
        self._clock = clock
        self._random = random or Random()
        self._health = IndexHealth(name, success=False, error=NOT_READ)
        self._failures = 0
        self._stopping = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name=f"map {name}", daemon=True)

    @property
    def health(self) -> IndexHealth:
        """How the last try went, and since when the value is not certain any more."""
        return self._health

    def start(self) -> None:
        """Begin to keep it up to date."""
        self._thread.start()

    def stop(self, patience: float = 2.0) -> None:
        """End the thread; what hangs is left behind after `patience` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._let_go()
        if self._thread.is_alive():
            self._thread.join(patience)

    def _let_go(self) -> None:
        """End what the thread may be waiting for."""

    def _run(self) -> None:
        raise NotImplementedError

    def _succeeded(self, entries: int) -> None:
        self._health = IndexHealth(self.name, success=True, last_success=self._clock.unix(), entries=entries)

    def _failed(self, error: str) -> None:
        """What was known stays."""
        self._failures += 1
        self._health = replace(self._health, success=False, error=error)


class PolledIndex(BackgroundIndex, Generic[T]):
    """An OwnerMap whose whole value is read anew every `period` seconds, by a thread of its own.

    `read` raises GpuledgerError (or OSError) with one line that names the thing and the remedy. `value` is
    swapped whole, so that whoever holds it sees one moment.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        empty: T,
        *,
        period: float,
        clock: Clock,
        random: Random | None = None,
    ) -> None:
        super().__init__(name, clock, random)
        self.value = empty
        self._read = read
        self._period = period
        self._nudged = False

    def nudge(self) -> None:
        """Read again within a second."""
        if not self._nudged:
            with self._changed:
                self._nudged = True
                self._changed.notify_all()

    def refresh(self) -> bool:
        """Read once, now; answers whether it went well."""
        try:
            value = self._read()
        except (GpuledgerError, OSError) as error:
            self._fail(str(error))
            return False
        except Exception as error:
            log.exception("%s could not be read", self.name)
            self._fail(internal_error(error))
            return False
        self.value = value
        if self._failures:
            log.info("%s can be read again", self.name)
        self._failures = 0
        self._succeeded(len(value))
        return True

    def _fail(self, error: str) -> None:
        # Once per cause: a node without a kubelet must not fill its log.
        if error != self._health.error:
            log.warning("%s: %s", self.name, error)
        self._failed(error)

    def _run(self) -> None:
        while not self._stopping:
            self._nudged = False
            self.refresh()
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, min(_LEAST_GAP, self._period))
                self._changed.wait_for(self._is_due, self._pause())

    def _is_due(self) -> bool:
        # Who is failing is not asked more often because somebody is waiting.
        return self._stopping or (self._nudged and not self._failures)

    def _pause(self) -> float:
        pause = min(self._period * (1 << min(self._failures, 10)), max(_LONGEST_BACKOFF, self._period))
        return pause * self._random.uniform(0.9, 1.1)
