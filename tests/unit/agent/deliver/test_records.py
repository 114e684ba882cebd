"""Records are compressed once, joined without recompression and found among damaged data."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.deliver.records import (
    Block,
    RecordTotals,
    compress_block,
    decode_record,
    decode_seal,
    encode_header,
    encode_seal,
    join_records,
    record_length,
    split_block,
)
from gpuledger.agent.deliver.segments import iter_records
from write_helpers import block, samples_in

# Compressible and incompressible payloads, also larger than snappy's 64 KiB block.
payloads = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=50), st.integers(1, 5000)),
)


@given(st.lists(payloads, min_size=1, max_size=6))
def test_joined_records_decompress_to_their_concatenated_payloads(given: list[bytes]) -> None:
    records = [compress_block(Block(1, payload, 1, 0, 0), 5) for payload in given]
    assert bytes(cramjam.snappy.decompress_raw(join_records(records))) == b"".join(given)


@given(st.integers(0, 2**32 - 1), payloads, st.integers(0, 2**31), st.integers(-(2**63), 2**63 - 1))
def test_a_record_round_trips(shard: int, payload: bytes, samples: int, newest: int) -> None:
    record = compress_block(Block(shard, payload, samples, 0, newest), 1_795_000_000_000)
    content = b"before" + encode_header(record) + record.body
    assert record_length(content, 6) == len(content) - 6
    assert decode_record(content, 6) == record


@given(st.integers(0, 2), st.data())
def test_a_damaged_byte_loses_only_its_record(which: int, data: st.DataObject) -> None:
    parts = [
        encode_header(record) + record.body for n in range(3) for record in [compress_block(block(n, n), 5)]
    ]
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    parts[which] = (
        parts[which][:at]
        + bytes([parts[which][at] ^ data.draw(st.integers(1, 255))])
        + parts[which][at + 1 :]
    )
    assert [record.shard for record, _ in iter_records(b"".join(parts))] == [
        n for n in range(3) if n != which
    ]


@given(st.integers(0, 400))
def test_all_whole_records_of_a_truncated_file_are_found(cut_off: int) -> None:
    parts = [
        encode_header(record) + record.body for n in range(3) for record in [compress_block(block(n, n), 5)]
    ]
    content = b"".join(parts)
    content = content[: max(0, len(content) - cut_off)]
    ends = [sum(map(len, parts[: n + 1])) for n in range(3)]
    assert [end for _, end in iter_records(content)] == [end for end in ends if end <= len(content)]


def test_a_seal_round_trips() -> None:
    sums = RecordTotals(3, 1500, 900, 7, 9)
    assert decode_seal(encode_seal(sums)) == sums


@pytest.mark.parametrize(
    "damage", [b"", b"x" * 48, encode_seal(RecordTotals())[:-1], encode_seal(RecordTotals())[:-1] + b"x"]
)
def test_an_invalid_seal_is_not_decoded(damage: bytes) -> None:
    assert decode_seal(damage) is None


@given(st.integers(1, 40), st.integers(1, 50))
def test_a_large_block_is_split_between_series(samples: int, most: int) -> None:
    whole = block(7, 3, samples)
    parts = list(split_block(whole, most))
    assert b"".join(part.payload for part in parts) == whole.payload
    assert [part.samples for part in parts] == [len(samples_in(part.payload)) for part in parts]
    assert all(0 < part.samples <= most for part in parts)
    assert {(part.shard, part.newest) for part in parts} == {(7, whole.newest)}


@pytest.mark.parametrize("payload", [b"\x0a", b"\x0a\x05abc", b"\x0a\xff"])
def test_a_payload_that_is_no_write_request_is_not_split(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a WriteRequest"):
        list(split_block(Block(1, payload, 9, 0, 0), 1))
