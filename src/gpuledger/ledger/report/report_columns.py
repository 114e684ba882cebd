"""The columns of a report: what each shows, in which unit, and how its numbers are rounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Unpack

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.money import FILE_DIGITS, TABLE_DIGITS, round_decimal, split_known
from gpuledger.ledger.report.report_column import ColumnOptions, ReportColumn
from gpuledger.ledger.report.report_keys import GATEWAY
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH, SECONDS_PER_HOUR, Prices
from gpuledger.ledger.report.token_columns import HIDDEN_BESIDE_TOKENS, token_columns
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.model.session import PROCESS

# Digits of GPU-hours in files: below a microsecond's worth.
HOUR_DIGITS = 10

# GPU-hours of rows that were split by the tokens of a gateway; `apportioned_kwh` has their energy.
_APPORTIONED_HOURS = ReportColumn(
    "apportioned_gpu_hours",
    "",
    HOUR_DIGITS,
    2,
    lambda line: line.gpu_microseconds if line.apportioned_by else 0,
    MICROSECONDS_PER_HOUR,
    people=False,
    additive=False,
)


def columns_of(report: UsageReport) -> tuple[ReportColumn, ...]:
    """The columns of a report in files."""
    columns = report_columns(report.prices, scraped=report.scraped)
    if not report.has_tokens:
        return columns
    is_apportioned = any(name.startswith(GATEWAY) for name in report.grouping.columns)
    apportioned = (_APPORTIONED_HOURS,) if is_apportioned else ()
    return (*columns, *apportioned, *token_columns(report.prices))


def report_columns(prices: Prices, *, scraped: bool = False) -> tuple[ReportColumn, ...]:
    """The columns for these prices; prices that are not set have no column."""
    hour = MICROSECONDS_PER_HOUR
    columns = [
        ReportColumn("sessions", "sessions", 0, 0, attrgetter("sessions")),
        ReportColumn(
            "gpu_hours", "GPU-hours", HOUR_DIGITS, 2, attrgetter("gpu_microseconds"), hour, always=True
        ),
        ReportColumn(
            "bound_gpu_hours",
            "± hours",
            5,
            2,
            attrgetter("time_bound"),
            hour,
            scraped=True,
            additive=False,
            upper_bound=True,
        ),
        ReportColumn(
            "estimated_gpu_hours",
            "estimated",
            HOUR_DIGITS,
            2,
            attrgetter("estimated_microseconds"),
            hour,
            people=False,
        ),
        ReportColumn(
            "uncut_gpu_hours", "uncut", HOUR_DIGITS, 2, attrgetter("uncut_microseconds"), hour, people=False
        ),
        _presence_column("allocated_gpu_hours", "allocated", "allocated"),
        _presence_column("active_gpu_hours", "active", "active", people=False, unclear=True),
        _energy_column("kwh", "kWh", 3, "energy", always=True),
        _energy_column("bound_kwh", "± kWh", 5, "bound", scraped=True, additive=False, upper_bound=True),
        _energy_column("measured_kwh", "measured", 3, "measured", owners=True),
        _energy_column("apportioned_kwh", "apportioned", 3, "apportioned", owners=True),
        _energy_column("low_kwh", "at least", 3, "low", people=False),
        _energy_column("high_kwh", "at most", 3, "high", additive=False, upper_bound=True),
        _presence_column("resident_gpu_hours", "resident", "resident", always=True),
        _presence_column("held_gpu_hours", "held idle", "held", always=True, unclear=True),
        _presence_column("unknown_gpu_hours", "unknown", "unknown"),
        *_money_columns(prices),
    ]
    if prices.co2 is not None:
        columns.append(
            ReportColumn("co2_kg", "kg CO2", 6, 2, attrgetter("grams"), 1000, always=True, metered=True)
        )
    columns.append(
        ReportColumn(
            "unmetered_gpus", "", 0, 0, lambda line: len(line.unmetered), people=False, additive=False
        )
    )
    return tuple(column for column in columns if scraped or not column.scraped)


def _money_columns(prices: Prices) -> Iterator[ReportColumn]:
    """Cost of time and of energy, and their sum where both have a price; what has no price."""
    by_time, by_energy = prices.gpu_hour is not None, prices.kwh is not None
    currency = f" {prices.currency}".rstrip()

    def money(
        name: str, heading: str, *, people: bool, metered: bool, unpriced: tuple[str, ...]
    ) -> ReportColumn:
        def is_partly_unpriced(line: ReportLine) -> bool:
            return any(getattr(line, amount) for amount in unpriced)

        return ReportColumn(
            name,
            heading + currency,
            FILE_DIGITS,
            TABLE_DIGITS,
            attrgetter(name),
            always=people,
            people=people,
            metered=metered,
            unpriced=is_partly_unpriced,
        )

    time, energy = ("unpriced_microseconds",), ("unpriced_millijoules",)
    if by_time:
        yield money("time_cost", "time cost", people=True, metered=False, unpriced=time)
    if by_energy:
        yield money("energy_cost", "energy cost", people=True, metered=True, unpriced=energy)
    if by_time or by_energy:
        both = by_time and by_energy
        yield money("cost", "cost", people=both, metered=by_energy, unpriced=(*time, *energy))
    if by_time:
        amount = attrgetter("unpriced_microseconds")
        yield ReportColumn("unpriced_gpu_hours", "unpriced", HOUR_DIGITS, 2, amount, MICROSECONDS_PER_HOUR)
    if by_energy:
        yield _energy_column("unpriced_kwh", "unpriced kWh", 3, "unpriced_millijoules")


def _presence_column(name: str, heading: str, amount: str, **options: Unpack[ColumnOptions]) -> ReportColumn:
    """A column of hours of whole Gpus in which each second counts once per row."""
    options["additive"] = options["has_total"] = False
    return ReportColumn(name, heading, 6, 2, attrgetter(amount), SECONDS_PER_HOUR, **options)


def _energy_column(
    name: str,
    heading: str,
    shown: int,
    amount: str,
    *,
    owners: bool = False,
    **options: Unpack[ColumnOptions],
) -> ReportColumn:
    """A column of kilowatt-hours: an attribute of ReportLine, None if the row's energy is unknown.

    With `owners`, the Gpus' own accounts have none.
    """
    value = attrgetter(amount)

    def known(line: ReportLine) -> int | None:
        return value(line) if line.metered and (line.account == PROCESS or not owners) else None

    options["metered"] = True
    return ReportColumn(name, heading, 9, shown, known, MILLIJOULES_PER_KWH, **options)


def round_column(lines: Sequence[ReportLine], column: ReportColumn, digits: int) -> list[Decimal | None]:
    """The column's numbers of these rows with `digits` decimals.

    Those of an additive column are rounded so that they sum to the rounded sum (largest remainder, of equal
    ones the first); each is within one unit of the last digit of its exact value. An upper bound is rounded
    up, so that it is not below the rounded amount that it bounds.
    """
    exact = [column.value(line) for line in lines]
    if not column.additive:
        return [None if value is None else column.round(value, digits) for value in exact]
    total = sum((value for value in exact if value is not None), Fraction(0))
    return split_known(round_decimal(total, digits), exact, digits)


def shown_columns(report: UsageReport) -> tuple[ReportColumn, ...]:
    """The columns with data in this report: without allocations, for example, there is no such column."""
    lines = (*report.lines, *report.gpu_accounts)
    hidden = HIDDEN_BESIDE_TOKENS if report.has_tokens else frozenset()
    return tuple(
        column
        for column in columns_of(report)
        if column.name not in hidden and (column.always or (column.people and any(map(column.value, lines))))
    )
