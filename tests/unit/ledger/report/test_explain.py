"""Merging of consecutive, similar intervals in an explanation, and their costs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.explain_intervals import (
    Interval,
    OtherShare,
    OtherTime,
    TimeInterval,
    merge_intervals,
    merge_time_intervals,
)
from gpuledger.ledger.report.explain_lists import EnergySums


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
        interval(60, 90, rate=Rate("GPU-0", "any", Fraction(1, 3))),
    ],
    ids=["a gap", "another method", "an hour without detail", "alone", "with another one", "another price"],
)
def test_different_intervals_are_not_merged(then: Interval) -> None:
    assert len(list(merge_intervals([interval(0, 60), then]))) == 2


def test_an_interval_of_another_gpu_in_between_does_not_prevent_the_merge() -> None:
    elsewhere = interval(0, 60)._replace(gpu="GPU-1")
    assert [one.gpu for one in merge_intervals([interval(0, 60), elsewhere, interval(60, 90)])] == [
        "GPU-1",
        "GPU-0",
    ]


def test_an_interval_that_ended_long_ago_comes_before_later_ones() -> None:
    hours = [interval(hour * 3600, (hour + 1) * 3600) for hour in range(3)]
    elsewhere = interval(0, 60)._replace(gpu="GPU-1")
    found = merge_intervals(iter([hours[0], elsewhere, *hours[1:], interval(20_000, 20_060)]))
    assert [(one.begins, one.ends) for one in found] == [(0, 60), (0, 10_800), (20_000, 20_060)]


def test_a_bill_and_its_bounds_are_the_sums_of_its_intervals() -> None:
    sums = EnergySums()
    for one in (interval(0, 60), interval(60, 90, method="measured", others=())):
        sums.add(one)
    assert (sums.millijoules, sums.measured, sums.high) == (20, 10, 40)


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


RATE = Rate("GPU-0", "any", Fraction(2))


def time_interval(begins: float, ends: float, **more: object) -> TimeInterval:
    values: dict[str, object] = {
        "gpu": "0 GPU-0",
        "instance": "",
        "microseconds": 10,
        "watched": 30,
        "others": (OtherTime("b", 20),),
        "rate": RATE,
    }
    return TimeInterval(begins, ends, **{**values, **more})  # type: ignore[arg-type]  # (free-form)


def test_consecutive_time_is_merged_with_summed_amounts() -> None:
    instance = time_interval(0, 900, instance="1_0", microseconds=7)
    (other, one) = merge_time_intervals(
        [time_interval(0, 900, estimated=5), instance, time_interval(900, 1000, others=(OtherTime("b", 1),))]
    )
    assert one == TimeInterval(0, 1000, "0 GPU-0", "", 20, 60, 5, (OtherTime("b", 21),), rate=RATE)
    assert other == instance


@pytest.mark.parametrize(
    "then",
    [
        time_interval(901, 1000),
        time_interval(900, 1000, exact=False),
        time_interval(900, 1000, others=()),
        time_interval(900, 1000, instance="1_0"),
        time_interval(900, 1000, gpu="1 GPU-1"),
        time_interval(900, 1000, rate=RATE._replace(price=Fraction(3))),
    ],
    ids=["a gap", "a folded hour", "alone", "another instance", "another GPU", "another price"],
)
def test_different_time_is_not_merged(then: TimeInterval) -> None:
    assert len(list(merge_time_intervals([time_interval(0, 900), then]))) == 2
