"""Base classes of owner indexes, which background threads keep up to date.

The tick reads only the last known value. A kubelet or a socket that hangs does not delay the tick. A failed
reading keeps the last good value and its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sized
from dataclasses import replace
from os import urandom
from threading import Condition, Thread
from typing import Generic, Protocol, TypeVar

from gpuledger.host.steady_thread import keep_running
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.workloads")

T = TypeVar("T", bound=Sized)

# The error of an index before its first reading.
NOT_READ = "not read yet"
# Seconds. Above the time limit of every request.
_LONGEST_READ = 60.0
_HANGS = f"a read has not returned for more than {_LONGEST_READ:g} s; check network mounts, and `dmesg`"
# Seconds. Failed readings are retried after one, two, four, ... periods, at most this.
_LONGEST_BACKOFF = 60.0
# Seconds between two readings at least: every unknown process requests a new reading.
_LEAST_GAP = 1.0


def is_tried(health: IndexHealth) -> bool:
    """Whether a first reading was attempted."""
    return health.success or health.error != NOT_READ


def internal_error(error: Exception) -> str:
    """The text of health for an unexpected exception; the log has the traceback."""
    return f"internal error in gpuledger, please report it: {type(error).__name__}: {error}"


class Jitter(Protocol):
    """Numbers that spread readings of many nodes, as those of random.Random."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between `a` and `b`."""


class SystemJitter:
    """As random.SystemRandom; `random` itself needs 0.1 MiB."""

    def uniform(self, a: float, b: float, /) -> float:
        """See `Jitter`."""
        return a + (b - a) * int.from_bytes(urandom(4)) / 0xFFFF_FFFF


class BackgroundIndex:
    """An owner index with its own thread: health, start and stop. Each type adds the access to its values.

    Subclasses implement `_run`, which waits for `_changed` and returns when `_stopping` is set.
    """

    def __init__(self, name: str, clock: Clock, random: Jitter | None) -> None:
        self.name = name
        self._clock = clock
        self._random = random or SystemJitter()
        self._health = IndexHealth(name, success=False, error=NOT_READ)
        self._failures = 0
        self._stopping = False
        self._changed = Condition()
        steps = (self._run, lambda: self._stopping)
        self._thread = Thread(target=keep_running, args=steps, name=f"map {name}", daemon=True)

    @property
    def health(self) -> IndexHealth:
        """The result of the last reading, and the time of the last successful one."""
        return self._health

    def start(self) -> None:
        """Start the background thread."""
        self._thread.start()

    def stop(self, patience: float = 2.0) -> None:
        """Stop the thread; abandon it if it hangs for `patience` seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._interrupt()
        if self._thread.is_alive():
            self._thread.join(patience)

    def nudge(self) -> None:
        """Request a new reading soon, because a process has no owner yet. Cheap: may be called every tick.

        Does nothing here: an index that receives each change needs no request.
        """

    def _interrupt(self) -> None:
        """Unblock the thread, if it waits for anything but `_changed`."""

    def _run(self) -> None:
        raise NotImplementedError

    def _succeeded(self, entries: int) -> None:
        self._health = IndexHealth(self.name, success=True, last_success=self._clock.unix(), entries=entries)

    def _failed(self, error: str) -> None:
        """Record a failed reading; the last value is kept."""
        self._failures += 1
        self._health = replace(self._health, success=False, error=error)


class PolledIndex(BackgroundIndex, Generic[T]):
    """An owner index that reads its whole value every `period` seconds in its thread.

    `read` raises GpuledgerError (or OSError) with one line that names the object and the remedy. `value` is
    replaced as a whole, so that a caller who keeps it has a consistent state. It is the same object while it
    does not change.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        empty: T,
        *,
        period: float,
        clock: Clock,
        random: Jitter | None = None,
    ) -> None:
        super().__init__(name, clock, random)
        self.value = empty
        self._read = read
        self._period = period
        self._nudged = False
        # When the running read began, by the clock's `elapsed`.
        self._reading_since: float | None = None

    @property
    def health(self) -> IndexHealth:
        """The result of the last reading, or that the current one hangs."""
        health, since = self._health, self._reading_since
        if since is None or self._clock.elapsed() - since <= _LONGEST_READ:
            return health
        return replace(health, success=False, error=_HANGS)

    def nudge(self) -> None:
        """Read again within a second."""
        if not self._nudged:
            with self._changed:
                self._nudged = True
                self._changed.notify_all()

    def refresh(self) -> bool:
        """Read now; returns whether it succeeded."""
        self._reading_since = self._clock.elapsed()
        try:
            value = self._read()
        except (GpuledgerError, OSError) as error:
            self._fail(str(error))
            return False
        except Exception as error:
            log.exception("cannot read %s", self.name)
            self._fail(internal_error(error))
            return False
        finally:
            self._reading_since = None
        if value != self.value:
            self.value = value
        if self._failures:
            log.info("%s is readable again", self.name)
        self._failures = 0
        self._succeeded(len(value))
        return True

    def _fail(self, error: str) -> None:
        # Log each cause once: a node without a kubelet must not fill its log.
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
        # After a failure, requests do not shorten the back-off.
        return self._stopping or (self._nudged and not self._failures)

    def _pause(self) -> float:
        pause = min(self._period * (1 << min(self._failures, 10)), max(_LONGEST_BACKOFF, self._period))
        return pause * self._random.uniform(0.9, 1.1)
