"""The remote write encoding, decoded with the official protobuf messages."""

from __future__ import annotations

from struct import pack, unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.exposition.remote_write import (
    STALE,
    encode_label_fields,
    encode_series,
    encode_series_prefix,
    encode_timestamp,
    encode_value,
)
from write_request import series_of

NOW = 1_795_000_000_123
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
labels = st.dictionaries(text.filter(bool), text, max_size=8)
values = st.binary(min_size=8, max_size=8)


def present(given: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(((k, v) for k, v in given.items() if v), key=lambda pair: pair[0].encode())


@given(st.lists(st.tuples(labels, st.floats(), st.integers(-(2**63), 2**63 - 1)), max_size=5))
def test_any_series_with_any_timestamp_is_decoded_unchanged(
    given: list[tuple[dict[str, str], float, int]],
) -> None:
    payload = b"".join(
        encode_series(encode_label_fields(names.items()), encode_value(value), moment)
        for names, value, moment in given
    )
    assert series_of(payload) == [
        (present(names), [(pack("<d", value), moment)]) for names, value, moment in given
    ]


@given(st.lists(st.tuples(labels, values), min_size=1, max_size=5), st.integers(2**35, 2**42 - 1))
def test_cached_prefixes_joined_by_the_timestamp_equal_complete_series(
    given: list[tuple[dict[str, str], bytes]], moment: int
) -> None:
    encoded = [(encode_label_fields(names.items()), value) for names, value in given]
    tail = encode_timestamp(moment)
    joined = tail.join([encode_series_prefix(names) + value for names, value in encoded]) + tail
    assert joined == b"".join(encode_series(names, value, moment) for names, value in encoded)


@given(
    st.permutations(
        [("__name__", "up"), ("Z", "1"), ("a", "2"), ("é", "3"), ("\U0001f600", "4"), ("\uffff", "5")]
    )
)
@settings(max_examples=20)
def test_labels_are_sorted_by_the_bytes_of_their_names(given: list[tuple[str, str]]) -> None:
    (found, _), *_ = series_of(encode_series(encode_label_fields(given), encode_value(0), NOW))
    assert [name for name, _ in found] == ["Z", "__name__", "a", "é", "\uffff", "\U0001f600"]


def test_the_staleness_marker_keeps_its_bits() -> None:
    series = encode_series_prefix(encode_label_fields([("__name__", "up")])) + STALE + encode_timestamp(NOW)
    assert series_of(series) == [([("__name__", "up")], [(STALE, NOW)])]
    assert unpack("<Q", STALE) == (0x7FF0000000000002,)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ([("a", "1"), ("a", "2")], "the label 'a' is repeated"),
        ([("a", ""), ("b", "1"), ("a", "2")], "the label 'a' is repeated"),
        ([("", "1")], "a label has no name"),
        ([("a", "\ud800")], "surrogates not allowed"),
    ],
)
def test_labels_that_receivers_reject_raise_an_error(given: list[tuple[str, str]], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        encode_label_fields(given)


@pytest.mark.parametrize("moment", [-1, 0, 2**35 - 1, 2**42])
def test_a_timestamp_that_does_not_have_six_bytes_raises_an_error(moment: int) -> None:
    with pytest.raises(ValueError, match=f"{moment} ms is not a timestamp of six bytes"):
        encode_timestamp(moment)
