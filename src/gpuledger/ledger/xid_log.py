"""The last Xids of each Gpu, with the process that was alone on the device."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from gpuledger.ledger.sessions import OpenSession, Sessions
from gpuledger.model.session import XidRow
from gpuledger.model.snapshot import Snapshot, XidEvent

# Seconds: equal Xids that follow each other faster are one row.
_TOGETHER: Final = 60.0
# Rows of each Gpu and Xid. A flood of one Xid does not displace the others.
KEPT_ROWS: Final = 50


class XidLog:
    """Adds the Xids of each Snapshot; `rows` are the kept ones, oldest first. Used by the tick thread.

    `changed` are the rows that are new or have grown since `take_changed`, and the number of the Session of
    their process.
    """

    def __init__(self) -> None:
        self.rows: tuple[XidRow, ...] = ()
        self._next = 1
        self._changed: dict[int, tuple[XidRow, int | None]] = {}
        self._sessions: dict[int, int | None] = {}

    def resume(self, stored: Iterable[tuple[XidRow, int | None]], next_number: int) -> None:
        """Continue the rows that an earlier run stored; number new ones from `next_number`."""
        found = dict(stored)
        self._sessions = {row.number: session for row, session in found.items()}
        self.rows, self._next = tuple(found), next_number

    def post(self, snapshot: Snapshot, sessions: Sessions) -> None:
        """Add the Xids of a Snapshot, after the posting of its sessions."""
        for event in sorted(snapshot.xids, key=lambda event: event.at):
            self._add(event, sessions)

    def take_changed(self) -> dict[int, tuple[XidRow, int | None]]:
        """Return the rows to store, by number, and forget that they have changed."""
        changed, self._changed = self._changed, {}
        return changed

    def mark_all_changed(self) -> None:
        """Return all rows with the next `take_changed`: the file is new, and has no old sessions."""
        self._changed = {row.number: (row, self._sessions.get(row.number)) for row in self.rows}

    def _add(self, event: XidEvent, sessions: Sessions) -> None:
        instance = "" if event.gi is None or event.ci is None else f"{event.gi}_{event.ci}"
        session = _only_session(event.gpu.uuid, instance, sessions)
        number = None if session is None else session.number
        key = (event.gpu.uuid, event.xid)
        # By number, not time: the clock can be set back.
        equal = sorted(row for row in self.rows if (row.uuid, row.xid) == key)
        last = equal[-1] if equal else None
        if (
            last is not None
            and (last.instance, self._sessions.get(last.number)) == (instance, number)
            and last.last <= event.at <= last.last + _TOGETHER
        ):
            row = last._replace(last=event.at, times=last.times + 1)
            gone = {last.number}
        else:
            process = None if session is None else session.process
            row = XidRow(
                self._next,
                event.gpu.uuid,
                instance,
                event.xid,
                event.at,
                event.at,
                pid=None if process is None else process.pid,
                command="" if process is None else process.command,
            )
            self._next += 1
            gone = {old.number for old in equal[: max(len(equal) + 1 - KEPT_ROWS, 0)]}
        self.rows = (*(old for old in self.rows if old.number not in gone), row)
        for old in gone:
            self._sessions.pop(old, None)
        self._sessions[row.number] = number
        self._changed[row.number] = (row, number)


def _only_session(uuid: str, instance: str, sessions: Sessions) -> OpenSession | None:
    """The Session of the only process that is on the device, or was until this posting; None if unknown."""
    found = {}
    for one in chain(sessions.open(), sessions.ended):
        device = one.process.device
        if device.gpu.uuid == uuid and instance in ("", device.instance):
            found[one.process.pid] = one
    return next(iter(found.values())) if len(found) == 1 else None
