"""Requests of 2.0 hold the same labels, samples and timestamps as those of 1.0, and the metadata."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.deliver.metadata import MetadataStore, TargetMetadata
from gpuledger.agent.deliver.records import Block, compress_block
from gpuledger.agent.deliver.requests import RecordsRequest
from gpuledger.exposition.remote_write import (
    STALE,
    FamilyMetadata,
    encode_label_fields,
    encode_series,
    encode_value,
)
from write_request import series_of, series_of_version_2, unpacked

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6) | st.text(
    "ab", min_size=90
)
LABELS = st.dictionaries(
    st.sampled_from(["a", "job", "UUID", "le", "__name__", "z" * 130]), TEXTS, min_size=1
)
VALUES = st.floats().map(encode_value) | st.just(STALE)
SERIES = st.tuples(LABELS, VALUES, st.integers(-(2**63), 2**63 - 1))


def block_of(shard: int, series: list[tuple[dict[str, str], bytes, int]]) -> Block:
    payload = b"".join(
        encode_series(encode_label_fields(labels.items()), value, moment) for labels, value, moment in series
    )
    return Block(shard, payload, len(series), 0, 0)


@given(st.lists(st.lists(SERIES, max_size=6), min_size=1, max_size=3))
def test_both_versions_hold_the_same_series(blocks: list[list[tuple[dict[str, str], bytes, int]]]) -> None:
    records = [compress_block(block_of(shard, series), 0) for shard, series in enumerate(blocks)]
    request = RecordsRequest(records, MetadataStore())
    first = series_of(unpacked(request.encode("1.0")))
    second = series_of_version_2(unpacked(request.encode("2.0")))
    assert [series for series, _ in second] == first
    assert {metadata for _, metadata in second} <= {(0, "", "")}
    assert request.samples == len(first)


def test_the_fields_of_2_0_are_unknown_to_a_receiver_of_1_0() -> None:
    record = compress_block(block_of(1, [({"__name__": "m"}, encode_value(1), 5)]), 0)
    assert series_of(unpacked(RecordsRequest([record], MetadataStore()).encode("2.0"))) == []


def test_each_series_has_the_metadata_of_its_own_target() -> None:
    store = MetadataStore()
    store.set(1, TargetMetadata([FamilyMetadata("m", 1, "All of \u00e4.", "s"), FamilyMetadata("n", 2)]))
    store.set(2, TargetMetadata([FamilyMetadata("m", 2, "Other")]))
    named = [({"__name__": name, "a": "x"}, encode_value(1), 5) for name in ("m", "n", "o")]
    records = [compress_block(block_of(shard, named), 0) for shard in (1, 2, 3)]
    found = series_of_version_2(unpacked(RecordsRequest(records, store).encode("2.0")))
    assert [metadata for _, metadata in found] == [
        *((1, "All of \u00e4.", "s"), (2, "", ""), (0, "", "")),
        *((2, "Other", ""), (0, "", ""), (0, "", "")),
        *((0, "", ""), (0, "", ""), (0, "", "")),
    ]
