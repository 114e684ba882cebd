"""Records: compressed once, joined without compressing anew, found again among damage."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.agent.deliver.records import (
    Block,
    Sums,
    cut,
    header_of,
    joined,
    length_at,
    record_at,
    record_of,
    seal_of,
    sums_of,
)
from gpuledger.agent.deliver.segments import records_in
from write_helpers import block, told

# What compresses well, badly, and over more than snappy's 64 KiB.
payloads = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=50), st.integers(1, 5000)),
)


@given(st.lists(payloads, min_size=1, max_size=6))
@settings(deadline=None, max_examples=150)
def test_joined_records_decompress_to_their_payloads_in_a_row(given: list[bytes]) -> None:
    records = [record_of(Block(1, payload, 1, 0, 0), 5) for payload in given]
    assert bytes(cramjam.snappy.decompress_raw(joined(records))) == b"".join(given)


@given(st.integers(0, 2**32 - 1), payloads, st.integers(0, 2**31), st.integers(-(2**63), 2**63 - 1))
@settings(deadline=None, max_examples=100)
def test_what_is_written_is_read(shard: int, payload: bytes, samples: int, newest: int) -> None:
    record = record_of(Block(shard, payload, samples, 0, newest), 1_795_000_000_000)
    content = b"before" + header_of(record) + record.body
    assert length_at(content, 6) == len(content) - 6
    assert record_at(content, 6) == record


@given(st.integers(0, 2), st.data())
@settings(deadline=None, max_examples=150)
def test_one_damaged_byte_costs_the_record_that_it_is_in_and_no_other(
    which: int, data: st.DataObject
) -> None:
    parts = [header_of(record) + record.body for n in range(3) for record in [record_of(block(n, n), 5)]]
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    parts[which] = (
        parts[which][:at]
        + bytes([parts[which][at] ^ data.draw(st.integers(1, 255))])
        + parts[which][at + 1 :]
    )
    assert [record.shard for record, _ in records_in(b"".join(parts))] == [n for n in range(3) if n != which]


@given(st.integers(0, 400))
@settings(deadline=None, max_examples=60)
def test_whatever_is_cut_off_the_end_all_whole_records_are_found(cut_off: int) -> None:
    parts = [header_of(record) + record.body for n in range(3) for record in [record_of(block(n, n), 5)]]
    content = b"".join(parts)
    content = content[: max(0, len(content) - cut_off)]
    ends = [sum(map(len, parts[: n + 1])) for n in range(3)]
    assert [end for _, end in records_in(content)] == [end for end in ends if end <= len(content)]


def test_a_seal_says_what_is_in_the_segment() -> None:
    sums = Sums(3, 1500, 900, 7, 9)
    assert sums_of(seal_of(sums)) == sums


@pytest.mark.parametrize("damage", [b"", b"x" * 48, seal_of(Sums())[:-1], seal_of(Sums())[:-1] + b"x"])
def test_what_is_no_seal_says_nothing(damage: bytes) -> None:
    assert sums_of(damage) is None


@given(st.integers(1, 40), st.integers(1, 50))
@settings(deadline=None, max_examples=60)
def test_a_large_block_is_cut_between_its_series(samples: int, most: int) -> None:
    whole = block(7, 3, samples)
    parts = list(cut(whole, most))
    assert b"".join(part.payload for part in parts) == whole.payload
    assert [part.samples for part in parts] == [len(told(part.payload)) for part in parts]
    assert all(0 < part.samples <= most for part in parts)
    assert {(part.shard, part.newest) for part in parts} == {(7, whole.newest)}


@pytest.mark.parametrize("payload", [b"\x0a", b"\x0a\x05abc", b"\x0a\xff"])
def test_what_is_no_write_request_is_not_cut(payload: bytes) -> None:
    with pytest.raises(ValueError, match="no WriteRequest"):
        list(cut(Block(1, payload, 9, 0, 0), 1))
