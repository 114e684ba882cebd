"""A receipt in a few sentences, and the mean utilization over the time of an allocation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.receipt.content import ReceiptGpu
from gpuledger.ledger.report.receipt.sentence import mean_utilization, receipt_sentence
from receipt_helpers import HOUR, amounts, gpu_row, receipt, unused_gpu


def advice(text: str) -> dict[str, object]:
    return {"rule": "r", "text": text, "evidence": [], "gpus": [], "values": {}, "saving": None}


def test_it_says_what_was_used_then_how_then_what_to_change() -> None:
    made = receipt(
        "n1",
        gpu_row("n1", "0"),
        unused_gpu("n1", "1"),
        total=amounts(gpu_microseconds=2 * HOUR * 1_000_000, cost="4.2100000000"),
        advice=[advice("GPU 1 was never used.")],
    )
    assert receipt_sentence(made) == (
        "Had 2 GPUs (NVIDIA H100 80GB HBM3) for 1h: 2.00 GPU-hours, 0.700 kWh, 4.21 EUR. "
        "GPU 0: SM 50 %, memory 40.0 GiB of 80.0 GiB at most; GPU 1: SM 0 %. GPU 1 was never used."
    )


def test_energy_that_was_apportioned_has_its_bounds() -> None:
    total = amounts(measured_millijoules=1_800_000_000, high_millijoules=3_600_000_000)
    assert "0.700 kWh (between 0.500 kWh and 1.000 kWh)" in receipt_sentence(receipt(total=total))


def test_what_is_not_known_is_left_out() -> None:
    total = amounts(millijoules=None, cost=None)
    made = receipt("n1", gpu_row(sm_known_seconds=0.0, memory_peak_bytes=None, model=""), total=total)
    assert receipt_sentence(made) == "Had 1 GPU for 1h: 1.00 GPU-hours."


def test_instances_are_not_called_gpus() -> None:
    part = gpu_row(instance="2_0", profile="3g.40gb")
    assert receipt_sentence(receipt("n1", part)).startswith("Had 1 MIG instance (")
    assert receipt_sentence(receipt("n1", part, gpu_row(index="1"))).startswith("Had 2 devices (")


@given(st.integers(0, 1200), st.lists(st.text(min_size=1, max_size=300), max_size=6))
def test_it_never_exceeds_the_limit_and_has_only_whole_sentences(limit: int, texts: list[str]) -> None:
    made = receipt(advice=[advice(text) for text in texts])
    found = receipt_sentence(made, limit)
    assert len(found.encode()) <= limit
    whole = receipt_sentence(receipt(), 1024)
    assert found == "" or whole.startswith(found) or found.startswith(whole)


MEANS = {
    "half of the time at full use": (gpu_row(sm_seconds=1800.0, sm_known_seconds=3600.0), 0.5),
    "a process in a quarter of the time": (
        gpu_row(sm_seconds=810.0, sm_known_seconds=900.0, resident_seconds=900.0),
        0.225,
    ),
    "a tenth of the resident time is not sampled": (
        gpu_row(sm_seconds=1620.0, sm_known_seconds=3240.0),
        0.5,
    ),
    "an instance of half a GPU": (
        gpu_row(sm_share=0.5, resident_seconds=900.0, sm_seconds=900.0, sm_known_seconds=1800.0),
        0.25,
    ),
    "no process": (unused_gpu(), 0.0),
    "no process, but not all was seen": (unused_gpu(unknown_seconds=10.0), None),
    "a process without samples": (gpu_row(sm_seconds=0.0, sm_known_seconds=0.0), None),
    "not there at all": (gpu_row(present_seconds=0), None),
}


def test_a_little_is_never_shown_as_nothing() -> None:
    total = amounts(gpu_microseconds=9_000_000, millijoules=12_000, cost="0.0006000000")
    text = receipt_sentence(receipt("n1", gpu_row(), total=total))
    assert "0.0025 GPU-hours, 12 J" in text
    assert "0.0006 EUR" in text


@pytest.mark.parametrize(("gpu", "mean"), MEANS.values(), ids=MEANS)
def test_the_mean_counts_time_without_a_process_as_unused(gpu: ReceiptGpu, mean: float | None) -> None:
    assert mean_utilization(gpu) == (None if mean is None else pytest.approx(mean))


def test_a_little_use_is_not_shown_as_none() -> None:
    assert "SM <1 %" in receipt_sentence(receipt("n1", gpu_row(sm_seconds=1.0)))
