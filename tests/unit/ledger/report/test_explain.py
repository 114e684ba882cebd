"""Intervals of an explanation: those that follow each other and are of one kind are told as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.ledger.report.explain import Explanation, Interval, With, merged


def interval(begins: float, ends: float, **more: object) -> Interval:
    told: dict[str, object] = {
        "method": "activity",
        "millijoules": 10,
        "gpu_millijoules": 30,
        "idle": 3,
        "unattributed": 2,
        "others": (With("b", 15),),
    }
    return Interval(begins, ends, "GPU-0", "", **{**told, **more})  # type: ignore[arg-type]  # (free-form)


def test_what_follows_without_a_gap_is_one_with_the_sums_of_both() -> None:
    (one,) = merged([interval(0, 60, exact=False), interval(60, 90, exact=False, others=(With("b", 1),))])
    assert one == Interval(0, 90, "GPU-0", "", "activity", 20, 60, 6, 4, (With("b", 16),), exact=False)


@pytest.mark.parametrize(
    "then",
    [
        interval(61, 90),
        interval(60, 90, method="equal"),
        interval(60, 90, exact=False),
        interval(60, 90, others=()),
        interval(60, 90, others=(With("c", 15),)),
    ],
    ids=["a gap", "another method", "an hour without detail", "alone", "with another one"],
)
def test_what_differs_is_told_apart(then: Interval) -> None:
    assert len(merged([interval(0, 60), then])) == 2


def test_another_gpu_in_between_does_not_part_them() -> None:
    elsewhere = replace(interval(0, 60), gpu="GPU-1")
    assert [one.gpu for one in merged([interval(0, 60), elsewhere, interval(60, 90)])] == ["GPU-0", "GPU-1"]


def test_a_bill_and_its_bounds_are_the_sums_of_its_intervals() -> None:
    found = Explanation("a", [interval(0, 60), interval(60, 90, method="measured", others=())])
    assert (found.millijoules, found.measured, found.high) == (20, 10, 40)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("measured", "alone on the whole GPU, so the counter is its own"),
        ("equal", "no engine time was told, so it was split by time on the GPU"),
        ("activity", "shared: split by engine time, and the idle power, where it is known, equally"),
    ],
)
def test_why_is_said_in_one_sentence(method: str, words: str) -> None:
    assert interval(0, 1, method=method).why == words
