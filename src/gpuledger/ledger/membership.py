"""Which processes of a crowded Device are told one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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

    def post(
        self, snapshot: Snapshot, present: Mapping[str, Collection[ProcessKey]]
    ) -> Mapping[str, frozenset[ProcessKey]]:
        """The processes beyond the cap, by Device uuid; Devices within it are not in the answer.

        `present` are those of the Snapshot before: while a Device is within the cap, all of them are told.
        """
        untold: dict[str, frozenset[ProcessKey]] = {}
        crowded: dict[str, frozenset[ProcessKey]] = {}
        for reading in snapshot.holders:
            uuid = reading.device.uuid
            if reading.processes is None:
                if uuid in self._told:
                    crowded[uuid] = self._told[uuid]
            elif len(reading.processes) > self._most:
                before = self._told.get(uuid) or frozenset(present.get(uuid, ()))
                crowded[uuid] = self._choose(reading.processes, before)
                untold[uuid] = frozenset(process.key for process in reading.processes) - crowded[uuid]
        self._told = crowded
        return untold

    def _choose(
        self, processes: tuple[GpuProcess, ...], before: frozenset[ProcessKey]
    ) -> frozenset[ProcessKey]:
        keys = {process.key: process for process in processes}
        staying = sorted((keys[key] for key in before if key in keys), key=_rank)
        waiting = sorted((process for key, process in keys.items() if key not in before), key=_rank)
        return frozenset(process.key for process in (staying + waiting)[: self._most])


def _rank(process: GpuProcess) -> tuple[bool, float, float, int]:
    # What only draws comes last: the process and session dialects do not even tell it.
    return (not process.computes, -(process.memory or 0), -(process.usage.sm or 0.0), process.pid)
