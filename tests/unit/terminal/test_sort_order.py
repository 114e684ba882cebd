"""The sort order of processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.terminal.sort_order import SORT_KEYS, SortOrder, parse_sort_order, sort_processes
from unit.terminal.support import GIB, NOW, process, rows


def pids(processes, text):
    return [row.pid for row in sort_processes(rows(*processes), parse_sort_order(text))]


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
def test_absent_values_and_rows_of_several_processes_are_sorted_last(text, processes, expected):
    assert pids(processes, text) == expected


@pytest.mark.parametrize("name", sorted(SORT_KEYS))
def test_choosing_a_column_again_reverses_its_order(name):
    once = SortOrder("pid" if name != "pid" else "gpu").chosen(name)
    assert once.chosen(name).falling is not once.falling
    assert once.chosen(name).chosen(name) == once


def test_every_sort_letter_is_the_unique_initial_of_its_column():
    letters = {key.letter for key in SORT_KEYS.values()}
    assert len(letters) == len(SORT_KEYS)
    assert all(name.startswith(key.letter) for name, key in SORT_KEYS.items())


@pytest.mark.parametrize("name", sorted(SORT_KEYS))
@pytest.mark.parametrize("reverse", [False, True])
def test_the_text_of_an_order_can_be_parsed(name, reverse):
    assert parse_sort_order(str(SortOrder(name, reverse))) == SortOrder(name, reverse)


def test_moving_past_the_last_column_keeps_it():
    assert SortOrder("joules").moved(1).by == "age"
    assert SortOrder("age").moved(1) == SortOrder("age")
    assert SortOrder("gpu", True).moved(-1) == SortOrder("gpu", True)


@pytest.mark.parametrize("text", ["", "watt", "watts:up", "watts:", "-watts"])
def test_an_invalid_order_lists_the_valid_ones(text):
    with pytest.raises(ValueError, match="watts, joules"):
        parse_sort_order(text)


numbers = st.one_of(st.none(), st.floats(min_value=0, max_value=3).map(round))


@given(st.lists(numbers, max_size=8), st.sampled_from(sorted(SORT_KEYS)), st.booleans(), st.randoms())
def test_sorting_keeps_every_row_and_ignores_the_input_order(values, name, reverse, random):
    processes = [process(pid, power_watts=value, joules=value) for pid, value in enumerate(values, 1)]
    order = SortOrder(name, reverse)
    first = sort_processes(rows(*processes), order)
    random.shuffle(processes)
    assert sort_processes(rows(*processes), order) == first
    assert len(first) == len(values)
