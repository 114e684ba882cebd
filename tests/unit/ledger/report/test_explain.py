"""Merging of consecutive, similar intervals in an explanation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.ledger.report.explain import Explanation, Interval, OtherShare, merge_intervals


def interval(begins: float, ends: float, **more: object) -> Interval:
    values: dict[str, object] = {
        "method": "activity",
        "millijoules": 10,
        "gpu_millijoules": 30,
        "idle": 3,
        "unattributed": 2,
        "others": (OtherShare("b", 15),),
    }
    return Interval(begins, ends, "GPU-0", "", **{**values, **more})  # type: ignore[arg-type]  # (free-form)


def test_consecutive_intervals_are_merged_with_summed_energy() -> None:
    (one,) = merge_intervals(
        [interval(0, 60, exact=False), interval(60, 90, exact=False, others=(OtherShare("b", 1),))]
    )
    assert one == Interval(0, 90, "GPU-0", "", "activity", 20, 60, 6, 4, (OtherShare("b", 16),), exact=False)


@pytest.mark.parametrize(
    "then",
    [
        interval(61, 90),
        interval(60, 90, method="equal"),
        interval(60, 90, exact=False),
        interval(60, 90, others=()),
        interval(60, 90, others=(OtherShare("c", 15),)),
    ],
    ids=["a gap", "another method", "an hour without detail", "alone", "with another one"],
)
def test_different_intervals_are_not_merged(then: Interval) -> None:
    assert len(merge_intervals([interval(0, 60), then])) == 2


def test_an_interval_of_another_gpu_in_between_does_not_prevent_the_merge() -> None:
    elsewhere = replace(interval(0, 60), gpu="GPU-1")
    assert [one.gpu for one in merge_intervals([interval(0, 60), elsewhere, interval(60, 90)])] == [
        "GPU-0",
        "GPU-1",
    ]


def test_a_bill_and_its_bounds_are_the_sums_of_its_intervals() -> None:
    found = Explanation("a", [interval(0, 60), interval(60, 90, method="measured", others=())])
    assert (found.millijoules, found.measured, found.high) == (20, 10, 40)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("measured", "alone on the whole GPU, so it gets all of the counter's energy"),
        ("equal", "no engine time was reported, so it was split by time on the GPU"),
        ("activity", "shared: split by engine time; idle power, if known, split equally"),
    ],
)
def test_the_reason_of_a_method_is_one_sentence(method: str, words: str) -> None:
    assert interval(0, 1, method=method).why == words
