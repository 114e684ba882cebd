"""Sessions out of the books, a page at a time, in an order that does not change while they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gpuledger.ledger.owners import user_of
from gpuledger.ledger.store.rows import SESSION_COLUMNS, session_of
from gpuledger.model.devices import Device
from gpuledger.model.session import SessionRow

if TYPE_CHECKING:
    from sqlite3 import Connection

# First sight and number of a session: what it is ordered by, and never changes.
Position = tuple[float, int]
FIRST: Position = (-inf, -1)

# As `presence` finds who was there; the three parts have no session in common.
_ENDED = (
    "ended IS NOT NULL AND begun >= :since - 86400 AND begun <= :until AND latest >= :since",
    "ended IS NOT NULL AND latest - begun > 86400 AND begun < :since - 86400 AND latest >= :since",
)
_OPEN = "ended IS NULL AND begun <= :until AND latest >= :since"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which sessions: those that were there at some time from `since` to `until` (unix seconds), and `after`
    this position. None asks for all; `gpu` is an index or the uuid of a Gpu; an empty name asks for
    those without one.
    """

    since: float
    until: float
    gpu: str | None = None
    namespace: str | None = None
    pod: str | None = None
    user: str | None = None
    open: bool | None = None
    after: Position = FIRST

    def has(self, row: SessionRow) -> bool:
        """Whether an open session is one of them."""
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
class Listed:
    """A session. `ended` is unix seconds, None while it runs; `exit_seen` is false where the end was inferred
    after a time in which nobody looked.
    """

    row: SessionRow
    ended: float | None = None
    exit_seen: bool = False

    @property
    def position(self) -> Position:
        """Where it stands."""
        return (self.row.first_seen, self.row.number)


def sessions_between(
    connection: Connection, devices: Mapping[str, Device], asked: Asked, limit: int
) -> Iterator[Listed]:
    """The first `limit` of them, ordered by first sight. Raises sqlite3.Error."""
    conditions, values = _conditions(asked)
    times = [*(() if asked.open else _ENDED), *(() if asked.open is False else (_OPEN,))]
    query = " UNION ALL ".join(
        f"SELECT * FROM sessions JOIN usage USING (number) WHERE {' AND '.join((time, *conditions))}"
        for time in times
    )
    values |= {"limit": limit}
    for row in connection.execute(f"{query} ORDER BY first_seen, number LIMIT :limit", values):
        ended, exit_seen = row[SESSION_COLUMNS + 1 : SESSION_COLUMNS + 3]
        yield Listed(session_of(row, devices).row(), ended, bool(exit_seen))


def _conditions(asked: Asked) -> tuple[list[str], dict[str, object]]:
    first, number = asked.after
    values: dict[str, object] = {"since": asked.since, "until": asked.until}
    found = []
    if asked.after != FIRST:
        found.append("(first_seen, sessions.number) > (:first, :number)")
        values |= {"first": first, "number": number}
    if asked.gpu is not None:
        found.append("(gpu = :gpu OR CAST(gpu_index AS TEXT) = :gpu)")
        values["gpu"] = asked.gpu
    # As `user_of` has it.
    user = "CASE owner_kind WHEN 'pod' THEN '' ELSE owner_user END"
    names = (("namespace", asked.namespace), ("pod", asked.pod), (user, asked.user))
    for place, (column, name) in enumerate(names):
        if name is not None:
            found.append(f"{column} = :name{place}")
            values[f"name{place}"] = name
    return found, values
