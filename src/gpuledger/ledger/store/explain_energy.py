"""Reads the energy intervals of one row of a report, for `gpuledger explain`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from gpuledger.ledger.report.explain import Interval, OtherShare
from gpuledger.ledger.report.grouping import Party
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.store.explain_target import ACCOUNT, ExplainTarget, Found
from gpuledger.ledger.store.history import History
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED

if TYPE_CHECKING:
    from sqlite3 import Cursor

_HOURS = """
SELECT hours.number, uuid, method, quarter, idle, unattributed, unobserved, party, millijoules
    FROM hours LEFT JOIN hour_shares USING (number) WHERE quarter >= ? AND quarter < ? AND {}
    ORDER BY quarter, uuid, life, method, residents
"""
_OF_PARTIES = "hours.number IN (SELECT number FROM hour_shares WHERE party IN wanted)"
_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED)


def rows_of(history: History, numbers: Iterable[int], query: str, *values: object) -> Cursor:
    """The rows of a query that refers to the numbers as the table `wanted`."""
    connection = history.connection
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (number INTEGER PRIMARY KEY)")
    connection.execute("DELETE FROM wanted")
    connection.executemany("INSERT INTO wanted VALUES (?)", [(number,) for number in numbers])
    return connection.execute(query, values)


def device_place(history: History, uuid: str) -> tuple[str, str]:
    """Index and uuid of a Device's Gpu as one text, and `GI_CI` of an Instance."""
    device = history.devices.get(uuid)
    if device is None:
        return uuid, ""
    return f"{device.gpu.index} {device.gpu.uuid}", device.instance


class EnergyIntervalReader:
    """Reads the intervals in which the target had a share, segment by segment."""

    def __init__(self, history: History, target: ExplainTarget, found: Found) -> None:
        self._history = history
        self._found = found
        self._account = target.key[0] if target.kind == ACCOUNT else ""

    def read(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[Interval]:
        """The intervals of a segment. `prices` is None if energy has no price."""
        if self._account and self._account not in _ACCOUNTS:
            return
        yield from self._folded(segment, prices)
        yield from self._detailed(segment, prices)

    def detailed(self, since: int, until: int) -> Iterator[Interval]:
        """The intervals of these quarters that are not folded."""
        return self._detailed(PriceSegment(0, since, until), None)

    def _detailed(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[Interval]:
        own_sessions = self._found.sessions
        for uuid, method, begins, ends, *own, numbers in self._history.spans(segment.since, segment.until):
            accounts = dict(zip(_ACCOUNTS, own, strict=True))
            if accounts[self._account] if self._account else not own_sessions.isdisjoint(numbers):
                shares = [
                    (self._history.session(number), number in own_sessions, millijoules)
                    for number, millijoules in numbers.items()
                ]
                yield self._interval(uuid, method, (begins, ends), accounts, shares, prices)

    def _folded(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[Interval]:
        condition = f"{self._account} > 0" if self._account else _OF_PARTIES
        parties, query = self._found.parties, _HOURS.format(condition)
        found = rows_of(self._history, parties, query, segment.since, segment.until).fetchall()
        for (_, uuid, method, quarter, *own), rows in groupby(found, key=lambda row: row[:7]):
            accounts = dict(zip(_ACCOUNTS, own, strict=True))
            shares = [
                (self._history.party(party), party in parties, millijoules)
                for *_, party, millijoules in rows
                if party is not None
            ]
            times = (float(quarter * QUARTER), float(self._history.cell_end(quarter) * QUARTER))
            yield self._interval(uuid, method, times, accounts, shares, prices, exact=False)

    def _interval(
        self,
        uuid: str,
        method: str,
        times: tuple[float, float],
        accounts: dict[str, int],
        shares: Iterable[tuple[Party, bool, int]],
        prices: SegmentPrices | None,
        *,
        exact: bool = True,
    ) -> Interval:
        # Unobserved energy is part of no bound of a row.
        own, everything = accounts.get(self._account, 0), accounts[IDLE] + accounts[UNATTRIBUTED]
        if self._account == UNOBSERVED:
            everything += own
        others: dict[str, int] = defaultdict(int)
        instances = set()
        for party, is_own, millijoules in shares:
            everything += millijoules
            if is_own:
                own += millijoules
                instances.add(device_place(self._history, party.device)[1])
            else:
                others[party_name(party)] += millijoules
        return Interval(
            *times,
            device_place(self._history, uuid)[0],
            ", ".join(sorted(instances - {""})),
            self._account or method,
            own,
            everything,
            accounts[IDLE],
            accounts[UNATTRIBUTED],
            tuple(OtherShare(*other) for other in sorted(others.items())),
            exact,
            None if prices is None else prices.energy_rate(uuid),
        )


def party_name(party: Party) -> str:
    """A short display name: the owner, else the command."""
    owner = party.owner
    if owner.pod:
        return f"{owner.namespace}/{owner.pod}"
    name = owner.job or owner.container or owner.unit or owner.user
    return f"{owner.kind} {name}" if name else party.command or "unknown"
