"""The smallest device for the memory and the utilization of some work."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuledger.ledger.report.receipt.smaller_devices import find_smaller_device

GIB, MIB = 1 << 30, 1 << 20
# As NVML reports them.
H100, A100, A100_40, H200, A30 = (size * MIB for size in (81_559, 81_920, 40_960, 143_771, 24_576))


@pytest.mark.parametrize(
    ("model", "memory", "needed", "utilization", "expected", "part"),
    [
        ("NVIDIA H100 80GB HBM3", H100, 4 * GIB, 0.05, "MIG profile 1g.10gb", Fraction(1, 7)),
        # 10 % to spare: 9 GiB need 9.9, which a 1g.10gb of 9.75 GiB does not have.
        ("NVIDIA H100 80GB HBM3", H100, 9 * GIB, 0.05, "MIG profile 1g.20gb", Fraction(1, 7)),
        ("NVIDIA H100 80GB HBM3", H100, 4 * GIB, 0.2, "MIG profile 2g.20gb", Fraction(2, 7)),
        ("NVIDIA H100 80GB HBM3", H100, 30 * GIB, 0.05, "MIG profile 3g.40gb", Fraction(3, 7)),
        ("NVIDIA A100-SXM4-80GB", A100, 4 * GIB, 0.05, "MIG profile 1g.10gb", Fraction(1, 7)),
        ("NVIDIA A100-PCIE-40GB", A100_40, 4 * GIB, 0.05, "MIG profile 1g.5gb", Fraction(1, 7)),
        ("NVIDIA H200", H200, 12 * GIB, 0.05, "MIG profile 1g.18gb", Fraction(1, 7)),
        ("NVIDIA A30", A30, 4 * GIB, 0.2, "MIG profile 1g.6gb", Fraction(1, 4)),
        ("NVIDIA L40S", 46_068 * MIB, 5 * GIB, 0.5, "a GPU with 8 GiB", None),
        ("NVIDIA L40S", 46_068 * MIB, 10 * GIB, 0.5, "a GPU with 12 GiB", None),
    ],
)
def test_the_smallest_that_is_enough(
    model: str, memory: int, needed: int, utilization: float, expected: str, part: Fraction | None
) -> None:
    found = find_smaller_device(model, memory, needed, utilization)
    assert found is not None
    assert (found.name, found.part) == (expected, part)


@pytest.mark.parametrize(
    ("model", "memory", "needed", "utilization"),
    [
        ("NVIDIA H100 80GB HBM3", H100, 39 * GIB, 0.05),
        ("NVIDIA H100 80GB HBM3", H100, 4 * GIB, 0.6),
        # Half of the memory, or less: 24 GiB are more.
        ("NVIDIA L40S", 46_068 * MIB, 20 * GIB, 0.05),
        ("NVIDIA T4", 15_360 * MIB, 7 * GIB, 0.05),
    ],
)
def test_nothing_smaller_is_enough(model: str, memory: int, needed: int, utilization: float) -> None:
    assert find_smaller_device(model, memory, needed, utilization) is None


def test_a_card_of_an_unknown_size_has_no_profiles_of_another() -> None:
    # An H100 with 64 GiB is in no table.
    found = find_smaller_device("NVIDIA H100 64GB", 64 * GIB, 4 * GIB, 0.05)
    assert found is not None
    assert found.part is None
