"""One column of a report: what it shows, in which unit, and how its numbers are rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TypedDict

from gpuledger.ledger.report.money import round_decimal, round_up
from gpuledger.ledger.report.usage_report import ReportLine


class ColumnOptions(TypedDict, total=False):
    """Fields of a ReportColumn that differ between columns of one kind."""

    always: bool
    people: bool
    scraped: bool
    metered: bool
    additive: bool
    has_total: bool
    unclear: bool
    upper_bound: bool


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """`name` is used in CSV and JSON; `digits` suffice for further computations, `shown` is for people.

    `amount` returns the amount of a row, of which `unit` are 1 in the column; None if a row cannot have it.
    People see the column `always`, or if some row has a value; never if not `people`. `scraped` columns are
    only in fleet reports. `metered`: the amount rests on the Gpus' energy, which can be unknown. The rows of
    an `additive` column sum to the total. Without `has_total`, a sum would count a second several times.
    `unpriced` returns whether the amount leaves out a part of a row that has no price, `unclear` whether it
    leaves out time of unknown activity. An `upper_bound` is rounded up: it is never below the row's amount.
    """

    name: str
    heading: str
    digits: int
    shown: int
    amount: Callable[[ReportLine], int | Fraction | None]
    unit: int = 1
    always: bool = False
    people: bool = True
    scraped: bool = False
    metered: bool = False
    additive: bool = True
    has_total: bool = True
    unpriced: Callable[[ReportLine], bool] | None = None
    unclear: bool = False
    upper_bound: bool = False

    def is_partial(self, line: ReportLine) -> bool:
        """Whether the number of a row leaves out energy that was not measured, what has no price, or time."""
        return (
            (self.metered and bool(line.unmetered))
            or (self.unpriced is not None and self.unpriced(line))
            or (self.unclear and bool(line.unknown))
        )

    def value(self, line: ReportLine) -> Fraction | None:
        """The number of a row in this column."""
        amount = self.amount(line)
        return None if amount is None else Fraction(amount) / self.unit

    def round(self, value: Fraction, digits: int) -> Decimal:
        """One number of the column with `digits` decimals, not as a part of a rounded sum."""
        return (round_up if self.upper_bound else round_decimal)(value, digits)
