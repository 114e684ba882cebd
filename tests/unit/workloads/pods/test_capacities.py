"""Quantities, capacities of DRA devices, and the part that a claim consumes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.workloads.pods.capacities import consumed_fraction, parse_capacities, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40Gi", 40 << 30),
        ("1G", 10**9),
        ("500m", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        ("1e3", 1000),
        ("5E-1", Fraction(1, 2)),
        (7, 7),
        ("1E", 10**18),
        ("", None),
        ("-1", None),
        ("1Z", None),
        ("1" * 20, None),
        (1.5, None),
        (True, None),
        (None, None),
    ],
)
def test_quantities(text: object, value: Fraction | None) -> None:
    assert parse_quantity(text) == value


def test_a_slice_and_a_claim_write_capacities_differently() -> None:
    assert parse_capacities({"gpu.nvidia.com/memory": {"value": "1Gi"}, "bad": {"value": "x"}}) == {
        "memory": 1 << 30
    }
    assert parse_capacities({"Cores": "50"}) == {"cores": 50}


@pytest.mark.parametrize(
    ("consumed", "capacities", "part"),
    [
        ({"memory": 20}, {"memory": 80}, Fraction(1, 4)),
        # The compute share comes before that of the memory.
        ({"cores": 50, "memory": 20}, {"cores": 100, "memory": 80}, Fraction(1, 2)),
        ({"multiprocessors": 33}, {"multiprocessors": 132, "memory": 80}, Fraction(1, 4)),
        ({"copyengines": 1}, {"copyengines": 8}, None),
        ({"memory": 20}, {}, None),
        ({"memory": 0}, {"memory": 80}, None),
        ({"memory": 81}, {"memory": 80}, None),
        ({"memory": 20}, {"memory": 0}, None),
        ({}, {"memory": 80}, None),
    ],
)
def test_the_part_that_a_claim_consumes(
    consumed: dict[str, int], capacities: dict[str, int], part: Fraction | None
) -> None:
    def exact(amounts: dict[str, int]) -> dict[str, Fraction]:
        return {name: Fraction(amount) for name, amount in amounts.items()}

    assert consumed_fraction(exact(consumed), exact(capacities)) == part


QUANTITIES = st.text("0123456789.eEkMGi+-", max_size=8) | st.sampled_from([None, 7, True, 1.5, [], {}])


@given(
    st.dictionaries(
        st.text(max_size=8), QUANTITIES | QUANTITIES.map(lambda value: {"value": value}), max_size=3
    )
)
def test_arbitrary_capacities_are_parsed(data: dict[str, Any]) -> None:
    assert all(amount >= 0 for amount in parse_capacities(data).values())
