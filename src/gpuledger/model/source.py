"""Protocols of a source and of the clock and the host that it uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gpuledger.model.process import HostFacts
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot, SourceInfo


class Clock(Protocol):
    """A clock, passed as an argument so that tests can control time."""

    def unix(self) -> float:
        """Returns wall time in unix seconds; it can step."""

    def elapsed(self) -> float:
        """Returns monotonic seconds, not negative, that include suspend (CLOCK_BOOTTIME on a machine)."""


class Host(Protocol):
    """A machine that knows its processes."""

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """Returns facts for all `pids`, those of one tick; each has an entry.

        `unix` is the tick's wall time, used for processes seen for the first time. The host forgets other
        pids, which bounds its memory by the number of live processes.
        """

    def epoch(self) -> tuple[str, str]:
        """Returns the boot id and an id of the driver load; hardware counters restart when either changes.

        Each is an opaque text, empty if unknown. Every call reads them again and may read all of /proc, so
        call it after the driver has started, not at every tick.
        """


class Source(Protocol):
    """Reads a machine into Snapshots. Used by one thread."""

    @property
    def info(self) -> SourceInfo:
        """The name and versions of this source; available before the first read."""

    @property
    def has_local_pids(self) -> bool:
        """Whether its pids are those of this machine, so that this machine's owner indexes apply."""

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """Reads one tick; the Snapshot includes failures. Raises SourceUnavailable if nothing can be read."""

    def close(self) -> None:
        """Releases file descriptors and driver handles. Idempotent.

        A source of hardware can be read again and then reopens them.
        """
