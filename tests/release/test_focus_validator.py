"""FOCUS 1.2 in the published validator: the ledgers of which the unit tests check 1.3 by a table of rules."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuledger.ledger.report.focus import as_focus
from release.focus_validator import VERSION, validate
from unit.ledger.report.test_focus_rules import BOOKS

# What a provider like gpuledger supports.
CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)
# It does not know the condition of this rule: without an invoice the id must be null.
NO_INVOICE = "InvoiceId-C-005-C"
# With criteria, it also requires what depends on criteria that were not given (virtual currencies), and that
# a quantity is null and is not null.
WRONG_WITH_CRITERIA = (
    NO_INVOICE,
    *(f"ConsumedQuantity-C-00{number}-C" for number in (0, 3, 4, 5, 6)),
    *(f"CostAndUsage-D-0{number}-C" for number in (46, 47, 48, 50, 51, 52, 54, 55, 56)),
)
VIRTUAL_CURRENCY = "PricingCurrency"


@pytest.fixture(scope="module")
def rows() -> Iterator[Path]:
    """A file with the rows of all ledgers, in /tmp, which the validator's root shares with this machine."""
    files = [as_focus(make(), "cluster-1", "1.2") for make in BOOKS.values()]
    rows = [row for text in files for row in csv.DictReader(io.StringIO(text))]
    # Only reports with tokens have their columns.
    columns = max((list(row) for row in rows), key=len)
    with tempfile.TemporaryDirectory(prefix="gpuledger-focus-", dir="/tmp") as folder:
        file = Path(folder) / "focus.csv"
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        yield file


def test_the_rules_for_every_provider_pass(
    rows: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    found = validate(rows)
    record_testsuite_property("FOCUS: PyPI `focus-validator`, rules of 1.2", VERSION)
    assert found.passed > 100
    assert found.failed.keys() == {NO_INVOICE}


def test_the_rules_for_what_gpuledger_supports_pass(rows: Path) -> None:
    found = validate(rows, *CRITERIA)
    assert found.passed > 200
    other = found.failed.keys() - set(WRONG_WITH_CRITERIA)
    assert {rule for rule in other if not rule.startswith(VIRTUAL_CURRENCY)} == set()


def test_a_row_that_breaks_a_rule_fails(rows: Path) -> None:
    broken = rows.with_name("broken.csv")
    broken.write_text(rows.read_text().replace("Other (Compute)", ""))
    assert "ServiceSubcategory-C-002-M" in validate(broken).failed
