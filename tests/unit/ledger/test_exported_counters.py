"""Counters for `increase()`: exported as 0 at first, then in full for as long, and ended only after that."""

from __future__ import annotations

import pytest

from gpuledger.ledger.exported_counters import ExportedCounters

LABELS = ("GPU-0", "process", "measured")
BORN = 1000.0


def series(hold: float, retention: float = 0.0) -> ExportedCounters:
    """One series with 5 J and an owner that left at once."""
    held = ExportedCounters(hold, retention)
    held.add(LABELS, 5000, BORN, measured=3000)
    return held


@pytest.mark.parametrize(("after", "expected"), [(0.0, 0), (29.9, 0), (30.0, 5000), (300.0, 5000)])
def test_a_series_is_exported_in_full_once_its_hold_ends(after: float, expected: int) -> None:
    held = series(hold=30.0)
    ((labels, millijoules, _),) = held.exported(BORN + after)
    assert (labels, millijoules) == (LABELS, expected)
    assert held.pending(BORN + after) == ({} if expected else {"GPU-0": 5000})


@pytest.mark.parametrize(
    ("what", "hold", "retention", "ends_after"),
    [
        ("retention is longer", 30.0, 300.0, 300.0),
        ("exported in full for as long as it was held", 30.0, 10.0, 60.0),
        ("no hold and no retention: with the next tick", 0.0, 0.0, 0.1),
    ],
)
def test_a_series_ends_after_its_export_and_its_retention(
    what: str, hold: float, retention: float, ends_after: float
) -> None:
    held = series(hold, retention)
    assert held.end(BORN + ends_after - 0.1) == [], what
    assert held.end(BORN + ends_after) == [LABELS], what
    assert held.closed == {"GPU-0": 5000}
    assert list(held.exported(BORN + ends_after)) == []


def test_a_series_does_not_end_while_its_owner_is_present() -> None:
    held = series(hold=0.0)
    held.keep_alive(LABELS, BORN + 50.0)
    assert held.end(BORN + 50.0) == []
    assert held.end(BORN + 51.0) == [LABELS]


def test_keeping_an_unknown_series_alive_creates_none() -> None:
    held = ExportedCounters(30.0, 0.0)
    held.keep_alive(LABELS, BORN)
    assert not held.series


def test_replacing_a_series_closes_it_and_restarts_its_labels_at_zero() -> None:
    held = series(hold=0.0)
    held.replace(LABELS)
    held.add(LABELS, 70, BORN + 1.0)
    assert list(held.exported(BORN + 1.0)) == [(LABELS, 70, 0)]
    assert held.closed == {"GPU-0": 5000}


def test_the_store_gets_the_number_of_an_ended_series_if_it_has_one() -> None:
    held = ExportedCounters(0.0, 0.0)
    for number, stored in ((0, False), (7, True), (8, False)):
        labels = ("GPU-0", str(number))
        one = held.open(labels, BORN)
        one.number, one.stored = number, stored
    held.end(BORN + 1.0)
    assert held.dropped == {7: True, 8: False}
    assert not held.changed


def test_a_longer_hold_keeps_what_was_exported_and_holds_the_rest() -> None:
    held = ExportedCounters(30.0, 300.0)
    held.add(LABELS, 5000, BORN)
    later = ("GPU-0", "process", "later")
    held.add(later, 70, BORN + 20.0)
    for hold, after, expected in [
        (30.0, 30.0, [5000, 0]),
        (70.0, 31.0, [5000, 0]),
        (70.0, 89.0, [5000, 0]),
        (70.0, 90.0, [5000, 70]),
        (900.0, 91.0, [5000, 70]),
    ]:
        held.hold = hold
        assert [amount for _, amount, _ in held.exported(BORN + after)] == expected
        assert sum(held.pending(BORN + after).values()) == 5070 - sum(expected)
