"""The compute part of a GPU's work and how it is split among ROCm processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.sources.drm.kfd import KfdUse
from gpuledger.sources.drm.rocm_shares import RocmShares, split_compute_part

IDLE = KfdUse(memory=4096, queues=0)


def use(units: int | None = None, queues: int = 1) -> KfdUse:
    return KfdUse(memory=4096, queues=queues, occupancy=units)


@pytest.mark.parametrize(
    ("uses", "busy", "engine_time", "expected"),
    [
        # Compute units in use, where the chip reports them.
        ({1: use(30), 2: use(10)}, 0.8, 0.0, RocmShares({1: 0.6, 2: 0.2}, "occupancy")),
        # Engine time of clients comes first: the compute part is the rest.
        ({1: use(30), 2: use(10)}, 0.8, 0.4, RocmShares({1: 0.3, 2: 0.1}, "occupancy")),
        # The clients waited in queues: nothing is left.
        ({1: use(30)}, 0.8, 1.7, RocmShares({1: 0.0}, "occupancy")),
        # RDNA reports no units: equally among those with queues.
        ({1: use(), 2: use(), 3: IDLE}, 0.5, 0.0, RocmShares({1: 0.25, 2: 0.25}, "equal")),
        ({1: use()}, 0.5, 0.0, RocmShares({1: 0.5}, "equal")),
        # None in use at this moment, but the GPU was busy.
        ({1: use(0), 2: use(0)}, 0.5, 0.0, RocmShares({1: 0.25, 2: 0.25}, "equal")),
        ({3: IDLE}, 0.5, 0.0, RocmShares({3: 0.5}, "equal")),
        # It is not known how busy the GPU was.
        ({1: use(26), 2: use(104)}, None, 0.0, RocmShares({1: 0.25, 2: 1.0}, "occupancy")),
        ({1: use(), 2: use()}, None, 0.0, RocmShares({}, "equal", readable=False)),
        ({}, 0.5, 0.5, RocmShares({}, "engine_time")),
    ],
)
def test_the_compute_part_is_split_by_the_best_evidence(
    uses: dict[int, KfdUse], busy: float | None, engine_time: float, expected: RocmShares
) -> None:
    found = split_compute_part(uses, busy, engine_time, 104)
    assert found.shares == pytest.approx(expected.shares)
    assert (found.basis, found.readable) == (expected.basis, expected.readable)


@given(
    st.dictionaries(st.integers(1, 9), st.builds(use, st.none() | st.integers(0, 104), st.integers(0, 3))),
    st.floats(0, 1),
    st.floats(0, 3),
)
def test_shares_sum_to_what_the_gpu_was_busy_beyond_its_clients(
    uses: dict[int, KfdUse], busy: float, engine_time: float
) -> None:
    found = split_compute_part(uses, busy, engine_time, 104)
    part = max(0.0, busy - engine_time) if uses else 0.0
    assert sum(found.shares.values()) == pytest.approx(part)
    assert all(0 <= share <= 1 for share in found.shares.values())
