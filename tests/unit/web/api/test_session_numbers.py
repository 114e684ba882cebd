"""Numbers of sessions as readers of own rows get them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.web.api.session_numbers import masked_number, unmasked_number

NUMBERS = st.integers(0, 2**52 - 1)


@given(NUMBERS)
def test_a_mask_is_taken_off(number: int) -> None:
    masked = masked_number(number)
    assert 0 <= masked < 2**52
    assert unmasked_number(masked) == number


@given(NUMBERS)
def test_each_number_is_the_mask_of_one(masked: int) -> None:
    """Whatever a client sends in a cursor is some number."""
    assert masked_number(unmasked_number(masked)) == masked


def test_neighbors_have_unrelated_masks() -> None:
    gaps = {masked_number(number + 1) - masked_number(number) for number in range(1000)}
    assert len(gaps) == 1000
