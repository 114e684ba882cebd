"""Usage reports as JSON: the amounts of `gpuledger report --format json`, in base units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from gpuledger.ledger.report.charges import unpriced_amount
from gpuledger.ledger.report.formats import SCHEMA_VERSION, number_text
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal
from gpuledger.ledger.report.report_columns import report_columns, round_column
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import GpuLine, ReportLine, UnbilledTime, UsageReport
from gpuledger.ledger.store.present_keys import PresentKey
from gpuledger.ledger.watched_time import MICRO, QUARTER
from gpuledger.web.api.json_values import VERSION, JsonObject, joules

MONEY: Final = ("time_cost", "energy_cost", "cost")

# Decimals by name in MONEY; names without a price are omitted.
Money = dict[str, Decimal | None]


@dataclass(frozen=True, slots=True)
class EncodedReport:
    """A report, and the money of its rows with ten decimals, rounded once: all pages sum to the total.

    `own` are the Gpus' own accounts. `groupings` are the keys by which the range has names.
    """

    report: UsageReport
    row_money: Sequence[Money]
    own_money: Sequence[Money]
    groupings: Sequence[PresentKey]


def encode_report(report: UsageReport, groupings: Sequence[PresentKey]) -> EncodedReport:
    """Round the money of a report."""
    count = len(report.lines)
    money = _money((*report.lines, *report.gpu_accounts), report.prices)
    return EncodedReport(report, money[:count], money[count:], groupings)


def report_fields(encoded: EncodedReport, shown: slice) -> JsonObject:
    """The fields of a response with these rows."""
    report = encoded.report
    period = report.period
    (total_money,) = _money([report.total], report.prices)
    return {
        "version": VERSION,
        "schema": SCHEMA_VERSION,
        "since": period.since,
        "until": min(period.until, period.last),
        "by": report.grouping.name,
        "keys": list(report.grouping.columns),
        "groupings": [key._asdict() for key in encoded.groupings],
        "basis": report.basis,
        "price_list": report.fingerprint or None,
        "complete": period.since >= period.first,
        "periods": [
            {"period": part.name, "since": part.begins * QUARTER, "until": part.ends * QUARTER}
            for part in (report.periods if report.has_periods else ())
        ],
        "rows": [
            {**_name_fields(line, report), **_row_fields(line, money), **_owner_fields(line)}
            for line, money in zip(report.lines[shown], encoded.row_money[shown], strict=True)
        ],
        "own": [
            {**_name_fields(line, report), "account": line.account, **_row_fields(line, money)}
            for line, money in zip(report.gpu_accounts, encoded.own_money, strict=True)
        ],
        "total": {
            **_row_fields(report.total, total_money),
            "measured_joules": _if_metered(report.total, report.total.measured),
            "apportioned_joules": _if_metered(report.total, report.total.apportioned),
            **_presence_fields(report.total),
            "occupied_gpu_seconds": _rounded(report.occupied),
        },
        "not_billed": [_unbilled_fields(one, report) for one in report.unbilled],
        "gpus": [_gpu_fields(gpu) for gpu in report.gpus],
        "currency": report.prices.currency,
        "notes": [*report.notes, *_pue_notes(report.prices)],
        "from_books": True,
    }


def _money(lines: Sequence[ReportLine], prices: Prices) -> list[Money]:
    """The money of each row; of all rows it sums to the total's."""
    columns = [column for column in report_columns(prices) if column.name in MONEY]
    rounded = [round_column(lines, column, FILE_DIGITS) for column in columns]
    return [
        {column.name: values[place] for column, values in zip(columns, rounded, strict=True)}
        for place in range(len(lines))
    ]


def _name_fields(line: ReportLine | UnbilledTime, report: UsageReport) -> JsonObject:
    period = report.periods[line.period].name if report.has_periods else None
    return {"key": list(line.key), "period": period}


def _row_fields(line: ReportLine, money: Money) -> JsonObject:
    """The amounts of a row, an own account or the total; null if they are unknown or not applicable."""
    known = {name: amount for name, amount in money.items() if amount is not None}
    return {
        "gpu_seconds": _seconds(line.gpu_microseconds),
        "gpu_microseconds": line.gpu_microseconds,
        "estimated_microseconds": line.estimated_microseconds,
        "unpriced_microseconds": line.unpriced_microseconds,
        "joules": joules(line.energy),
        "millijoules": line.energy,
        "unpriced_millijoules": line.unpriced_millijoules,
        **{name: float(known[name]) if name in known else None for name in MONEY},
        "decimals": {name: number_text(amount) for name, amount in known.items()},
        "co2_grams": _rounded(line.grams),
        "unmetered_gpus": len(line.unmetered),
    }


def _owner_fields(line: ReportLine) -> JsonObject:
    """What only the rows of owners have: how their energy is known, and their presence."""
    return {
        "measured_joules": _if_metered(line, line.measured),
        "apportioned_joules": _if_metered(line, line.apportioned),
        "low_joules": _if_metered(line, line.measured),
        "high_joules": joules(line.high),
        **_presence_fields(line),
    }


def _presence_fields(line: ReportLine) -> JsonObject:
    """Seconds that do not add up, because owners of a shared Gpu are present in the same ones."""
    return {
        "resident_gpu_seconds": _rounded(line.resident),
        "held_gpu_seconds": _rounded(line.held),
        "allocated_gpu_seconds": _rounded(line.allocated),
        "active_gpu_seconds": _rounded(line.active),
        "unknown_gpu_seconds": _rounded(line.unknown),
        "sessions": line.sessions,
    }


def _unbilled_fields(one: UnbilledTime, report: UsageReport) -> JsonObject:
    cost = None if one.cost is None else round_decimal(one.cost, FILE_DIGITS)
    return {
        "account": one.account,
        **_name_fields(one, report),
        "gpu_seconds": _seconds(one.microseconds),
        "gpu_microseconds": one.microseconds,
        "unpriced_microseconds": None if one.charges is None else unpriced_amount(one.charges),
        "cost": None if cost is None else float(cost),
        "decimals": {} if cost is None else {"cost": number_text(cost)},
    }


def _gpu_fields(gpu: GpuLine) -> JsonObject:
    return {
        "uuid": gpu.uuid,
        "gpu": gpu.index,
        "name": gpu.model,
        "joules": joules(gpu.millijoules),
        "millijoules": gpu.millijoules,
        "integrated_joules": joules(gpu.integrated),
        "observed_gpu_seconds": _rounded(gpu.observed),
        "watched_microseconds": gpu.watched,
        "unwatched_microseconds": gpu.unwatched,
        "microseconds_by_account": dict(sorted(gpu.accounts.items())),
    }


def _pue_notes(prices: Prices) -> tuple[str, ...]:
    """A note when cost and CO2 include the PUE, unlike the joules next to them."""
    pue = prices.pue
    names = [name for name, rate in (("cost", prices.kwh), ("CO2", prices.co2)) if rate is not None]
    if pue is None or pue == 1 or not names:
        return ()
    verb = "are" if len(names) > 1 else "is"
    ratio = f"PUE of {pue}" if isinstance(pue, Decimal) else "PUE in force"
    return (f"{' and '.join(names)} {verb} computed from the energy times the {ratio}",)


def _if_metered(line: ReportLine, millijoules: int) -> float | None:
    """Joules; None if the energy of the row is unknown."""
    return joules(millijoules) if line.metered else None


def _seconds(microseconds: int | None) -> Any:
    if microseconds is None:
        return None
    whole, rest = divmod(microseconds, MICRO)
    return microseconds / MICRO if rest else whole


def _rounded(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 6)
