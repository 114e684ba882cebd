"""Maximum errors of a fleet's rows: what Prometheus could not see, and the rows that it may belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil

from gpuledger.ledger.report.fleet.account_rises import AccountRises, CounterRises, Uncertainty
from gpuledger.ledger.report.fleet.rises import Rise
from gpuledger.ledger.report.fleet.scraped import Name
from gpuledger.ledger.report.grouping import Key

# The account and the key of a row.
RowName = tuple[str, Key]


@dataclass(slots=True)
class RowErrors:
    """The errors of one row, in the unit of its counters.

    `early`, `late` and `error` are parts of its bound. `uuids` are its Gpus, `present_at_start` and
    `present_at_end` those on which it was present when the period began and ended.
    """

    early: float = 0.0
    late: float = 0.0
    error: float = 0.0
    uuids: set[str] = field(default_factory=set)
    present_at_start: set[str] = field(default_factory=set)
    present_at_end: set[str] = field(default_factory=set)

    def add(self, name: Name, gained: Rise, counters: CounterRises) -> None:
        """Add the errors of one counter."""
        early, late = counters.beyond(name)
        self.error += gained.error
        self.early += early
        self.late += late

    def bound(self, uncertainty: Uncertainty, per_unit: int) -> int:
        """The maximum error in either direction, in parts of the unit."""
        more = self.late + sum(uncertainty.tails.get(uuid, 0.0) for uuid in self.present_at_end)
        more += sum(
            uncertainty.lost.get(uuid, 0.0) + uncertainty.unseen.get(uuid, 0.0) for uuid in self.uuids
        )
        early = self.early + sum(uncertainty.heads.get(uuid, 0.0) for uuid in self.present_at_start)
        return ceil(per_unit * (self.error + max(early, more)))


def row_bounds(
    rises: AccountRises, row_of: Callable[[Name], RowName], per_unit: int
) -> Mapping[RowName, int]:
    """The bound of each row. `row_of` returns the row of an account's counter."""
    rows: dict[RowName, RowErrors] = defaultdict(RowErrors)
    for name, gained in rises.accounts.rises.total.items():
        row, uuid = rows[row_of(name)], name[0]
        row.add(name, gained, rises.accounts)
        row.uuids.add(uuid)
        if name in (rises.began or ()):
            row.present_at_start.add(uuid)
        if name in rises.alive:
            row.present_at_end.add(uuid)
    return {row: errors.bound(rises.uncertainty, per_unit) for row, errors in rows.items()}


def total_bound(rises: AccountRises, per_unit: int) -> int:
    """The bound of all accounts as one row: shifts between accounts do not affect their sum."""
    row = RowErrors()
    for name, gained in rises.accounts.rises.total.items():
        row.add(name, gained, rises.accounts)
    row.uuids |= {uuid for (uuid,) in rises.totals.rises.total}
    row.present_at_start |= row.uuids
    row.present_at_end |= row.uuids
    return row.bound(rises.uncertainty, per_unit)
