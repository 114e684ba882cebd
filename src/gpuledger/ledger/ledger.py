"""Turns Snapshots into the Ledger's state."""

from __future__ import annotations

from gpuledger.ledger.membership import Membership
from gpuledger.ledger.sessions import OpenSessions
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Snapshot


class Ledger:
    """Posts one Snapshot at a time; used by the tick thread alone. Its state is an immutable value."""

    def __init__(self, settings: LedgerSettings) -> None:
        self.sessions = OpenSessions()
        self._membership = Membership(settings.max_per_device)
        self._state = LedgerState()

    @property
    def state(self) -> LedgerState:
        """The state after the last posting."""
        return self._state

    def post(self, snapshot: Snapshot) -> LedgerState:
        """Book one Snapshot and answer the state after it."""
        untold = self._membership.post(snapshot, self.sessions.by_device)
        self.sessions.post(snapshot)
        compute, graphics = self.sessions.counts(snapshot)
        xids, times = self._state.xids, self._state.xid_times
        if snapshot.xids:
            xids, times = dict(xids), dict(times)
            for event in snapshot.xids:
                key = (event.gpu.uuid, event.xid)
                xids[key] = xids.get(key, 0) + 1
                times[key] = max(times.get(key, 0.0), event.at)
        self._state = LedgerState(
            compute_sessions=compute,
            graphics_sessions=graphics,
            untold=untold,
            xids=xids,
            xid_times=times,
            invalid=self._state.invalid + snapshot.invalid,
        )
        return self._state
