"""Notes of a report beside one row of it: those of amounts that the row does not have are left out."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import pytest

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.prices import PriceUse
from gpuledger.ledger.report.usage_report import (
    GpuLine,
    ReportLine,
    RowNote,
    UsageReport,
    meter_notes,
    row_notes,
)
from unit.ledger.report.price_lists import price_list

A100, LONG = "NVIDIA A100", "NVIDIA A100-SXM4-80GB"
UNPRICED, PRICED = {Rate("GPU-0"): 5}, {Rate("GPU-0", "1", Fraction(2)): 5}
# Sentences of users, and a process, that have the words of our notes.
PLAIN = (
    "The total leaves out VAT.",
    "this time has no price for students",
    f"this energy has no price ({A100})",
)
SOME_METERED = meter_notes([GpuLine("GPU-1", "1", "T400", None, None), GpuLine("GPU-0", "0", A100, 5, None)])


class Notes:
    def __init__(self, *notes: str) -> None:
        self.notes = notes


def notes_of(line: ReportLine, *notes: str, unpriced: tuple[str, ...] = ()) -> list[str]:
    return row_notes(cast("UsageReport", Notes(*notes)), line, unpriced)


@pytest.mark.parametrize("charges", [UNPRICED, PRICED, None])
@pytest.mark.parametrize("unmetered", [frozenset(), frozenset({"GPU-1"})])
def test_a_sentence_of_a_user_remains_whatever_its_words(charges: Any, unmetered: frozenset[str]) -> None:
    line = ReportLine(("a",), time_charges=charges, energy_charges=charges, unmetered=unmetered)
    assert notes_of(line, *PLAIN, unpriced=(LONG,)) == list(PLAIN)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (ReportLine(("a",)), False),
        (ReportLine(("a",), unmetered=frozenset({"GPU-1"})), True),
    ],
)
def test_energy_that_was_not_measured_is_of_rows_on_such_a_gpu(line: ReportLine, kept: bool) -> None:
    assert len(SOME_METERED) == 1
    assert notes_of(line, *SOME_METERED) == (list(SOME_METERED) if kept else [])


@pytest.mark.parametrize(
    ("charges", "unpriced", "kept"),
    [
        (PRICED, (), []),
        (None, (), []),
        (UNPRICED, (), [A100, LONG]),
        (UNPRICED, (A100,), [A100]),
        (UNPRICED, (LONG,), [LONG]),
    ],
)
def test_time_without_a_price_is_of_rows_on_that_model(
    charges: Any, unpriced: tuple[str, ...], kept: list[str]
) -> None:
    uses = [PriceUse(GpuPart(f"GPU-{model}", model), "lab-1", 0, 40) for model in (A100, LONG)]
    listed = price_list(gpu_hour=[{"gpu": "*H100*", "price": 1}])
    notes = [problem + "." for problem in listed.problems(uses)]
    of_time = [note for note in notes if isinstance(note, RowNote)]
    assert [note.model for note in of_time] == [A100, LONG]
    assert all(note.endswith("add an entry for it.") for note in of_time)
    found = notes_of(ReportLine(("a",), time_charges=charges), *of_time, unpriced=unpriced)
    assert [note.model for note in found if isinstance(note, RowNote)] == kept
