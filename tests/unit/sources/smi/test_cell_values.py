"""Cells: spellings of missing values, units, and invalid numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import quantities as q
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.cell_values import absent_reason, cell_text, parse_quantity, parse_whole

SPELLINGS = [
    ("N/A", "NOT_SUPPORTED"),
    ("[N/A]", "NOT_SUPPORTED"),
    ("(N/A)", "NOT_SUPPORTED"),
    (" n/a ", "NOT_SUPPORTED"),
    ("", "NOT_SUPPORTED"),
    ("-", "NOT_SUPPORTED"),
    ("[Not Supported]", "NOT_SUPPORTED"),
    ("Not Supported", "NOT_SUPPORTED"),
    ("None", "NOT_SUPPORTED"),
    ("[Requested functionality has been deprecated]", "NOT_SUPPORTED"),
    ("Not available in WDDM driver model", "NOT_SUPPORTED"),
    ("[Not Found]", "NOT_FOUND"),
    ("[Unknown Error]", "UNKNOWN"),
    ("Unknown Error", "UNKNOWN"),
    ("ERR!", "UNKNOWN"),
    ("[GPU is lost]", "GPU_IS_LOST"),
    ("GPU is lost", "GPU_IS_LOST"),
    ("[GPU requires reset]", "RESET_REQUIRED"),
    ("[Insufficient Permissions]", "NO_PERMISSION"),
    ("[Some new words]", "OTHER"),
]


@pytest.mark.parametrize(("cell", "reason"), SPELLINGS)
def test_every_spelling_of_a_missing_value_has_its_reason(cell: str, reason: str) -> None:
    assert absent_reason(cell) == reason


@pytest.mark.parametrize("quantity", [q.POWER, q.MEMORY_USED, q.UTILIZATION, q.TEMPERATURE, q.ECC_CORRECTED])
def test_an_absent_cell_is_not_a_number_and_not_invalid(quantity: q.Quantity) -> None:
    findings = SourceFindings()
    for cell, _ in SPELLINGS:
        assert parse_quantity(cell, quantity, findings) is None, cell
        assert parse_whole(cell, findings) is None, cell
        assert findings.invalid == 0, cell


@pytest.mark.parametrize(
    ("cell", "quantity", "value"),
    [
        ("41 %", q.UTILIZATION, 0.41),
        ("0 %", q.UTILIZATION, 0.0),
        ("29 %", q.MEMORY_UTILIZATION, 0.29),
        ("24564 MiB", q.MEMORY_TOTAL, 24564 * 2**20),
        ("12 KiB", q.MEMORY_USED, 12 * 2**10),
        ("211.37 W", q.POWER, 211.37),
        ("98500 mW", q.POWER, 98.5),
        ("2520 MHz", q.SM_CLOCK, 2_520_000_000),
        ("57 C", q.TEMPERATURE, 57),
        ("57", q.TEMPERATURE, 57),
        ("-8 C", q.TEMPERATURE, -8),
        ("P8", q.PERFORMANCE_STATE, 8),
        ("17", q.ECC_CORRECTED, 17),
    ],
)
def test_a_number_is_converted_to_base_units(cell: str, quantity: q.Quantity, value: float) -> None:
    assert parse_quantity(cell, quantity, SourceFindings()) == value


@pytest.mark.parametrize(
    ("cell", "quantity"),
    [
        ("4294967295 %", q.UTILIZATION),
        ("101 %", q.UTILIZATION),
        ("17592186044415 MiB", q.MEMORY_USED),
        ("18446744073709551615", q.ECC_CORRECTED),
        ("9223372036854775794", q.ECC_CORRECTED),
        ("4294967295", q.PCIE_REPLAYS),
        ("4294967.29 W", q.POWER),
        ("-1 MiB", q.MEMORY_FREE),
        ("P99", q.PERFORMANCE_STATE),
        ("1024", q.MEMORY_TOTAL),
        ("1024 M", q.MEMORY_TOTAL),
        ("12 W", q.MEMORY_TOTAL),
        ("1_024 MiB", q.MEMORY_TOTAL),
        ("٣٢ %", q.UTILIZATION),
        ("3 4 %", q.UTILIZATION),
        ("418.87.01 W", q.POWER),
        ("9" * 5000, q.ECC_CORRECTED),
        ("1e3 W", q.POWER),
    ],
)
def test_an_impossible_value_is_absent_and_counted_as_invalid(cell: str, quantity: q.Quantity) -> None:
    findings = SourceFindings()
    absent = absent_reason(cell) != ""
    assert parse_quantity(cell, quantity, findings) is None
    assert findings.invalid == (0 if absent else 1)


def test_a_version_is_text() -> None:
    assert cell_text("418.87.01") == "418.87.01"
    assert cell_text("[N/A]") is None


@given(st.text(max_size=30), st.sampled_from(list(q.QUANTITIES.values())))
def test_a_parsed_number_is_always_the_number_in_the_cell(cell: str, quantity: q.Quantity) -> None:
    value = parse_quantity(cell, quantity, SourceFindings())
    # Cells of some quantities may be words.
    if value is not None and re.search("[0-9]", cell):
        number = re.fullmatch(r"\s*P?([+-]?[0-9.]+)\s*[A-Za-z%]*\s*", cell)
        assert number
        factors = [1, 100, 1000, 1 / 1024, 1 / 2**20, 1 / 2**30, 1e-3, 1e-6, 1e-9]
        assert any(value * factor == pytest.approx(float(number[1])) for factor in factors)
