"""The amounts of a receipt, from rows of a report: exact integers, and money that adds up to the digit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

from gpuledger.ledger.report.formats import number_text
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal, split_known
from gpuledger.ledger.report.receipt.content import Amounts
from gpuledger.ledger.report.usage_report import ReportLine

_MONEY: Final = ("time_cost", "energy_cost", "cost")


def row_amounts(line: ReportLine, numbers: Mapping[str, Decimal | None]) -> Amounts:
    """The amounts of a row; `numbers` has its money, rounded."""
    return Amounts(
        gpu_microseconds=line.gpu_microseconds,
        estimated_microseconds=line.estimated_microseconds,
        millijoules=line.energy,
        measured_millijoules=line.measured if line.metered else None,
        high_millijoules=line.high,
        time_cost=_text(numbers.get("time_cost")),
        energy_cost=_text(numbers.get("energy_cost")),
        cost=_text(numbers.get("cost")),
        unpriced_microseconds=line.unpriced_microseconds,
        unpriced_millijoules=line.unpriced_millijoules,
        co2_grams=_rounded(line.grams),
        allocated_seconds=_rounded(line.allocated),
        resident_seconds=_rounded(line.resident),
        active_seconds=_rounded(line.active),
        held_seconds=_rounded(line.held),
        unknown_seconds=_rounded(line.unknown),
        sessions=line.sessions,
    )


def split_amounts(lines: Sequence[ReportLine], total: Amounts) -> list[Amounts]:
    """The amounts of the parts of a row. Their money sums to that of the row, to its last digit."""
    money: list[dict[str, Decimal | None]] = [{} for _ in lines]
    for name in _MONEY:
        parts: list[Fraction | None] = [getattr(line, name) for line in lines]
        whole = total[name]
        if whole is None or all(part is None for part in parts):
            continue
        exact = sum((part for part in parts if part is not None), Fraction(0))
        rounded = round_decimal(Fraction(whole), FILE_DIGITS)
        if abs(Fraction(whole) - exact) * 10**FILE_DIGITS >= 1:
            # Idle time that is spread is not of these parts.
            rounded = round_decimal(exact, FILE_DIGITS)
        for numbers, part in zip(money, split_known(rounded, parts, FILE_DIGITS), strict=True):
            numbers[name] = part
    return [row_amounts(line, numbers) for line, numbers in zip(lines, money, strict=True)]


def _text(number: Decimal | None) -> str | None:
    return None if number is None else number_text(number)


def _rounded(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 6)
