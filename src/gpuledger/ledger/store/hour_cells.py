"""The hours into which history is folded: full hours of the ledger's time zone."""

from __future__ import annotations

import json
from datetime import tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from gpuledger.host.time_zone import machine_time_zone, named_time_zone
from gpuledger.ledger.store.schema import EARLIER_ZONES, TIME_FROM, ZONE, meta_value
from gpuledger.ledger.watched_time import QUARTERS_PER_HOUR
from gpuledger.ledger.zone_hours import hour_begins, hour_ends

if TYPE_CHECKING:
    from sqlite3 import Connection


class CellBounds(Protocol):
    """The cells into which history is folded."""

    def begins(self, quarter: int) -> int:
        """The first quarter of the cell."""

    def ends(self, quarter: int) -> int:
        """The quarter after the cell."""


class HourCells:
    """The hour of each quarter. Raises sqlite3.Error.

    Energy from before the time books is cut at hours of unix time, and folded into these. A time zone counts
    from its change on: the hour in which it changes is cut there.
    """

    def __init__(self, connection: Connection, zone: tzinfo) -> None:
        time_from = meta_value(connection, TIME_FROM)
        # The first quarter of each zone, in order; None is unix time.
        self._zones: list[tuple[int, tzinfo | None]] = [(0, None)]
        if time_from is not None:
            begins = int(str(time_from))
            for until, name in json.loads(str(meta_value(connection, EARLIER_ZONES) or "[]")):
                if until > begins:
                    self._zones.append((begins, _zone(name)))
                    begins = until
            self._zones.append((begins, zone))

    def begins(self, quarter: int) -> int:
        """The first quarter of the hour."""
        return self._cell(quarter)[0]

    def ends(self, quarter: int) -> int:
        """The quarter after the hour."""
        return self._cell(quarter)[1]

    def _cell(self, quarter: int) -> tuple[int, int]:
        place = max(place for place, (first, _) in enumerate(self._zones) if first <= quarter or not place)
        first, zone = self._zones[place]
        if zone is None:
            begins = quarter - quarter % QUARTERS_PER_HOUR
            ends = begins + QUARTERS_PER_HOUR
        else:
            begins, ends = max(hour_begins(quarter, zone), first), hour_ends(quarter, zone)
        following = self._zones[place + 1 :]
        return begins, min(ends, following[0][0]) if following else ends


def stored_hour_cells(connection: Connection) -> HourCells:
    """The hours of a ledger file, by the time zone stored in it. Raises sqlite3.Error."""
    return HourCells(connection, _zone(str(meta_value(connection, ZONE) or "")))


def update_zone(connection: Connection, name: str, quarter: int) -> None:
    """Store the name of the time zone if it has changed; the new one counts from this quarter on."""
    before = meta_value(connection, ZONE)
    if before == name:
        return
    if before is not None:
        earlier = json.loads(str(meta_value(connection, EARLIER_ZONES) or "[]"))
        text = json.dumps([*earlier, [quarter, before]])
        connection.execute("REPLACE INTO meta VALUES (?, ?)", (EARLIER_ZONES, text))
    connection.execute("REPLACE INTO meta VALUES (?, ?)", (ZONE, name))


@lru_cache(8)
def _zone(name: str) -> tzinfo:
    """An earlier time zone; the machine's if its database does not have that name."""
    try:
        return named_time_zone(name)
    except ValueError:
        return machine_time_zone()
