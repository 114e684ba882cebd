"""Pids of which nothing can be asked: they are known from when they were first seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuledger.model.process import HostFacts, Start


def first_sight(unix: float, missing: str) -> HostFacts:
    """Facts of a pid that is not known: its start is the tick (unix seconds) that saw it first."""
    return HostFacts(start=Start(boot_id="", ticks=None, unix=unix, seen=unix), missing=missing)


class NoHost:
    """The Host of sources whose pids belong to another machine (ssh, replay): nothing is looked up here.

    A pid that comes back after a tick without it counts as a new process; one that is reused between two
    ticks cannot be told from the old one.
    """

    def __init__(self, missing: str = "remote") -> None:
        self._missing = missing
        self._known: dict[int, HostFacts] = {}

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        """First sight of each pid, the same for as long as the pid is asked for without a break."""
        known = self._known
        self._known = {pid: known.get(pid) or first_sight(unix, self._missing) for pid in pids}
        return self._known

    def epoch(self) -> tuple[str, str]:
        """Nothing is known of another machine's boots and drivers."""
        return "", ""
