"""Reads the energy intervals of one row of a report, for `gpuledger explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from gpuledger.ledger.report.explain_intervals import Interval, OtherShare
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.segments import PriceSegment, SegmentPrices
from gpuledger.ledger.store.history import History
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED

# In the order of an index.
_HOURS = """
SELECT hours.number, uuid, method, quarter, idle, unattributed, unobserved, party, millijoules
    FROM hours LEFT JOIN hour_shares USING (number) WHERE quarter >= ? AND quarter < ? AND {}
    ORDER BY quarter, uuid, life, method, residents
"""
# With +, an hour's few shares are searched for own parties, not the other way around.
_OF_PARTIES = """EXISTS (
    SELECT 1 FROM hour_shares AS own WHERE own.number = hours.number AND +own.party IN own_parties)"""
_ACCOUNTS = (IDLE, UNATTRIBUTED, UNOBSERVED)
_CACHED = 4096


class _Share(NamedTuple):
    """Who has a share of energy."""

    is_own: bool
    name: str
    instance: str


def device_place(history: History, uuid: str) -> tuple[str, str]:
    """Index and uuid of a Device's Gpu as one text, and `GI_CI` of an Instance."""
    device = history.devices.get(uuid)
    if device is None:
        return uuid, ""
    return f"{device.gpu.index} {device.gpu.uuid}", device.instance


class EnergyIntervalReader:
    """Reads the intervals in which the target had a share, segment by segment."""

    def __init__(self, history: History, account: str, is_own: Callable[[Party], bool]) -> None:
        """`account` is empty for an owner."""
        self._history, self._account = history, account
        self._account_place = _ACCOUNTS.index(account) if account in _ACCOUNTS else None
        self._place = lru_cache(None)(lambda uuid: device_place(history, uuid)[0])

        def share(party: Party) -> _Share:
            return _Share(is_own(party), party_name(party), device_place(history, party.device)[1])

        # The caches do not refer to the reader, so that it is freed when its user is done.
        self._session = lru_cache(_CACHED)(lambda number: share(history.session(number)))
        self._party = lru_cache(_CACHED)(lambda number: share(history.party(number)))

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
        place = self._account_place
        for uuid, method, begins, ends, *accounts, _, numbers in self._history.spans(
            segment.since, segment.until
        ):
            shares = [(self._session(number), millijoules) for number, millijoules in numbers.items()]
            if any(share.is_own for share, _ in shares) if place is None else accounts[place]:
                yield self._interval(uuid, method, (begins, ends), accounts, shares, prices)

    def _folded(self, segment: PriceSegment, prices: SegmentPrices | None) -> Iterator[Interval]:
        party_share, cell_end = self._party, self._history.cell_end
        query = _HOURS.format(f"{self._account} > 0" if self._account else _OF_PARTIES)
        found = self._history.connection.execute(query, (segment.since, segment.until))
        for (_, uuid, method, quarter, *accounts), rows in groupby(found, key=itemgetter(slice(7))):
            shares = [(party_share(row[7]), row[8]) for row in rows if row[7] is not None]
            times = (float(quarter * QUARTER), float(cell_end(quarter) * QUARTER))
            yield self._interval(uuid, method, times, accounts, shares, prices, exact=False)

    def _interval(
        self,
        uuid: str,
        method: str,
        times: tuple[float, float],
        accounts: Sequence[int],
        shares: Iterable[tuple[_Share, int]],
        prices: SegmentPrices | None,
        *,
        exact: bool = True,
    ) -> Interval:
        idle, unattributed, unobserved = accounts
        own = 0 if self._account_place is None else accounts[self._account_place]
        # Unobserved energy is part of no bound of a row.
        everything = idle + unattributed + (unobserved if self._account == UNOBSERVED else 0)
        others: dict[str, int] = {}
        instances = set()
        for (is_own, name, instance), millijoules in shares:
            everything += millijoules
            if is_own:
                own += millijoules
                instances.add(instance)
            else:
                others[name] = others.get(name, 0) + millijoules
        return Interval(
            *times,
            self._place(uuid),
            ", ".join(sorted(instances - {""})) if instances else "",
            self._account or method,
            own,
            everything,
            idle,
            unattributed,
            tuple([OtherShare(*other) for other in sorted(others.items())]),
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
