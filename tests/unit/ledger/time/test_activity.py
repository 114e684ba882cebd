"""Time of a Gpu or an instance without an owner: idle, or active for nobody that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance
from gpuledger.model import quantities as q
from gpuledger.model.process import UtilizationSample
from gpuledger.model.session import RESIDENCE
from time_helpers import UNIX, Books, Runs, Truth, in_seconds, user

GPU = gpu(0, sm_count=132)
PARTS = (instance(GPU, 1, index=0, sm_count=66), instance(GPU, 2, index=1, sm_count=33))
UA = user("A")


@pytest.mark.parametrize(
    ("since", "expected"),
    [(0, "A 30, unattributed 15, idle 15"), (31, "A 30, unattributed 7.5, idle 22.5")],
)
def test_an_active_instance_without_an_owner_is_unattributed(since: int, expected: str) -> None:
    books = Books()
    for at in range(61):
        seen = Truth(GPU, [], [Runs(UA, device=PARTS[0])], PARTS).snapshot(at, at - 1)
        busy = [
            replace(one, values={q.ENGINE_ACTIVITY: 0.5}) if one.device == PARTS[1] and at >= since else one
            for one in seen.readings
        ]
        books.post(replace(seen, readings=tuple(busy)))
    assert books.seconds(RESIDENCE) == in_seconds(expected)


def test_a_gpu_without_an_owner_is_unattributed_from_when_it_is_active() -> None:
    books = Books()
    for at in range(61):
        books.post(Truth(GPU, busy=at > 30).snapshot(at, at - 1))
    assert books.seconds(RESIDENCE) == in_seconds("idle 30, unattributed 30")


def test_graphics_are_an_owner_from_when_they_work() -> None:
    books = Books()
    for at in range(61):
        working = Runs(UA, types="G", sm=0.3 if at > 30 else 0.0)
        books.post(Truth(GPU, [], [working]).snapshot(at, at - 1))
    assert books.seconds(RESIDENCE) == in_seconds("idle 30, A 30")


@pytest.mark.parametrize("epoch", [0.0, UNIX], ids=["since boot", "since 1970"])
def test_time_is_unattributed_while_samples_name_a_process_in_no_list(epoch: float) -> None:
    truth, books = Truth(GPU), Books()
    for at in range(61):
        seen = truth.snapshot(at, at - 1)
        # The driver repeats its last sample.
        last = min(at, 40) - 0.5
        known = (UtilizationSample(9, round((epoch + last) * 1e6), 0.5, 0.0, 0.0, 0.0),) if at > 20 else ()
        books.post(replace(seen, readings=tuple(replace(one, samples=known) for one in seen.readings)))
    assert books.seconds(RESIDENCE) == in_seconds("idle 40, unattributed 20")
