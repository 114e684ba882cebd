"""Sizes: MB is a power of 1000 or of 1024 depending on the parser, MiB is always a power of 1024."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.settings import binary_size, size

# Text, bytes with powers of 1000, bytes with powers of 1024.
SIZES = [
    ("5", 5, 5),
    ("7B", 7, 7),
    ("3K", 3_000, 3 << 10),
    ("512MB", 512_000_000, 512 << 20),
    ("512mb", 512_000_000, 512 << 20),
    ("1.5 GB", 1_500_000_000, 3 << 29),
    ("2GiB", 2 << 30, 2 << 30),
    ("2Gi", 2 << 30, 2 << 30),
    ("1 TiB", 1 << 40, 1 << 40),
    ("1PB", 10**15, 1 << 50),
    ("16EiB", 16 << 60, 16 << 60),
    (4096, 4096, 4096),
]


@pytest.mark.parametrize(("written", "decimal", "binary"), SIZES, ids=[str(case[0]) for case in SIZES])
def test_a_size_is_parsed_to_bytes(written: object, decimal: int, binary: int) -> None:
    assert (size(written), binary_size(written)) == (decimal, binary)


@pytest.mark.parametrize(
    "written", ["", "MB", "-1MB", "1e9", "inf", "nan", "1.MB", "9 lots", "5iB", "1XB", True, None, "9" * 5000]
)
def test_an_invalid_size_is_rejected(written: object) -> None:
    for parse in (size, binary_size):
        with pytest.raises(ValueError, match=r"^expected a size such as 512MB or 2GiB$"):
            parse(written)


@given(st.integers(0, 10**18 - 1), st.sampled_from(["", "K", "M", "G", "T"]))
def test_integer_sizes_are_exact(number: int, prefix: str) -> None:
    power = " KMGT".index(prefix or " ")
    assert size(f"{number}{prefix}B") == number * 1000**power
    assert binary_size(f"{number}{prefix}B") == size(f"{number}{prefix}{'i' if prefix else ''}B")
