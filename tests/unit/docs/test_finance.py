"""The numbers of the finance page agree: they are outputs of one ledger (`benchmarks/finance_month.py`)."""

from __future__ import annotations

import re
from decimal import Decimal

from documentation import DOCS

PAGE = (DOCS / "finance.md").read_text(encoding="utf-8")


def table(name: str) -> list[list[str]]:
    """The rows of a table between marks, without its head."""
    (inside,) = re.findall(f"<!-- {name}: begin -->(.*?)<!-- {name}: end -->", PAGE, re.DOTALL)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in inside.strip().splitlines()]
    return rows[2:]


def test_the_charges_sum_to_the_total_of_the_statement() -> None:
    *charges, last = table("focus")
    (total,) = re.findall(r"by team, total ([\d.]+) EUR", PAGE)
    assert sum(Decimal(row[-1]) for row in charges) == Decimal(last[-1]) == Decimal(total)


def test_the_hours_of_each_gpu_are_those_of_the_month() -> None:
    for _, *parts, total in table("cloud"):
        assert sum(map(Decimal, parts)) == Decimal(total) == 31 * 24


def test_owners_idle_and_unobserved_energy_are_what_the_counters_rose() -> None:
    owners, idle, unobserved, total = (Decimal(row[1]) for row in table("meter")[:4])
    assert owners + idle + unobserved == total
