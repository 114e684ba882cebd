"""Columns fitted into the width of the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.terminal.columns import device_columns, owner_cell, problem_cell, process_columns, state_cell
from gpuledger.terminal.layout import (
    ASCII,
    UNICODE,
    fit_line,
    glyphs_for,
    place_columns,
    plain_text,
    row_line,
    truncate_line,
    width_of,
)
from gpuledger.terminal.plain_output import column_gap
from gpuledger.terminal.sort_order import SortOrder
from unit.terminal.support import GIB, NOW, device, holder, parsed, problem, process, rows

LONG = process(
    1234567, namespace="ml-research", pod="llama-pretrain-worker-0", container="trainer", command="python3.11"
)


def process_keys(room, *processes):
    shown = rows(*processes)
    return [
        item.column.key for item in place_columns(process_columns(UNICODE, SortOrder(), NOW), shown, room)
    ]


def device_keys(room):
    shown = parsed().devices
    return [item.column.key for item in place_columns(device_columns(UNICODE, shown), shown, room)]


def test_eighty_columns_show_the_most_important_columns():
    assert process_keys(80, LONG) == [
        "gpu",
        "pid",
        "owner",
        "command",
        "memory",
        "sm",
        "watts",
        "joules",
        "age",
    ]
    assert device_keys(80)[:4] == ["gpu", "state", "util", "bar"]
    assert device_keys(80)[-1] == "owner"


def test_two_hundred_columns_show_every_column():
    every = [column.key for column in process_columns(UNICODE, SortOrder(), NOW)]
    assert process_keys(200, LONG) == every
    assert device_keys(200) == [column.key for column in device_columns(UNICODE, ())]


def test_an_extra_column_appears_only_when_no_name_is_truncated_for_it():
    narrow = next(room for room in range(60, 200) if "user" in process_keys(room, LONG))
    placed = place_columns(process_columns(UNICODE, SortOrder(), NOW), rows(LONG), narrow)
    widths = {item.column.key: item.width for item in placed}
    assert widths["owner"] == len("ml-research/llama-pretrain-worker-0")


def test_the_narrowest_terminal_keeps_the_most_important_columns():
    assert process_keys(20, LONG) == ["gpu", "pid"]
    assert process_keys(1, LONG) == ["gpu"]


def test_unlimited_width_truncates_nothing():
    row = rows(LONG)[0]
    line = row_line(place_columns(process_columns(UNICODE, SortOrder(), NOW), [row], None), row, UNICODE)
    assert "ml-research/llama-pretrain-worker-0" in plain_text(line)


NAMES = st.text(alphabet=st.sampled_from("ab/\u5b66\u0301é\x1b -"), max_size=70)


@given(st.integers(1, 230), NAMES, NAMES, NAMES)
def test_no_name_makes_a_row_wider_than_the_screen(room, pod, command, user):
    shown = rows(process(namespace="n", pod=pod, command=command, user=user), process(2))
    gap = column_gap(room)
    placed = place_columns(process_columns(UNICODE, SortOrder(), NOW), shown, room, gap)
    least = placed[0].width
    for row in shown:
        assert width_of(row_line(placed, row, UNICODE, gap)) <= max(room, least)


@pytest.mark.parametrize(
    ("line", "width", "text"),
    [
        ((("ml/train-0", "owner"),), 12, "ml/train-0  "),
        ((("ml/train-0", "owner"),), 9, "…/train-0"),
        ((("ml/train-0", "owner"),), 6, "…/tra…"),
        ((("ml/train-0", ""),), 6, "ml/tr…"),
        ((("学習学習", ""),), 6, "学習 …"),
        ((("abc", ""), ("def", "")), 4, "abc…"),
        ((("abc", ""), ("def", "")), 5, "abcd…"),
        ((("abc", ""),), 1, "…"),
        ((("abc", ""),), 0, ""),
    ],
)
def test_a_long_line_is_truncated_and_an_owner_loses_its_namespace_first(line, width, text):
    assert "".join(part for part, _ in fit_line(line, width, UNICODE)) == text


def test_a_fitting_line_is_returned_unchanged():
    line = (("abc", "bold"),)
    assert truncate_line(line, 3, UNICODE) is line


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", UNICODE), ("UTF8", UNICODE), ("iso-8859-1", ASCII), ("ANSI_X3.4-1968", ASCII), (None, ASCII)],
)
def test_symbols_match_the_encoding_of_the_terminal(encoding, glyphs):
    assert glyphs_for(encoding) == glyphs


STATES = [
    ({"state": "active"}, "● active"),
    ({"state": "held"}, "◐ HELD"),
    ({"state": "idle"}, "○ idle"),
    ({"state": "unknown"}, "? unknown"),
    ({"state": "dreaming"}, "? dreaming"),
    ({"state": None}, "-"),
    ({"state": None, "holds_processes": False}, "MIG"),
    ({"state": None, "holds_processes": False, "vendor": "amd"}, "partition"),
    ({"state": "active", "up": False}, "\N{MULTIPLICATION SIGN} DOWN"),
]


@pytest.mark.parametrize(("changes", "text"), STATES)
def test_a_state_is_shown_as_symbol_and_word(changes, text):
    assert plain_text(state_cell(parsed(devices=[device(**changes)]).devices[0], UNICODE)) == text


HOT = problem("thermal_throttling", "warning", "too hot")
XID = problem("xid", "failure", "Xid 79")
DOWN = problem("down", "failure", "down")
CAP = problem("power_throttling", "info", "power cap")
PROBLEMS = [
    ([HOT], True, "! too hot", "held"),
    ([XID, HOT, CAP], True, "! Xid 79 +1", "down"),
    ([DOWN, XID], False, "! Xid 79", "down"),
    ([DOWN], False, "", ""),
    ([CAP], True, "", ""),
    ([], True, "", ""),
]


@pytest.mark.parametrize(("problems", "up", "text", "role"), PROBLEMS)
def test_a_row_has_the_worst_problem_and_the_number_of_others(problems, up, text, role):
    row = parsed(devices=[device(problems=problems, up=up)]).devices[0]
    line = problem_cell(row, UNICODE)
    assert (plain_text(line), line[0][1] if line else "") == (text, role)


def test_a_node_with_a_problem_has_a_column_for_it_at_eighty_columns():
    healthy = parsed(devices=[device("0"), device("1", problems=[CAP])]).devices
    faulty = parsed(devices=[device("0"), device("1", problems=[HOT])]).devices
    for shown, expected in ((healthy, False), (faulty, True)):
        placed = place_columns(device_columns(UNICODE, shown), shown, 80)
        keys = [item.column.key for item in placed]
        assert ("problem" in keys) is expected
        assert {"gpu", "state", "util", "memory", "power", "owner"} <= set(keys)
        lines = [plain_text(row_line(placed, row, UNICODE)) for row in shown]
        assert ("! too hot" in lines[1]) is expected


ANN, BOB = holder(user="ann"), holder(user="bob")
OWNERS = [
    ({"state": "active", "owners": [ANN]}, "ann"),
    ({"state": "active", "owners": [ANN, BOB, BOB]}, "ann +1"),
    ({"state": "active", "owners": [holder(namespace="ml", pod="train-0")]}, "ml/train-0"),
    ({"state": "active", "owners": [holder(job="7", user="ann")]}, "job 7 ann"),
    ({"state": "active", "owners": [holder(job="7")]}, "job 7"),
    ({"state": "active", "owners": [holder(container="ollama")]}, "ollama"),
    ({"state": "active", "owners": [holder(owner_kind="unknown")]}, "unknown owner"),
    ({"state": "active", "owners": [holder(user="gone", present=False)]}, "unknown owner"),
    ({"state": "held", "owners": [holder(user="ann", held=7620.0)]}, "ann, 2h07m idle"),
    ({"state": "held", "owners": [ANN | {"held_seconds": None}]}, "ann"),
    ({"state": "idle"}, "none"),
    ({"state": "idle", "reserved_by": "ann"}, "reserved by ann"),
    ({"state": "active", "owners": [BOB], "reserved_by": "ann"}, "bob"),
    ({"state": "unknown"}, "-"),
    ({"state": None, "holds_processes": False}, "see its instances"),
    ({"up": False, "owners": [ANN]}, "does not answer"),
]


@pytest.mark.parametrize(("changes", "text"), OWNERS)
def test_the_owner_of_a_gpu_is_shown(changes, text):
    assert plain_text(owner_cell(parsed(devices=[device(**changes)]).devices[0])) == text


def test_absent_values_of_a_process_are_a_dash_and_not_zero():
    bare = process(
        5,
        command="",
        types=[],
        memory_bytes=None,
        sm_ratio=None,
        memory_bandwidth_ratio=None,
        power_watts=None,
        joules=None,
        measured_joules=None,
        start_unix=None,
    )
    row = rows(bare)[0]
    line = row_line(place_columns(process_columns(UNICODE, SortOrder(), NOW), [row], None), row, UNICODE)
    assert plain_text(line).split() == ["0", "5", *["-"] * 12]


def test_a_row_of_several_processes_shows_their_count():
    row = rows(process(None, count=44, memory_bytes=3 * GIB, command=""))[0]
    line = row_line(place_columns(process_columns(UNICODE, SortOrder(), NOW), [row], None), row, UNICODE)
    assert "44 more" in plain_text(line)
    assert "3.0G" in plain_text(line)


def test_the_age_of_a_process_with_an_unknown_start_is_a_lower_bound():
    row = rows(process(start_unix=NOW - 90, start_exact=False))[0]
    line = row_line(place_columns(process_columns(UNICODE, SortOrder(), NOW), [row], None), row, UNICODE)
    assert plain_text(line).endswith(">1m30s")
