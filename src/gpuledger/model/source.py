"""What a source, and the clock and host that it is given, must do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gpuledger.model.process import HostFacts
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot, SourceInfo


class Clock(Protocol):
    """Time as an argument, so that tests own it."""

    def unix(self) -> float:
        """Wall time in unix seconds; it can step."""

    def elapsed(self) -> float:
        """Seconds that never step and go on through suspend (CLOCK_BOOTTIME on a real machine)."""


class Host(Protocol):
    """What a machine says of its pids."""

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """Facts for every pid of this tick, each asked pid with an entry.

        `unix` is the tick's wall time, for first sights. Pids not asked for are forgotten, which bounds
        the memory of a host by the processes that live.
        """

    def epoch(self) -> tuple[str, str]:
        """Boot id and load of the NVIDIA driver, which tell lives of its counters apart.

        Each is a word to compare, empty where it cannot be known. Looks anew whenever it is asked, and may
        read all of /proc for it: to be asked after the driver was started, not every tick.
        """


class Source(Protocol):
    """A way to turn a machine into a Snapshot. Used by one thread."""

    @property
    def info(self) -> SourceInfo:
        """Which source this is; known before the first read."""

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """One tick. What fails is in the Snapshot; raises SourceUnavailable when nothing can be read."""

    def close(self) -> None:
        """Let go of the machine (file descriptors, driver handles). Idempotent.

        What reads hardware may be read again, and takes hold of it anew.
        """
