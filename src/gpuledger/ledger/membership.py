"""Which processes of a crowded Device are told one by one."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.snapshot import Snapshot


class Membership:
    """Keeps at most `most` told processes per Device.

    A place goes to the largest by memory, then SM share, and is kept until exit: a series that came and
    went with every memory change would be worth less than none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._told: dict[str, frozenset[ProcessKey]] = {}

    def post(self, snapshot: Snapshot) -> Mapping[str, frozenset[ProcessKey]]:
        """The processes beyond the cap, by Device uuid; Devices within it are not in the answer."""
        untold: dict[str, frozenset[ProcessKey]] = {}
        crowded: dict[str, frozenset[ProcessKey]] = {}
        for reading in snapshot.holders:
            uuid = reading.device.uuid
            if reading.processes is None:
                if uuid in self._told:
                    crowded[uuid] = self._told[uuid]
            elif len(reading.processes) > self._most:
                crowded[uuid] = self._choose(reading.processes, self._told.get(uuid, frozenset()))
                untold[uuid] = frozenset(process.key for process in reading.processes) - crowded[uuid]
            elif len(reading.processes) * 2 > self._most:
                # Near the cap: remember who is told, so that a newcomer does not push anybody out.
                crowded[uuid] = frozenset(process.key for process in reading.processes)
        self._told = crowded
        return untold

    def _choose(
        self, processes: tuple[GpuProcess, ...], before: frozenset[ProcessKey]
    ) -> frozenset[ProcessKey]:
        keys = {process.key: process for process in processes}
        staying = [key for key in before if key in keys]
        waiting = sorted((process for key, process in keys.items() if key not in before), key=_rank)
        places = self._most - len(staying)
        return frozenset(staying).union(process.key for process in waiting[:places])


def _rank(process: GpuProcess) -> tuple[float, float, int]:
    return (-(process.memory or 0), -(process.usage.sm or 0.0), process.pid)
