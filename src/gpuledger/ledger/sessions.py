"""Sessions in memory: who came, who is still here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.session import Session
from gpuledger.model.snapshot import Snapshot


class OpenSessions:
    """The Sessions that have not ended, one per `(device, pid, start)`.

    A Session ends when its Device's list was read and the process is not in it, or when the Device is gone
    from a whole Device list (a MIG instance taken apart). A list that failed ends nothing.
    """

    def __init__(self) -> None:
        self._open: dict[str, dict[ProcessKey, Session]] = {}

    def post(self, snapshot: Snapshot) -> None:
        """Open, carry on and end Sessions by one Snapshot."""
        seen: dict[str, dict[ProcessKey, Session]] = {}
        for reading in snapshot.holders:
            uuid = reading.device.uuid
            before = self._open.get(uuid, {})
            if reading.processes is None:
                seen[uuid] = before
            else:
                seen[uuid] = {
                    process.key: _carried(before.get(process.key), process, snapshot.unix)
                    for process in reading.processes
                }
        if snapshot.devices_failed:
            seen = self._open | seen
        self._open = seen

    @property
    def by_device(self) -> Mapping[str, Mapping[ProcessKey, Session]]:
        """Open Sessions by Device uuid."""
        return self._open

    def sessions(self) -> list[Session]:
        """Every open Session."""
        return [session for sessions in self._open.values() for session in sessions.values()]

    def counts(self, snapshot: Snapshot) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Open Sessions per Device uuid: those that compute, those that only draw.

        Devices whose list failed in `snapshot` have no count: what is not known is not told.
        """
        compute: Counter[str] = Counter()
        graphics: Counter[str] = Counter()
        for reading in snapshot.holders:
            if reading.processes is None:
                continue
            uuid = reading.device.uuid
            total = len(self._open[uuid])
            compute[uuid] = sum(session.process.computes for session in self._open[uuid].values())
            graphics[uuid] = total - compute[uuid]
        return compute, graphics


def _carried(session: Session | None, process: GpuProcess, unix: float) -> Session:
    if session is None:
        return Session(process, first_seen=unix, last_seen=unix, peak_memory=process.memory)
    peak = max(session.peak_memory or 0, process.memory or 0)
    known = session.peak_memory is not None or process.memory is not None
    return Session(process, session.first_seen, unix, peak if known else None)
