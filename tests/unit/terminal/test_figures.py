"""Numbers on a terminal: short, and absent is not zero."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.terminal import figures

NUMBERS = [
    (figures.share, None, "-"),
    (figures.share, 0.0, "0%"),
    (figures.share, 0.004, "<1%"),
    (figures.share, 0.005, "<1%"),
    (figures.share, 0.006, "1%"),
    (figures.share, 0.994, "99%"),
    (figures.share, 1.0, "100%"),
    (figures.size, None, "-"),
    (figures.size, 0, "0B"),
    (figures.size, 999, "999B"),
    (figures.size, 1000, "1.0K"),
    (figures.size, 30 * 2**20, "30.0M"),
    (figures.size, 512 * 2**20, "512M"),
    (figures.size, 71 * 2**30, "71.0G"),
    (figures.size, 99.97 * 2**30, "100G"),
    (figures.watts, None, "-"),
    (figures.watts, 0.0, "0.0"),
    (figures.watts, 0.01, "<0.1"),
    (figures.watts, 97.12, "97.1"),
    (figures.watts, 651.4, "651"),
    (figures.joules, None, "-"),
    (figures.joules, 0, "0 J"),
    (figures.joules, 0.2, "<1 J"),
    (figures.joules, 950.4, "950 J"),
    (figures.joules, 999.7, "1.0 kJ"),
    (figures.joules, 12_345, "12.3 kJ"),
    (figures.joules, 4_560_000, "4.6 MJ"),
    (figures.joules, 999_960, "1.0 MJ"),
    (figures.degrees, None, "-"),
    (figures.degrees, 0.0, "0C"),
    (figures.count, None, "-"),
    (figures.count, 0, "0"),
    (figures.lasting, None, "-"),
    (figures.lasting, -5.0, "0s"),
    (figures.lasting, 59.9, "59s"),
    (figures.lasting, 60, "1m00s"),
    (figures.lasting, 11_220, "3h07m"),
    (figures.lasting, 187_200, "2d04h"),
]


@pytest.mark.parametrize(("form", "number", "text"), NUMBERS)
def test_a_number_is_short_and_absent_is_a_dash(form, number, text):
    assert form(number) == text


@pytest.mark.parametrize(
    ("used", "total", "text"),
    [
        (None, None, "-"),
        (None, 80 * 2**30, "-/80.0G"),
        (0, 80 * 2**30, "0/80.0G"),
        (31 * 2**30, 80 * 2**30, "31.0/80.0G"),
        (512 * 2**20, 80 * 2**30, "512M/80.0G"),
        (5, None, "5B"),
    ],
)
def test_memory_of_memory_bears_its_unit_once(used, total, text):
    assert figures.sizes(used, total) == text


@pytest.mark.parametrize(
    ("drawn", "limit", "text"),
    [(None, None, "-"), (None, 700, "-/700W"), (70.4, None, "70W"), (312.0, 700.0, "312/700W")],
)
def test_power_says_what_may_be_drawn_where_that_is_told(drawn, limit, text):
    assert figures.power(drawn, limit) == text


def test_an_age_of_which_only_a_lower_bound_is_known_says_so():
    assert figures.lasting(45, exact=False) == ">45s"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, ""), (0.0, "......"), (0.001, "#....."), (0.5, "###..."), (1.0, "######"), (7.0, "######")],
)
def test_a_bar_is_empty_only_at_zero_and_not_there_when_absent(ratio, text):
    assert "".join(figures.bar(ratio, 6, full="#", rest=".")) == text


@settings(deadline=None, max_examples=200)
@given(st.floats(min_value=0, max_value=1e17))
def test_no_quantity_outgrows_its_column(number):
    assert len(figures.size(number)) <= 5
    assert len(figures.joules(number)) <= 7
