"""Asks a feed again and again, beside the screen: a slow node must not hold up a key."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.feed import Feed
from gpuledger.terminal.picture import Picture, read_picture

# Seconds between asks of a node that does not answer.
_SLOWEST = 5.0


class Watcher:
    """Calls `shows` with each picture, and `misses` with why there is none; both from its own thread."""

    def __init__(
        self,
        feed: Feed,
        interval: float,
        shows: Callable[[Picture], object],
        misses: Callable[[str], object],
    ) -> None:
        """`interval` is seconds between two asks."""
        self._feed, self._interval = feed, interval
        self._shows, self._misses = shows, misses
        self._ended = Event()
        self._woken = Event()
        # A daemon: an ask that waits for its time to run out must not keep the user waiting.
        self._thread = Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Ask the first time at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. An ask under way is not waited for."""
        self._ended.set()
        self._woken.set()

    def ask(self) -> None:
        """Do not wait for the next time."""
        self._woken.set()

    def _run(self) -> None:
        delay = self._interval
        while not self._ended.is_set():
            try:
                picture = read_picture(self._feed.snapshot())
            except GpuledgerError as error:
                delay = max(self._interval, min(_SLOWEST, delay * 1.5))
                if not self._ended.is_set():
                    self._misses(str(error))
            else:
                delay = self._interval
                if not self._ended.is_set():
                    self._shows(picture)
            self._woken.wait(delay)
            self._woken.clear()
