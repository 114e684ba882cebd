"""Bars and idle seconds from sets of seconds: each second once, whatever the cells."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.party import Party, party_of
from gpuledger.ledger.report.receipt.content import BarScale
from gpuledger.ledger.report.receipt.timeline import MOST_BARS, IdleSeconds, ReceiptTimeline, choose_bars
from gpuledger.ledger.report.tally import TimeEntry
from gpuledger.model.workload import Workload

ORIGIN = 1_795_860_000
QUARTER = 900
JOB = party_of("GPU-1", Workload("slurm", user="dan", job="4711"), "python3")


def seconds(*spans: tuple[int, int]) -> int:
    """The seconds from each first until before each last."""
    return sum(((1 << last - first) - 1) << first for first, last in spans)


@pytest.mark.parametrize(
    ("present", "busy", "unknown", "expected"),
    [
        # Wait, gap, tail; unclear wait, unclear tail; first and last use.
        ([(0, 100)], [], [], (100, 0, 0, False, False, None, None)),
        ([(0, 100)], [(0, 100)], [], (0, 0, 0, False, False, 0, 99)),
        ([(0, 100)], [(20, 30)], [], (20, 0, 70, False, False, 20, 29)),
        ([(0, 100)], [(20, 30), (60, 61)], [], (20, 30, 39, False, False, 20, 60)),
        ([(0, 100)], [(20, 30)], [(5, 6)], (19, 0, 70, True, False, 20, 29)),
        ([(0, 100)], [(20, 30)], [(99, 100)], (20, 0, 69, False, True, 20, 29)),
        # An unknown second between two uses is no idle one, and makes nothing unclear.
        ([(0, 100)], [(20, 30), (60, 61)], [(40, 50)], (20, 20, 39, False, False, 20, 60)),
        ([(0, 10), (50, 100)], [(60, 70)], [], (20, 0, 30, False, False, 60, 69)),
    ],
)
def test_idle_seconds_by_place(
    present: list[tuple[int, int]],
    busy: list[tuple[int, int]],
    unknown: list[tuple[int, int]],
    expected: object,
) -> None:
    idle = IdleSeconds()
    idle.add(0, seconds(*present), seconds(*busy), seconds(*unknown))
    assert astuple(idle) == expected


def test_a_later_use_makes_an_idle_end_a_gap() -> None:
    idle = IdleSeconds()
    idle.add(0, seconds((0, 900)), seconds((0, 10)), 0)
    idle.add(900, seconds((0, 900)), 0, 0)
    assert (idle.gap, idle.tail) == (0, 890 + 900)
    idle.add(1800, seconds((0, 900)), seconds((890, 900)), 0)
    assert (idle.gap, idle.tail, idle.last_active) == (890 + 900 + 890, 0, 2699)


states = st.lists(st.sampled_from("-.bu"), min_size=1, max_size=60)


@given(states, st.integers(1, 60))
def test_idle_seconds_do_not_depend_on_the_cells(text: list[str], size: int) -> None:
    def read(step: int) -> IdleSeconds:
        idle = IdleSeconds()
        for place in range(0, len(text), step):
            part = text[place : place + step]
            sets = [
                sum(1 << at for at, state in enumerate(part) if state in which) for which in (".bu", "b", "u")
            ]
            idle.add(place, *sets)
        return idle

    whole = read(len(text))
    assert read(size) == whole
    idle = text.count(".")
    assert whole.wait + whole.gap + whole.tail == idle


def entry(quarter: int, party: Party = JOB, **sets: int) -> TimeEntry:
    found = {"resident": 0, "held": 0, "busy": 0, "allocated": 0, "unknown": 0, **sets}
    return TimeEntry(
        quarter,
        party,
        found["resident"],
        found["held"],
        found["busy"],
        found["allocated"],
        1,
        found["unknown"],
    )


def test_an_allocation_and_the_processes_on_it_are_one_time() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=300, count=3))
    quarter = ORIGIN // QUARTER
    allocated = seconds((0, 900))
    timeline.add(entry(quarter, allocated=allocated, held=seconds((0, 300))), "job")
    timeline.add(
        entry(quarter, resident=seconds((300, 900)), busy=seconds((600, 900)), held=seconds((300, 600))),
        "job",
    )
    timeline.settle()
    line = timeline.devices["GPU-1"]
    assert line.bars["present"] == [300, 300, 300]
    assert line.bars["active"] == [0, 0, 300]
    assert (line.wait, line.gap, line.tail, line.present) == (600, 0, 0, 900)
    assert (line.begins, line.ends, line.first_active) == (ORIGIN, ORIGIN + 900, ORIGIN + 600)


def test_two_processes_at_once_are_one_time() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    quarter = ORIGIN // QUARTER
    for first in (0, 300):
        both = seconds((first, first + 600))
        timeline.add(entry(quarter, resident=both, busy=both), "job")
    timeline.settle()
    assert timeline.devices["GPU-1"].bars["active"] == [900]


def test_owners_of_one_device_wait_each_for_their_own_use() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    quarter = ORIGIN // QUARTER
    first, second = seconds((0, 400)), seconds((400, 900))
    timeline.add(entry(quarter, resident=first, held=seconds((0, 100)), busy=seconds((100, 400))), "a")
    timeline.add(entry(quarter, resident=second, held=seconds((400, 600)), busy=seconds((600, 900))), "b")
    timeline.settle()
    assert timeline.devices["GPU-1"].wait == 300


def test_a_device_is_not_idle_while_another_owner_of_the_receipt_uses_it() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    quarter, all_of_it = ORIGIN // QUARTER, seconds((0, 900))
    timeline.add(entry(quarter, resident=all_of_it, busy=all_of_it), "training")
    timeline.add(entry(quarter, resident=all_of_it, busy=seconds((100, 101), (800, 801))), "notebook")
    timeline.settle()
    line = timeline.devices["GPU-1"]
    assert (line.wait, line.gap, line.tail) == (0, 0, 0)


def test_a_second_in_which_two_owners_are_idle_counts_once() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    for owner in ("a", "b"):
        used = seconds((0, 10), (890, 900))
        timeline.add(entry(ORIGIN // QUARTER, resident=seconds((0, 900)), busy=used), owner)
    timeline.settle()
    assert timeline.devices["GPU-1"].gap == 880


@given(st.lists(states, min_size=1, max_size=3))
def test_idle_seconds_of_all_owners_are_idle_seconds_of_the_device(owners: list[list[str]]) -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    busy = present = 0
    for number, text in enumerate(owners):
        here, used, unknown = (
            sum(1 << at for at, state in enumerate(text) if state in which) for which in (".bu", "b", "u")
        )
        busy, present = busy | used, present | here
        timeline.add(entry(ORIGIN // QUARTER, resident=here, busy=used, unknown=unknown), f"owner {number}")
    timeline.settle()
    lines = timeline.devices.values()
    counted = sum(one.wait + one.gap + one.tail for line in lines for one in line.owners.values())
    assert counted <= (present & ~busy).bit_count()


def test_an_owner_that_never_used_it_waits_for_nothing() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    timeline.add(entry(ORIGIN // QUARTER, allocated=seconds((0, 900)), held=seconds((0, 900))), "a")
    timeline.settle()
    line = timeline.devices["GPU-1"]
    assert (line.wait, line.tail, line.first_active, line.present) == (0, 0, None, 900)


def test_seconds_from_before_activity_was_kept_are_unknown() -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN, step_seconds=900, count=1))
    here = seconds((0, 900))
    old = TimeEntry(ORIGIN // QUARTER, JOB, here, 0, 0, 0, 1, 0, old=here)
    timeline.add(old, "job")
    timeline.settle()
    assert timeline.devices["GPU-1"].bars["unknown"] == [900]


@given(st.floats(0, 4e9), st.floats(0, 400 * 86_400))
def test_bars_are_round_few_and_cover_the_time(begins: float, length: float) -> None:
    scale = choose_bars(begins, begins + length)
    first, last = scale["begins"], scale["begins"] + scale["count"] * scale["step_seconds"]
    assert 1 <= scale["count"] <= MOST_BARS
    assert first <= begins
    assert begins + length < last
    assert first % scale["step_seconds"] == 0


@given(st.integers(0, 3000), st.integers(1, 700), st.integers(1, MOST_BARS), st.integers(0, 2**2700 - 1))
def test_every_second_is_in_one_bar(begins: int, step: int, count: int, bits: int) -> None:
    timeline = ReceiptTimeline(BarScale(begins=ORIGIN + begins, step_seconds=step, count=count))
    for place in range(3):
        cell = bits >> place * QUARTER & (1 << QUARTER) - 1
        timeline.add(entry(ORIGIN // QUARTER + place, resident=cell, busy=cell), "job")
    timeline.settle()
    found = timeline.devices.get("GPU-1")
    assert sum(found.bars["active"] if found else []) == bits.bit_count()
