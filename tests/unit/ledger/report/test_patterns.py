"""Which shell patterns cover which, compared with matching names."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.patterns import pattern_covers

PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]"]), max_size=5).map("".join)


@given(PATTERNS, PATTERNS, st.lists(st.text("abc", max_size=6), min_size=20, max_size=60))
def test_a_pattern_that_covers_another_matches_all_its_names(
    wide: str, narrow: str, names: list[str]
) -> None:
    if pattern_covers(wide, narrow):
        assert all(fnmatchcase(name, wide) for name in names if fnmatchcase(name, narrow))


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("*", "", True),
        ("*", "a*b?", True),
        ("a*", "ab*", True),
        ("ab*", "a*", False),
        ("*?", "?*", True),
        ("*?*", "a", True),
        ("*?", "", False),
        ("*?", "*", False),
        ("?*", "*", False),
        ("[ab]*", "a-1", True),
        ("[ab]*", "c", False),
        ("[ab]", "[ab]", True),
        ("?", "[ab]", True),
        ("a", "?", False),
        ("*-prod", "x-*-prod", True),
        ("**", "x", True),
        ("x[", "x[", True),
    ],
)
def test_which_patterns_cover_which(wide: str, narrow: str, covers: bool) -> None:
    assert pattern_covers(wide, narrow) is covers


def test_a_literal_name_is_covered_exactly_if_it_matches() -> None:
    assert all(
        pattern_covers(p, n) == fnmatchcase(n, p)
        for p in ("a*c", "?b?", "[a-c]*")
        for n in ("abc", "b", "dbd")
    )


@given(st.text("ab*?[]!", max_size=6), st.text("ab*?[]!", max_size=6), st.text("ab[]!", max_size=6))
def test_a_pattern_covers_only_what_it_matches(wide: str, narrow: str, text: str) -> None:
    if pattern_covers(wide, narrow) and fnmatchcase(text, narrow):
        assert fnmatchcase(text, wide)


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("*", "", True),
        ("*", "a?[bc]*", True),
        ("a*", "ab", True),
        ("*a*", "a*a", True),
        ("a?", "ab", True),
        ("a?", "a[bc]", True),
        ("[ab]", "b", True),
        ("a*", "*", False),
        ("?", "*", False),
        ("[ab]", "c", False),
        ("a", "A", False),
        ("*b", "*", False),
    ],
)
def test_a_pattern_covers_another(wide: str, narrow: str, covers: bool) -> None:
    assert pattern_covers(wide, narrow) is covers
