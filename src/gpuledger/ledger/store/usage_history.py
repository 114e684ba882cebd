"""Reads what owners used from a ledger file, for receipts, the API and fleets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpuledger.ledger.report.grouping import Grouping, Key
from gpuledger.ledger.report.party import Party, party_of
from gpuledger.ledger.report.usage_rows import MOST_BARS, HostUsage, StoredCell, UsageRow, UsageSums
from gpuledger.ledger.store.schema import USAGE_FROM, meta_value
from gpuledger.ledger.store.usage_tables import (
    COLUMNS,
    cell_from_row,
    host_periods_from_rows,
    owner_from_text,
)
from gpuledger.ledger.usage.host_usage import HostPeriod
from gpuledger.ledger.usage.usage_cell import larger
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.workload import Workload

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

_CELL_COLUMNS: Final = ", ".join(f"cell.{name}" for name in COLUMNS)
_CELLS: Final = " UNION ALL ".join(
    f"SELECT quarter, period, {is_folded} AS is_folded, device, owner, {_CELL_COLUMNS}"
    f" FROM {table} AS cell JOIN usage_periods ON number = period"
    " WHERE quarter >= :since AND quarter < :until"
    for table, is_folded in (("usage_hours", 1), ("usage_quarters", 0))
)
_ORDERED: Final = f"{_CELLS} ORDER BY quarter, is_folded"
_HOSTS: Final = "SELECT * FROM host_periods WHERE ends >= ? AND begins < ? ORDER BY begins, number"

IsOwn = Callable[[Party], bool]


class _Place(NamedTuple):
    """The key of a row, and the Device."""

    key: Key
    device: str


def _everyone(_: Party) -> bool:
    return True


def usage_from(history: History) -> int | None:
    """The first quarter from which the books keep usage by owner and Device; None if they have none yet."""
    found = meta_value(history.connection, USAGE_FROM)
    return None if found is None else int(found)


def read_usage(
    history: History,
    grouping: Grouping,
    since: int,
    until: int,
    is_own: IsOwn = _everyone,
    bars: int = MOST_BARS,
) -> list[UsageRow]:
    """What each key of the grouping did on each Device in the quarters [`since`, `until`), in order of keys.

    Only parties of which `is_own` is true count; they have no command. Raises sqlite3.Error.
    """

    @lru_cache(4096)
    def key_of(device: str, text: str) -> Key | None:
        owner = owner_from_text(text)
        if owner is None:
            return None
        party = party_of(device, owner)
        return grouping.key(party) if is_own(party) else None

    sums: dict[_Place, UsageSums] = defaultdict(UsageSums)
    within = {"since": since, "until": until}
    found = history.connection.execute(_ORDERED, within)
    for _, rows in groupby(found, key=itemgetter(0, 2)):
        cells: dict[_Place, list[StoredCell]] = defaultdict(list)
        for place, one in _stored_cells(rows, key_of):
            cells[place].append(one)
        for place, together in cells.items():
            sums[place].add(together)
    sizes = dict(history.connection.execute("SELECT uuid, bytes FROM device_memory"))
    return [
        one.row(place.key, place.device, sizes.get(place.device), bars=bars)
        for place, one in sorted(sums.items(), key=itemgetter(0))
    ]


def _stored_cells(
    rows: Iterator[tuple[Any, ...]], key_of: Callable[[str, str], Key | None]
) -> Iterator[tuple[_Place, StoredCell]]:
    for quarter, _, is_folded, device, owner, *columns in rows:
        key = key_of(device, owner)
        if key is not None:
            yield _Place(key, device), StoredCell(cell_from_row(quarter, columns), bool(is_folded))


def read_host_usage(
    history: History, grouping: Grouping, since: int, until: int, is_own: IsOwn = _everyone
) -> list[HostUsage]:
    """What the cgroup of each owner used on the node, of owners that were there in these quarters.

    One entry for each owner; several can have the same key. Raises sqlite3.Error.
    """
    rows = history.connection.execute(_HOSTS, (since * QUARTER, until * QUARTER))
    found: dict[Party, list[HostPeriod]] = {}
    for period in host_periods_from_rows(rows):
        found.setdefault(_node_party(period.owner), []).append(period)
    return [_host_usage(grouping.key(party), periods) for party, periods in found.items() if is_own(party)]


def _node_party(owner: Workload) -> Party:
    """The party of an owner on no Device in particular."""
    return party_of("", owner)


def _host_usage(key: Key, periods: list[HostPeriod]) -> HostUsage:
    last = periods[-1]
    known = [cpu for period in periods if (cpu := period.total_cpu) is not None]
    peak: int | None = None
    for period in periods:
        peak = larger(peak, period.memory_peak)
    return HostUsage(
        key,
        min(period.begins for period in periods),
        max(period.ends for period in periods),
        sum(known) if known else None,
        peak,
        last.memory_limit,
        last.cpus,
        last.is_limited,
    )
