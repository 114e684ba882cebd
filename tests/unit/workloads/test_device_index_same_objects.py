"""Caching by object identity."""

from __future__ import annotations

from builders import gpu
from gpuledger.model.devices import Gpu
from gpuledger.workloads.device_index import IdentityCache, same_objects


def test_the_same_inputs_give_the_same_result_object() -> None:
    cache = IdentityCache(lambda *inputs: list(inputs))
    one, other = object(), object()
    first = cache(one, other)
    assert cache(one, other) is first
    assert cache(other, one) == [other, one]
    assert cache(other) == [other]


def test_a_gpu_listed_again_is_equal_but_another_object() -> None:
    before, after = gpu(0), Gpu(gpu(0).uuid, 5)
    assert before == after
    assert not same_objects((before,), (after,))
    cache = IdentityCache(lambda device: device.index)
    assert (cache(before), cache(after)) == (0, 5)


def test_an_exception_keeps_the_cached_result() -> None:
    cache = IdentityCache(lambda number: 1 // number)
    assert cache(1) == 1
    try:
        cache(0)
    except ZeroDivisionError:
        assert cache(1) == 1
