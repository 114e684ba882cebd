"""Tests that docs/reliability.md and docs/security.md name exist."""

from __future__ import annotations

import re

import pytest

from documentation import DOCS, ROOT
from fault_rig import codes_for, named_codes, source_calls

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
    cases = 2 * sum(len(codes_for(call)) for call in source_calls())
    assert f"any of the {len(source_calls())} calls returns an error code" in TEXT
    assert f"all {len(named_codes())} codes that gpuledger names, and one of each set" in TEXT
    assert f"({cases:,} cases)" in TEXT
