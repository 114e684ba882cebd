"""In which order processes are shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.terminal.order import KEYS, Order, ordered, parse_order
from unit.terminal.support import GIB, NOW, process, rows


def pids(processes, text):
    return [row.pid for row in ordered(rows(*processes), parse_order(text))]


ORDERS = [
    ("gpu", [process(1, "10"), process(2, "2"), process(3, "9")], [2, 3, 1]),
    ("gpu", [process(1, memory_bytes=1), process(2, memory_bytes=GIB)], [2, 1]),
    ("pid", [process(30), process(4)], [4, 30]),
    ("pid:desc", [process(30), process(4)], [30, 4]),
    ("owner", [process(1, user="zoe"), process(2, user="Ann"), process(3)], [2, 1, 3]),
    ("owner", [process(1, namespace="b", pod="x"), process(2, namespace="a", pod="y")], [2, 1]),
    ("command", [process(1, command="b"), process(2, command="A")], [2, 1]),
    ("memory", [process(1, memory_bytes=1), process(2, memory_bytes=2)], [2, 1]),
    ("sm", [process(1, sm_ratio=None), process(2, sm_ratio=0.0), process(3, sm_ratio=1)], [3, 2, 1]),
    (
        "watts",
        [process(1, power_watts=None), process(2, power_watts=5), process(3, power_watts=9)],
        [3, 2, 1],
    ),
    (
        "watts:asc",
        [process(1, power_watts=None), process(2, power_watts=5), process(3, power_watts=9)],
        [2, 3, 1],
    ),
    ("joules", [process(1, joules=1.5), process(2, joules=1.6)], [2, 1]),
    ("age", [process(1, start_unix=NOW - 5), process(2, start_unix=NOW - 50)], [2, 1]),
    ("age:desc", [process(1, start_unix=NOW - 5), process(2, start_unix=NOW - 50)], [2, 1]),
    ("age:asc", [process(1, start_unix=NOW - 5), process(2, start_unix=NOW - 50)], [1, 2]),
    ("watts:asc", [process(None, count=7, power_watts=1), process(1, power_watts=2)], [1, None]),
]


@pytest.mark.parametrize(("text", "processes", "expected"), ORDERS)
def test_sorted_by_a_column_with_what_is_absent_and_what_is_many_last(text, processes, expected):
    assert pids(processes, text) == expected


@pytest.mark.parametrize("name", sorted(KEYS))
def test_chosen_again_a_column_is_sorted_the_other_way_and_a_third_time_as_at_first(name):
    once = Order("pid" if name != "pid" else "gpu").chosen(name)
    assert once.chosen(name).falling is not once.falling
    assert once.chosen(name).chosen(name) == once


def test_every_letter_is_the_first_of_its_column_and_of_no_other():
    letters = {key.letter for key in KEYS.values()}
    assert len(letters) == len(KEYS)
    assert all(name.startswith(key.letter) for name, key in KEYS.items())


@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("reverse", [False, True])
def test_an_order_is_written_as_it_can_be_given(name, reverse):
    assert parse_order(str(Order(name, reverse))) == Order(name, reverse)


def test_the_neighbour_of_the_last_column_is_itself():
    assert Order("joules").moved(1).by == "age"
    assert Order("age").moved(1) == Order("age")
    assert Order("gpu", True).moved(-1) == Order("gpu", True)


@pytest.mark.parametrize("text", ["", "watt", "watts:up", "watts:", "-watts"])
def test_an_order_that_is_none_names_those_there_are(text):
    with pytest.raises(ValueError, match="watts, joules"):
        parse_order(text)


numbers = st.one_of(st.none(), st.floats(min_value=0, max_value=3).map(round))


@settings(deadline=None, max_examples=60)
@given(st.lists(numbers, max_size=8), st.sampled_from(sorted(KEYS)), st.booleans(), st.randoms())
def test_no_order_loses_a_row_or_depends_on_how_the_rows_came(values, name, reverse, random):
    processes = [process(pid, power_watts=value, joules=value) for pid, value in enumerate(values, 1)]
    order = Order(name, reverse)
    first = ordered(rows(*processes), order)
    random.shuffle(processes)
    assert ordered(rows(*processes), order) == first
    assert len(first) == len(values)
