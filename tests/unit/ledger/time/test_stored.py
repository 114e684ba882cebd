"""The stored time state of a Gpu."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from builders import gpu, instance, process
from gpuledger.ledger.energy.counter import Epoch
from gpuledger.ledger.time.decision import Stretch
from gpuledger.ledger.time.split import ALL_DOWN, GpuFacts, Occupancy, split_seconds
from gpuledger.ledger.time.stored import StoredGpuTime, time_fields, time_from_fields
from gpuledger.model.workload import Allocation
from time_helpers import job, pod

GPU = gpu(0, sm_count=132)
PART = instance(GPU, 1, sm_count=60)
ALLOCATIONS = (
    Allocation(PART, pod("A"), fraction=Fraction(1, 3)),
    Allocation(PART, job("7")),
    Allocation(GPU, pod("B"), fraction=Fraction(1, 4)),
)
RESIDENTS = (process(PART, 5, workload=pod("A", "second")), process(PART, 6, ticks=9))


@pytest.mark.parametrize(
    "stored",
    [
        StoredGpuTime(GPU),
        StoredGpuTime(GPU, 7, Epoch("boot", "load"), is_down=True),
        StoredGpuTime(GPU, pending=(Stretch(ALL_DOWN, 5, 6),)),
        StoredGpuTime(
            GPU,
            pending=(
                Stretch(split_seconds(GpuFacts(GPU, (PART,), True, ALLOCATIONS), Occupancy(RESIDENTS)), 1, 2),
                Stretch(split_seconds(GpuFacts(GPU, (PART,), True, ALLOCATIONS), Occupancy()), 3, 4),
            ),
        ),
    ],
)
def test_stored_state_is_the_same_after_json(stored: StoredGpuTime) -> None:
    assert time_from_fields(GPU, stored.posted, json.loads(json.dumps(time_fields(stored)))) == stored
