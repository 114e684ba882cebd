"""The tests that docs/reliability.md names are there."""

from __future__ import annotations

import re

import pytest

from documentation import DOCS, ROOT
from fault_rig import CODES, calls_of_the_source

TEXT = (DOCS / "reliability.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE)


def test_every_fault_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and line.count("|") == 5]
    faults = [line for line in rows if not line.startswith(("| fault |", "|---"))]
    assert len(faults) > 20
    assert all("tests/" in line for line in faults)


def test_the_cases_of_the_driver_are_counted_as_they_are() -> None:
    calls = len(calls_of_the_source())
    cases = f"any of the {calls} calls that are made answers any of {len(CODES)} error codes"
    assert cases in TEXT
    assert f"({2 * calls * len(CODES):,} cases)" in TEXT
