"""Tests that docs/reliability.md and docs/security.md name exist."""

from __future__ import annotations

import re

import pytest

from documentation import DOCS, ROOT
from fault_rig import CODES, source_calls

TEXT = (DOCS / "reliability.md").read_text("utf-8")
SECURITY = (DOCS / "security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`", TEXT + SECURITY)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_tests_exist(file: str, name: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE)


def test_every_fault_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and line.count("|") == 5]
    faults = [line for line in rows if not line.startswith(("| fault |", "|---"))]
    assert len(faults) > 20
    assert all("tests/" in line for line in faults)


def test_the_number_of_driver_cases_is_correct() -> None:
    calls = len(source_calls())
    cases = f"any of the {calls} calls returns any of {len(CODES)} error codes"
    assert cases in TEXT
    assert f"({2 * calls * len(CODES):,} cases)" in TEXT
