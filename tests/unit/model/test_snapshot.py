"""What a Snapshot derives from its Readings."""

from __future__ import annotations

import pytest

from builders import gpu, instance, reading, snapshot
from gpuledger.model import quantities as q

A, B = gpu(0), gpu(1)


@pytest.mark.parametrize(
    ("cut", "shared"),
    [
        ([], {}),
        ([(A, 1, 0), (A, 2, 0)], {}),
        ([(A, 1, 0), (A, 1, 1), (A, 1, 2), (A, 2, 0)], {"0:1_1": "0:1_0", "0:1_2": "0:1_0"}),
        # The driver lists them in any order, and the first one may be gone.
        ([(A, 1, 3), (A, 1, 1)], {"0:1_3": "0:1_1"}),
        # GPU instances of the same number on two GPUs.
        ([(A, 1, 0), (B, 1, 0), (B, 1, 1)], {"1:1_1": "1:1_0"}),
    ],
    ids=["no MIG", "one each", "one is split in three", "the first is gone", "two GPUs"],
)
def test_compute_instances_share_the_memory_of_their_lowest(cut, shared):
    instances = [instance(card, gi, ci) for card, gi, ci in cut]
    seen = snapshot(reading(A), reading(B), *(reading(each) for each in instances))

    def name(each):
        return f"{each.gpu.index}:{each.instance}"

    assert {name(each): name(first) for each, first in seen.memory_shared_with.items()} == shared


def test_only_quantities_of_the_gpu_instance_are_those_of_the_lowest():
    values = {q.MEMORY_USED: 5.0, q.DRAM_ACTIVITY: 0.5, q.SM_ACTIVITY: 0.25}
    first, second = (reading(instance(A, 1, ci), values=values) for ci in (0, 1))
    seen = snapshot(reading(A), first, second)
    assert [seen.get(first, quantity) for quantity in values] == [5.0, 0.5, 0.25]
    assert [seen.get(second, quantity) for quantity in values] == [None, None, 0.25]


@pytest.mark.parametrize(
    ("name", "supported", "covers_module"),
    [
        ("NVIDIA GH200 480GB", True, True),
        ("NVIDIA GB200", True, True),
        ("NVIDIA GB300", True, True),
        # Without a counter, power is integrated: that of the GPU.
        ("NVIDIA GH200 480GB", False, False),
        ("NVIDIA H200", True, False),
        ("NVIDIA B200", True, False),
        ("NVIDIA H100 80GB HBM3", True, False),
    ],
)
def test_the_energy_counter_of_a_superchip_covers_its_module(name, supported, covers_module):
    card = gpu(0, name=name)
    assert reading(card, supported={"energy": supported}).counts_module_energy is covers_module
    assert not reading(instance(card, 1)).counts_module_energy
