"""Numbers in the terminal: short, and absent is not zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.terminal import number_format

NUMBERS = [
    (number_format.share, None, "-"),
    (number_format.share, 0.0, "0%"),
    (number_format.share, 0.004, "<1%"),
    (number_format.share, 0.005, "<1%"),
    (number_format.share, 0.006, "1%"),
    (number_format.share, 0.994, "99%"),
    (number_format.share, 1.0, "100%"),
    (number_format.size, None, "-"),
    (number_format.size, 0, "0B"),
    (number_format.size, 999, "999B"),
    (number_format.size, 1000, "1.0K"),
    (number_format.size, 30 * 2**20, "30.0M"),
    (number_format.size, 512 * 2**20, "512M"),
    (number_format.size, 71 * 2**30, "71.0G"),
    (number_format.size, 99.97 * 2**30, "100G"),
    (number_format.watts, None, "-"),
    (number_format.watts, 0.0, "0.0"),
    (number_format.watts, 0.01, "<0.1"),
    (number_format.watts, 97.12, "97.1"),
    (number_format.watts, 651.4, "651"),
    (number_format.joules, None, "-"),
    (number_format.joules, 0, "0 J"),
    (number_format.joules, 0.2, "<1 J"),
    (number_format.joules, 950.4, "950 J"),
    (number_format.joules, 999.7, "1.0 kJ"),
    (number_format.joules, 12_345, "12.3 kJ"),
    (number_format.joules, 4_560_000, "4.6 MJ"),
    (number_format.joules, 999_960, "1.0 MJ"),
    (number_format.degrees, None, "-"),
    (number_format.degrees, 0.0, "0C"),
    (number_format.count, None, "-"),
    (number_format.count, 0, "0"),
    (number_format.lasting, None, "-"),
    (number_format.lasting, -5.0, "0s"),
    (number_format.lasting, 59.9, "59s"),
    (number_format.lasting, 60, "1m00s"),
    (number_format.lasting, 11_220, "3h07m"),
    (number_format.lasting, 187_200, "2d04h"),
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
def test_used_and_total_memory_share_one_unit(used, total, text):
    assert number_format.sizes(used, total) == text


@pytest.mark.parametrize(
    ("drawn", "limit", "text"),
    [(None, None, "-"), (None, 700, "-/700W"), (70.4, None, "70W"), (312.0, 700.0, "312/700W")],
)
def test_power_shows_the_limit_when_known(drawn, limit, text):
    assert number_format.power(drawn, limit) == text


def test_a_lower_bound_of_an_age_is_marked():
    assert number_format.lasting(45, exact=False) == ">45s"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(None, ""), (0.0, "......"), (0.001, "#....."), (0.5, "###..."), (1.0, "######"), (7.0, "######")],
)
def test_a_bar_is_empty_only_at_zero_and_missing_when_absent(ratio, text):
    assert "".join(number_format.bar_parts(ratio, 6, full="#", rest=".")) == text


@given(st.floats(min_value=0, max_value=1e17))
def test_no_quantity_exceeds_the_width_of_its_column(number):
    assert len(number_format.size(number)) <= 5
    assert len(number_format.joules(number)) <= 7
