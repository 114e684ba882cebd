"""Names that attack the terminal in which they are shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuledger.terminal.snapshot import printable_name

NAMES = [
    ("python3.11", "python3.11"),
    ("träning", "träning"),
    ("学習", "学習"),
    ("a b", "a b"),
    ("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"),
    ("a\r\nb", "a\\r\\nb"),
    ("\x9b31m", "\\x9b31m"),
    ("user\u202etxt.exe", "user\\u202etxt.exe"),
    ("\u2066a\u2069", "\\u2066a\\u2069"),
    ("zero\u200bwidth", "zero\\u200bwidth"),
    ("no\u00a0break", "no\\xa0break"),
    ("line\u2028break", "line\\u2028break"),
    ("half\ud800", "half\\ud800"),
    ("e\u0301", "e\u0301"),
    ("e" + "\u0301" * 4, "e\u0301\u0301\\u0301\\u0301"),
    ("\u0301e", "\\u0301e"),
    ("x\u20dd", "x\\u20dd"),
    ("☎\ufe0f", "☎\\ufe0f"),
    ("private\ue000", "private\\ue000"),
    ("tab\there", "tab\\there"),
]


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_characters_that_move_the_cursor_or_reorder_text_are_escaped(name, shown):
    assert printable_name(name) == shown


@given(st.text(max_size=80))
def test_any_process_name_becomes_one_printable_line(name):
    shown = printable_name(name)
    assert shown.isprintable()
    assert not {unicodedata.bidirectional(sign) for sign in shown} & {
        "RLO",
        "LRO",
        "RLE",
        "LRE",
        "RLI",
        "LRI",
        "FSI",
    }
    shown.encode("utf-8")


@given(st.text(min_size=1, max_size=40))
def test_no_name_becomes_empty(name):
    assert cell_len(printable_name(name)) > 0


def test_a_long_name_is_truncated():
    assert len(printable_name("x" * 100_000)) == 256
