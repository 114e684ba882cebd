"""Reports as CSV and JSON for spreadsheets and programs, with full precision."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR, unpriced_amount
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal
from gpuledger.ledger.report.price_entries import plain_price
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.report_column import ReportColumn
from gpuledger.ledger.report.report_columns import HOUR_DIGITS, columns_of, round_column
from gpuledger.ledger.report.settings import SECONDS_PER_HOUR, Prices
from gpuledger.ledger.report.usage_report import GpuLine, ReportLine, UnbilledTime, UsageReport
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.model.text import escape_to_one_line

# Of CSV and JSON. Since 2, `gpu_hours` is billed time, which adds up: owners of a shared GPU share its hours.
SCHEMA_VERSION = 2

# Includes the full-width forms, which spreadsheets treat alike.
_FORMULA: Final = re.compile("(?:^|(?<=;))(?=\\s*[=+@\uff1d\uff0b\uff0d\uff20-])")


def as_csv(report: UsageReport) -> str:
    """A header, a row per line, the Gpus' own accounts last: the columns sum to the total.

    Names are escaped with `escape_cell`. Names that end in `millijoules` and `microseconds` are exact; other
    numbers have the digits of `report_columns`. Time that is not billed has separate rows and columns.
    """
    lines = (*report.lines, *report.gpu_accounts)
    columns = columns_of(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [*(["period"] if report.has_periods else []), *report.grouping.columns, "account"]
    writer.writerow((*names, *(column.name for column in columns), *_EXACT, *_UNBILLED, "schema"))
    unbilled = {(one.period, one.account, one.key): one for one in report.unbilled}
    for line, numbers in zip(lines, _round_rows(lines, columns), strict=True):
        cells = [*map(escape_cell, _names(line, report)), line.account, *map(number_text, numbers)]
        cells += ["" if (amount := getattr(line, name)) is None else str(amount) for name in _EXACT.values()]
        one = unbilled.pop((line.period, line.account, line.key), None)
        writer.writerow((*cells, *_unbilled_cells(one), SCHEMA_VERSION))
    # Nothing of these rows is billed.
    empty = ["0" if column.additive else "" for column in columns] + ["0" for _ in _EXACT]
    for one in unbilled.values():
        period = [report.periods[one.period].name] if report.has_periods else []
        cells = [*map(escape_cell, (*period, *one.key)), one.account, *empty]
        writer.writerow((*cells, *_unbilled_cells(one), SCHEMA_VERSION))
    return out.getvalue()


# Exact integers of a row, by the name of their column.
_EXACT = {
    "gpu_microseconds": "gpu_microseconds",
    "unpriced_microseconds": "unpriced_microseconds",
    "millijoules": "energy",
}
_UNBILLED = ("unbilled_gpu_hours", "unbilled_microseconds", "unbilled_cost")


def number_text(number: Decimal | None) -> str:
    """A number as in all files; empty if there is none."""
    # Nothing is written as 0: with decimals it would look like a rounded amount.
    return "" if number is None else format(number, "f") if number else "0"


def _unbilled_cells(one: UnbilledTime | None) -> tuple[str, ...]:
    """Time that is not billed, and what it would have cost; empty for other rows."""
    if one is None:
        return tuple("" for _ in _UNBILLED)
    hours = round_decimal(Fraction(one.microseconds, MICROSECONDS_PER_HOUR), HOUR_DIGITS)
    return number_text(hours), str(one.microseconds), number_text(_unbilled_cost(one))


def _unbilled_cost(one: UnbilledTime) -> Decimal | None:
    return None if one.cost is None else round_decimal(one.cost, FILE_DIGITS)


def as_json(report: UsageReport) -> dict[str, Any]:
    """Plain values, times in ISO 8601 and UTC. Numbers are JSON numbers, of which integers are exact.

    `decimals` has the money of a row as text, with all its digits.
    """
    columns = columns_of(report)
    # Rounded together: rows and own accounts sum to the total.
    rows = _rows((*report.lines, *report.gpu_accounts), columns, report)
    return {
        "version": SCHEMA_VERSION,
        "by": report.grouping.name,
        "basis": report.basis,
        "since": format_time(report.period.since),
        "until": format_time(report.period.until),
        "books_from": format_time(report.period.first),
        "books_until": format_time(report.period.last),
        "settings": _settings(report.prices),
        "price_list": report.fingerprint or None,
        **({"periods": list(map(_period, report.periods))} if report.has_periods else {}),
        "rows": rows[: len(report.lines)],
        "own": rows[len(report.lines) :],
        "total": _row(report.total, columns, *_round_rows([report.total], columns)),
        "not_billed": [
            {
                **({"period": report.periods[one.period].name} if report.has_periods else {}),
                **dict(zip(report.grouping.columns, one.key, strict=True)),
                "account": one.account,
                "gpu_hours": _hours(Fraction(one.microseconds, MICRO)),
                "gpu_microseconds": one.microseconds,
                "cost": _number(_unbilled_cost(one)),
                "unpriced_microseconds": None if one.charges is None else unpriced_amount(one.charges),
            }
            for one in report.unbilled
        ],
        "gpus": list(map(_gpu, report.gpus)),
        "occupied_gpu_hours": None if report.occupied is None else _hours(report.occupied),
        **({"notes": list(report.notes)} if report.notes else {}),
    }


def _settings(prices: Prices) -> dict[str, Any]:
    return {
        "price.kwh": plain_price(prices.kwh),
        "price.gpu_hour": plain_price(prices.gpu_hour),
        "price.currency": prices.currency or None,
        "price.basis": prices.basis,
        "price.idle": prices.idle,
        "pue": plain_price(prices.pue),
        "co2.g_per_kwh": plain_price(prices.co2),
    }


def _period(part: ReportPart) -> dict[str, Any]:
    return {
        "period": part.name,
        "since": format_time(part.begins * QUARTER),
        "until": format_time(part.ends * QUARTER),
    }


def _gpu(gpu: GpuLine) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "gpu": gpu.index,
        "model": gpu.model,
        "millijoules": gpu.millijoules,
        "integrated_millijoules": gpu.integrated,
        "observed_hours": None if gpu.observed is None else _hours(gpu.observed),
        "microseconds_by_account": dict(sorted(gpu.accounts.items())),
        "watched_microseconds": gpu.watched,
        "unwatched_microseconds": gpu.unwatched,
    }


def row_as_json(report: UsageReport, line: ReportLine) -> dict[str, Any]:
    """The values that `as_json` has for this row of the report."""
    lines = (*report.lines, *report.gpu_accounts)
    columns = columns_of(report)
    return _rows(lines, columns, report)[lines.index(line)]


def rounded_row(report: UsageReport, line: ReportLine) -> dict[str, Decimal | None]:
    """The numbers that `as_csv` has for this row of the report, by column."""
    lines = (*report.lines, *report.gpu_accounts)
    columns = columns_of(report)
    numbers = list(_round_rows(lines, columns))[lines.index(line)]
    return {column.name: number for column, number in zip(columns, numbers, strict=True)}


def escape_cell(name: str) -> str:
    """Escape a name for a cell: process names are untrusted and could be run by a spreadsheet or terminal.

    A name like a formula gets an apostrophe in front, also after a semicolon, which separates cells in
    locales with a decimal comma. Unprintable characters are escaped.
    """
    return _FORMULA.sub("'", escape_to_one_line(name))


def format_time(unix: float) -> str:
    """A time as `2026-11-28T08:00:00Z`."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rows(
    lines: Sequence[ReportLine], columns: Sequence[ReportColumn], report: UsageReport
) -> list[dict[str, Any]]:
    rows = []
    names = [*(["period"] if report.has_periods else []), *report.grouping.columns]
    for line, numbers in zip(lines, _round_rows(lines, columns), strict=True):
        named = dict(zip(names, _names(line, report), strict=True))
        rows.append({**named, "account": line.account, **_row(line, columns, numbers)})
    return rows


def _round_rows(
    lines: Sequence[ReportLine], columns: Sequence[ReportColumn]
) -> Iterable[Sequence[Decimal | None]]:
    """The rounded numbers of each row."""
    return zip(*(round_column(lines, column, column.digits) for column in columns), strict=True)


def _row(
    line: ReportLine, columns: Sequence[ReportColumn], numbers: Sequence[Decimal | None]
) -> dict[str, Any]:
    values = {column.name: _number(number) for column, number in zip(columns, numbers, strict=True)}
    exact: dict[str, Any] = {
        "millijoules": line.energy,
        "high_millijoules": line.high,
        "gpu_microseconds": line.gpu_microseconds,
        "estimated_microseconds": line.estimated_microseconds,
        "unpriced_microseconds": line.unpriced_microseconds,
    }
    if line.bound is not None:
        exact["bound_millijoules"] = line.bound
    if line.time_bound is not None:
        exact["bound_microseconds"] = line.time_bound
    if line.apportioned_by:
        exact["apportioned_by"] = line.apportioned_by
    money = {
        column.name: number_text(number)
        for column, number in zip(columns, numbers, strict=True)
        if column.unpriced is not None and number is not None
    }
    return {
        **values,
        **exact,
        "millijoules_by_method": dict(sorted(line.methods.items())),
        **({"decimals": money} if money else {}),
    }


def _names(line: ReportLine, report: UsageReport) -> tuple[str, ...]:
    """The cells that name a row; the Gpus' own accounts have only what a Gpu has."""
    period = (report.periods[line.period].name,) if report.has_periods else ()
    return (*period, *line.key)


def _hours(seconds: Fraction) -> float:
    return round(float(seconds / SECONDS_PER_HOUR), 6)


def _number(number: Decimal | None) -> int | float | None:
    if number is None:
        return None
    return int(number) if number == number.to_integral_value() else float(number)
