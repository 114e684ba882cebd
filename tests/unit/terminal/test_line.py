"""Columns in the room there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.terminal.columns import device_columns, process_columns, state_of, who
from gpuledger.terminal.line import ASCII, UNICODE, cut, fitted, glyphs_for, place, plain, row_line, width_of
from gpuledger.terminal.order import Order
from gpuledger.terminal.text import gap_for
from unit.terminal.support import GIB, NOW, device, holder, picture, process, rows

LONG = process(
    1234567, namespace="ml-research", pod="llama-pretrain-worker-0", container="trainer", command="python3.11"
)


def process_keys(room, *processes):
    shown = rows(*processes)
    return [item.column.key for item in place(process_columns(UNICODE, Order(), NOW), shown, room)]


def device_keys(room):
    shown = picture().devices
    return [item.column.key for item in place(device_columns(UNICODE), shown, room)]


def test_eighty_columns_have_what_is_asked_first():
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


def test_two_hundred_columns_have_everything():
    every = [column.key for column in process_columns(UNICODE, Order(), NOW)]
    assert process_keys(200, LONG) == every
    assert device_keys(200) == [column.key for column in device_columns(UNICODE)]


def test_an_extra_column_comes_only_when_no_name_is_cut_for_it():
    narrow = next(room for room in range(60, 200) if "user" in process_keys(room, LONG))
    placed = place(process_columns(UNICODE, Order(), NOW), rows(LONG), narrow)
    widths = {item.column.key: item.width for item in placed}
    assert widths["owner"] == len("ml-research/llama-pretrain-worker-0")


def test_in_the_narrowest_room_what_is_left_is_the_most_important():
    assert process_keys(20, LONG) == ["gpu", "pid"]
    assert process_keys(1, LONG) == ["gpu"]


def test_without_end_nothing_is_cut():
    row = rows(LONG)[0]
    line = row_line(place(process_columns(UNICODE, Order(), NOW), [row], None), row, UNICODE)
    assert "ml-research/llama-pretrain-worker-0" in plain(line)


NAMES = st.text(alphabet=st.sampled_from("ab/\u5b66\u0301é\x1b -"), max_size=70)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 230), NAMES, NAMES, NAMES)
def test_a_row_is_never_wider_than_the_screen_whatever_the_names(room, pod, command, user):
    shown = rows(process(namespace="n", pod=pod, command=command, user=user), process(2))
    gap = gap_for(room)
    placed = place(process_columns(UNICODE, Order(), NOW), shown, room, gap)
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
def test_what_does_not_fit_is_cut_and_of_an_owner_the_namespace_first(line, width, text):
    assert "".join(part for part, _ in fitted(line, width, UNICODE)) == text


def test_a_line_that_fits_stays_as_it_is():
    line = (("abc", "bold"),)
    assert cut(line, 3, UNICODE) is line


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", UNICODE), ("UTF8", UNICODE), ("iso-8859-1", ASCII), ("ANSI_X3.4-1968", ASCII), (None, ASCII)],
)
def test_signs_are_those_that_the_terminal_has(encoding, glyphs):
    assert glyphs_for(encoding) == glyphs


STATES = [
    ({"state": "active"}, "● active"),
    ({"state": "held"}, "◐ HELD"),
    ({"state": "idle"}, "○ idle"),
    ({"state": "unknown"}, "? unknown"),
    ({"state": "dreaming"}, "? dreaming"),
    ({"state": None}, "-"),
    ({"state": None, "holds_processes": False}, "MIG"),
    ({"state": "active", "up": False}, "\N{MULTIPLICATION SIGN} LOST"),
]


@pytest.mark.parametrize(("changes", "text"), STATES)
def test_a_state_is_told_by_sign_and_by_word(changes, text):
    assert plain(state_of(picture(devices=[device(**changes)]).devices[0], UNICODE)) == text


ANN, BOB = holder(user="ann"), holder(user="bob")
WHO = [
    ({"state": "active", "owners": [ANN]}, "ann"),
    ({"state": "active", "owners": [ANN, BOB, BOB]}, "ann +1"),
    ({"state": "active", "owners": [holder(namespace="ml", pod="train-0")]}, "ml/train-0"),
    ({"state": "active", "owners": [holder(job="7", user="ann")]}, "job 7 ann"),
    ({"state": "active", "owners": [holder(job="7")]}, "job 7"),
    ({"state": "active", "owners": [holder(container="ollama")]}, "ollama"),
    ({"state": "active", "owners": [holder(owner_kind="unknown")]}, "owner not known"),
    ({"state": "active", "owners": [holder(user="gone", present=False)]}, "owner not known"),
    ({"state": "held", "owners": [holder(user="ann", held=7620.0)]}, "ann for 2h07m"),
    ({"state": "held", "owners": [ANN | {"held_seconds": None}]}, "ann"),
    ({"state": "idle"}, "nobody"),
    ({"state": "unknown"}, "-"),
    ({"state": None, "holds_processes": False}, "see its instances"),
    ({"up": False, "owners": [ANN]}, "does not answer"),
]


@pytest.mark.parametrize(("changes", "text"), WHO)
def test_who_has_a_gpu_is_told_in_a_word(changes, text):
    assert plain(who(picture(devices=[device(**changes)]).devices[0])) == text


def test_what_is_absent_of_a_process_is_a_dash_and_not_zero():
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
    line = row_line(place(process_columns(UNICODE, Order(), NOW), [row], None), row, UNICODE)
    assert plain(line).split() == ["0", "5", *["-"] * 12]


def test_processes_that_are_told_by_count_say_how_many():
    row = rows(process(None, count=44, memory_bytes=3 * GIB, command=""))[0]
    line = row_line(place(process_columns(UNICODE, Order(), NOW), [row], None), row, UNICODE)
    assert "44 more" in plain(line)
    assert "3.0G" in plain(line)


def test_the_age_of_a_process_that_is_older_than_its_first_sight_says_so():
    row = rows(process(start_unix=NOW - 90, start_exact=False))[0]
    line = row_line(place(process_columns(UNICODE, Order(), NOW), [row], None), row, UNICODE)
    assert plain(line).endswith(">1m30s")
