"""Ticks that are far apart, and Gpus that are lost, hang or are gone: which of their time is watched."""

from __future__ import annotations

from fractions import Fraction

import pytest

from builders import gpu, reading
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.model.snapshot import Snapshot, SourceInfo
from time_helpers import UNIX, Books, Has, Runs, Truth, assert_time_balances, in_seconds, pod, user

GPU = gpu(0, sm_count=132)
OTHER = gpu(1)
A = pod("A")
UA = user("A")
WHOLE = Fraction(1)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(7.0, 7.5, "A 60, unobserved 300"), (7.0, 107.0, "A 60"), (None, None, "A 60"), (None, 7.0, "A 60")],
    ids=["a hang is watched", "a suspend is not", "nor a gap of an unknown kind", "nor one with a restart"],
)
def test_a_gap_of_more_than_a_minute(before: float | None, after: float | None, expected: str) -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)]), Books()
    for at in [*range(31), *range(330, 361)]:
        books.post(truth.snapshot(at, at - 1), before if at < 330 else after)
    assert_time_balances(books)
    assert books.seconds(ALLOCATION) == in_seconds(expected)


def test_a_pause_of_more_than_a_minute_is_no_hang() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)]), Books()
    for at in [*range(31), *range(330, 361)]:
        if at == 330:
            books.ledger.interrupt()
        books.post(truth.snapshot(at, at - 1), 0.0)
    assert books.seconds(ALLOCATION) == in_seconds("A 60")


@pytest.mark.parametrize(
    ("length", "suspended", "interval", "expected"),
    [
        (21, 20, 1, "A 40"),
        (60, 59, 1, "A 40"),
        (200, 199, 1, "A 40"),
        (200, 100, 120, "A 40"),
        (21, 0, 1, "A 61"),
        (21, 1.5, 1, "A 61"),
        (61, 0, 1, "A 40, unobserved 61"),
        (61, 0, 30, "A 40, unobserved 61"),
        (60.5, 0, 60, "A 40"),
        (61, 0, 59.5, "A 40"),
        (80, 0, 80, "A 40"),
        (120.5, 0, 120, "A 40"),
        (300, 0, 300, "A 40"),
        (180, 0, 120, "A 40"),
        (181, 0, 120, "A 40, unobserved 181"),
        (3661, 0, 3600, "A 40, unobserved 3661"),
        (300, 0, None, "A 40, unobserved 300"),
    ],
)
def test_a_gap_is_watched_unless_it_was_planned_or_a_suspend(
    length: float, suspended: float, interval: float | None, expected: str
) -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)]), Books()
    for at in range(21):
        books.post(truth.snapshot(at, at - 1), 7.0, interval)
    for at in range(21):
        books.post(truth.snapshot(20 + length + at, 19 + length + at), 7.0 + suspended, interval)
    assert_time_balances(books)
    assert books.seconds(ALLOCATION) == in_seconds(expected)


def test_ticks_that_are_planned_more_than_a_minute_apart_watch_nothing() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)]), Books()
    for at in range(0, 36_001, 300):
        books.post(truth.snapshot(at, at - 300), 7.0, 300.0)
    assert books.ledger.watched == {GPU.uuid: 0}


def test_a_loss_is_watched_at_every_interval() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)], lost=[(600, 3600)]), Books()
    for at in range(0, 7201, 300):
        books.post(truth.snapshot(at, at - 300), 7.0, 300.0)
    assert books.seconds(ALLOCATION) == in_seconds("down 3000")


def test_a_suspend_during_a_loss_is_not_watched() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)], lost=[(10, 400)]), Books()
    for at in [*range(21), *range(120, 141)]:
        books.post(truth.snapshot(at, at - 1), 7.0 if at < 30 else 106.0)
    assert books.seconds(ALLOCATION) == in_seconds("A 10, down 30")


def test_a_hang_while_the_gpu_is_lost_is_a_loss() -> None:
    truth, books = Truth(GPU, [Has(A, WHOLE)], [Runs(A)], lost=[(20, 400)]), Books()
    for at in [*range(31), *range(330, 401)]:
        books.post(truth.snapshot(at, at - 1), 0.0)
    assert books.seconds(ALLOCATION) == in_seconds("A 20, down 380")


def _empty(at: float, *, boot: str = "boot", failed: bool = False) -> Snapshot:
    readings = (reading(OTHER),)
    return Snapshot(UNIX + at, at, SourceInfo("test"), readings, boot_id=boot, devices_failed=failed)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("boot", "down"), [("boot", 40), ("later", 20)])
def test_a_loss_ends_with_a_boot_without_the_gpu(restarts: bool, boot: str, down: int) -> None:
    truth, books = Truth(GPU, lost=[(10, 1000)]), Books()
    for at in range(31):
        books.post(truth.snapshot(at, at - 1))
    if restarts:
        books.restart()
        # The time until the first tick is not watched.
        books.post(_empty(30, boot=boot))
    for at in range(31, 51):
        books.post(_empty(at, boot=boot))
    expected = down + (boot == "later" and not restarts)
    assert books.seconds(ALLOCATION, GPU.uuid) == in_seconds(f"idle 10, down {expected}")


def test_a_gpu_that_cannot_be_listed_is_awaited_for_a_minute() -> None:
    truth, books = Truth(GPU, [], [Runs(UA)]), Books()
    for at in range(61):
        hidden = 10 < at < 40
        books.post(_empty(at, failed=True) if hidden else truth.snapshot(at, at - 1))
    assert books.seconds(RESIDENCE, GPU.uuid) == in_seconds("A 60")


def test_a_gpu_that_is_gone_is_no_longer_watched() -> None:
    truth, books = Truth(GPU, [], [Runs(UA)]), Books()
    for at in range(11):
        books.post(truth.snapshot(at, at - 1))
    for at in range(11, 31):
        books.post(_empty(at))
    assert books.ledger.watched[GPU.uuid] == 10_000_000


def test_pending_time_of_a_gpu_that_is_gone_is_posted() -> None:
    truth, books = Truth(GPU, [], [Runs(UA)], unlisted=[(10, 100)]), Books()
    for at in range(31):
        books.post(truth.snapshot(at, at - 1))
    books.post(_empty(31))
    assert books.seconds(RESIDENCE, GPU.uuid) == in_seconds("A 10, unobserved 20")
