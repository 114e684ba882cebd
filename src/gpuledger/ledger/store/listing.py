"""Lists Sessions from the ledger, page by page, in an order that does not change while they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gpuledger.ledger.owners import user_of
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_from_row
from gpuledger.model.devices import Device
from gpuledger.model.session import SessionRow

if TYPE_CHECKING:
    from sqlite3 import Connection

# First sight and number of a session: the sort key, which never changes.
Position = tuple[float, int]
FIRST_POSITION: Position = (-inf, -1)

# As in `presence`: the three parts are disjoint.
_ENDED = (
    "ended IS NOT NULL AND begun >= :since - 86400 AND begun <= :until AND latest >= :since",
    "ended IS NOT NULL AND latest - begun > 86400 AND begun < :since - 86400 AND latest >= :since",
)
_OPEN = "ended IS NULL AND begun <= :until AND latest >= :since"


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Selects sessions alive between `since` and `until` (unix seconds), in order, behind `after`.

    None selects all; `gpu` is the index or the uuid of a Gpu; an empty name selects sessions without one.
    """

    since: float
    until: float
    gpu: str | None = None
    namespace: str | None = None
    pod: str | None = None
    user: str | None = None
    open: bool | None = None
    after: Position = FIRST_POSITION

    def matches(self, row: SessionRow) -> bool:
        """Return whether the query selects an open session."""
        gpu, owner = row.process.device.gpu, row.process.workload
        return (
            self.open is not False
            and row.first_seen <= self.until
            and row.last_seen >= self.since
            and (row.first_seen, row.number) > self.after
            and self.gpu in (None, gpu.uuid, str(gpu.index))
            and self.namespace in (None, owner.namespace)
            and self.pod in (None, owner.pod)
            and self.user in (None, user_of(owner))
        )


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session. `ended` is unix seconds, None while it runs.

    `exit_seen` is False if the end was inferred after a time without observation.
    """

    row: SessionRow
    ended: float | None = None
    exit_seen: bool = False

    @property
    def position(self) -> Position:
        """The session's sort key."""
        return (self.row.first_seen, self.row.number)


def query_sessions(
    connection: Connection, devices: Mapping[str, Device], query: SessionQuery, limit: int
) -> Iterator[ListedSession]:
    """The first `limit` sessions of a query, ordered by first sight. Raises sqlite3.Error."""
    conditions, values = _conditions(query)
    times = [*(() if query.open else _ENDED), *(() if query.open is False else (_OPEN,))]
    statement = " UNION ALL ".join(
        f"SELECT * FROM sessions JOIN usage USING (number) WHERE {' AND '.join((time, *conditions))}"
        for time in times
    )
    values |= {"limit": limit}
    for row in connection.execute(f"{statement} ORDER BY first_seen, number LIMIT :limit", values):
        ended, exit_seen = row[SESSION_COLUMNS + 1 : SESSION_COLUMNS + 3]
        yield ListedSession(session_from_row(row, devices).row(), ended, bool(exit_seen))


def _conditions(query: SessionQuery) -> tuple[list[str], dict[str, object]]:
    first, number = query.after
    values: dict[str, object] = {"since": query.since, "until": query.until}
    found = []
    if query.after != FIRST_POSITION:
        found.append("(first_seen, sessions.number) > (:first, :number)")
        values |= {"first": first, "number": number}
    if query.gpu is not None:
        found.append("(gpu = :gpu OR CAST(gpu_index AS TEXT) = :gpu)")
        values["gpu"] = query.gpu
    # The same rule as `user_of`.
    user = "CASE owner_kind WHEN 'pod' THEN '' ELSE owner_user END"
    names = (("namespace", query.namespace), ("pod", query.pod), (user, query.user))
    for place, (column, name) in enumerate(names):
        if name is not None:
            found.append(f"{column} = :name{place}")
            values[f"name{place}"] = name
    return found, values
