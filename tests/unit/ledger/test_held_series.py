"""Counters for `increase()`: told as 0 at first, then in full for as long, and ended only after that."""

from __future__ import annotations

import pytest

from gpuledger.ledger.held_series import HeldSeries

LABELS = ("GPU-0", "process", "measured")
BORN = 1000.0


def series(hold: float, retention: float = 0.0) -> HeldSeries:
    """One, born with 5 J of an owner who went at once."""
    held = HeldSeries(hold, retention)
    held.add(LABELS, 5000, BORN, measured=3000)
    return held


@pytest.mark.parametrize(("after", "expected"), [(0.0, 0), (29.9, 0), (30.0, 5000), (300.0, 5000)])
def test_what_is_held_back_is_told_from_the_end_of_its_time_on(after: float, expected: int) -> None:
    held = series(hold=30.0)
    ((labels, millijoules, _),) = held.told(BORN + after)
    assert (labels, millijoules) == (LABELS, expected)
    assert held.pending(BORN + after) == ({} if expected else {"GPU-0": 5000})


@pytest.mark.parametrize(
    ("what", "hold", "retention", "ends_after"),
    [
        ("retention is the longer", 30.0, 300.0, 300.0),
        ("told in full for as long as it was held back", 30.0, 10.0, 60.0),
        ("nothing is held back, nothing retained: with the next tick", 0.0, 0.0, 0.1),
    ],
)
def test_a_series_ends_when_it_has_been_told_and_retained(
    what: str, hold: float, retention: float, ends_after: float
) -> None:
    held = series(hold, retention)
    assert held.end(BORN + ends_after - 0.1) == [], what
    assert held.end(BORN + ends_after) == [LABELS], what
    assert held.closed == {"GPU-0": 5000}
    assert list(held.told(BORN + ends_after)) == []


def test_while_its_owner_lives_a_series_does_not_end() -> None:
    held = series(hold=0.0)
    held.keep_alive(LABELS, BORN + 50.0)
    assert held.end(BORN + 50.0) == []
    assert held.end(BORN + 51.0) == [LABELS]


def test_nobody_keeps_a_series_alive_that_is_not_there() -> None:
    held = HeldSeries(30.0, 0.0)
    held.keep_alive(LABELS, BORN)
    assert not held.series


def test_who_takes_over_the_labels_of_a_series_begins_at_zero_and_it_is_closed() -> None:
    held = series(hold=0.0)
    held.replace(LABELS)
    held.add(LABELS, 70, BORN + 1.0)
    assert list(held.told(BORN + 1.0)) == [(LABELS, 70, 0)]
    assert held.closed == {"GPU-0": 5000}


def test_of_an_ended_series_the_store_is_told_its_number_if_it_has_one() -> None:
    held = HeldSeries(0.0, 0.0)
    for number, stored in ((0, False), (7, True), (8, False)):
        labels = ("GPU-0", str(number))
        one = held.open(labels, BORN)
        one.number, one.stored = number, stored
    held.end(BORN + 1.0)
    assert held.dropped == {7: True, 8: False}
    assert not held.changed
