"""Answers that are kept while all that they rest on is the very same objects."""

from __future__ import annotations

from builders import gpu
from gpuledger.model.devices import Gpu
from gpuledger.workloads.device_index import Kept, same_objects


def test_the_same_objects_give_the_same_answer() -> None:
    kept = Kept(lambda *inputs: list(inputs))
    one, other = object(), object()
    first = kept(one, other)
    assert kept(one, other) is first
    assert kept(other, one) == [other, one]
    assert kept(other) == [other]


def test_a_gpu_that_was_listed_anew_is_another_object_though_equal() -> None:
    before, after = gpu(0), Gpu(gpu(0).uuid, 5)
    assert before == after
    assert not same_objects((before,), (after,))
    kept = Kept(lambda device: device.index)
    assert (kept(before), kept(after)) == (0, 5)


def test_an_answer_is_not_taken_for_another_after_a_failure() -> None:
    kept = Kept(lambda number: 1 // number)
    assert kept(1) == 1
    try:
        kept(0)
    except ZeroDivisionError:
        assert kept(1) == 1
