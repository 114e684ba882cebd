"""Names in messages."""

from __future__ import annotations

import pytest

from gpuledger.model.text import list_some


@pytest.mark.parametrize(
    ("names", "most", "separator", "shown"),
    [
        ("", 2, ", ", ""),
        ("a", 2, ", ", "a"),
        ("ab", 2, ", ", "a, b"),
        ("abcde", 2, ", ", "a, b and 3 more"),
        ("abc", 2, " and ", "a and b and 1 more"),
        ("abc", 2, "; ", "a; b; and 1 more"),
        ("a" * 1_004, 4, ", ", "a, a, a, a and 1,000 more"),
        (("x\n\x1b[2J", "y\\x1b"), 1, ", ", "x\\n\\x1b[2J and 1 more"),
        (("y\\x1b",), 1, ", ", "y\\x1b"),
    ],
)
def test_the_first_names_and_the_number_of_the_others_are_in_one_line(
    names: str | tuple[str, ...], most: int, separator: str, shown: str
) -> None:
    assert list_some(names, most, separator) == shown
    assert list_some(iter(names), most, separator) == shown
