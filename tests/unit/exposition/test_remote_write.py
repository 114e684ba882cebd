"""What remote write's encoding puts in, the official protobuf reads out."""

from __future__ import annotations

from struct import pack, unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.exposition.remote_write import (
    STALE,
    labels_bytes,
    series_bytes,
    series_prefix,
    timestamp_tail,
    value_bytes,
)
from write_request import series_of

NOW = 1_795_000_000_123
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
labels = st.dictionaries(text.filter(bool), text, max_size=8)
values = st.binary(min_size=8, max_size=8)


def present(given: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(((k, v) for k, v in given.items() if v), key=lambda pair: pair[0].encode())


@given(st.lists(st.tuples(labels, st.floats(), st.integers(-(2**63), 2**63 - 1)), max_size=5))
@settings(deadline=None, max_examples=200)
def test_any_series_at_any_moment_are_read_back_as_they_were(
    given: list[tuple[dict[str, str], float, int]],
) -> None:
    payload = b"".join(
        series_bytes(labels_bytes(names.items()), value_bytes(value), moment)
        for names, value, moment in given
    )
    assert series_of(payload) == [
        (present(names), [(pack("<d", value), moment)]) for names, value, moment in given
    ]


@given(st.lists(st.tuples(labels, values), min_size=1, max_size=5), st.integers(2**35, 2**42 - 1))
@settings(deadline=None, max_examples=200)
def test_kept_prefixes_joined_by_the_moment_are_the_same_bytes_as_whole_series(
    given: list[tuple[dict[str, str], bytes]], moment: int
) -> None:
    encoded = [(labels_bytes(names.items()), value) for names, value in given]
    tail = timestamp_tail(moment)
    joined = tail.join([series_prefix(names) + value for names, value in encoded]) + tail
    assert joined == b"".join(series_bytes(names, value, moment) for names, value in encoded)


@given(
    st.permutations(
        [("__name__", "up"), ("Z", "1"), ("a", "2"), ("é", "3"), ("\U0001f600", "4"), ("\uffff", "5")]
    )
)
@settings(deadline=None, max_examples=20)
def test_labels_are_sorted_by_the_bytes_of_their_names(given: list[tuple[str, str]]) -> None:
    (found, _), *_ = series_of(series_bytes(labels_bytes(given), value_bytes(0), NOW))
    assert [name for name, _ in found] == ["Z", "__name__", "a", "é", "\uffff", "\U0001f600"]


def test_the_end_of_a_series_keeps_its_bits() -> None:
    series = series_prefix(labels_bytes([("__name__", "up")])) + STALE + timestamp_tail(NOW)
    assert series_of(series) == [([("__name__", "up")], [(STALE, NOW)])]
    assert unpack("<Q", STALE) == (0x7FF0000000000002,)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ([("a", "1"), ("a", "2")], "the label 'a' is there twice"),
        ([("a", ""), ("b", "1"), ("a", "2")], "the label 'a' is there twice"),
        ([("", "1")], "a label has no name"),
        ([("a", "\ud800")], "surrogates not allowed"),
    ],
)
def test_labels_that_no_receiver_would_take_are_refused(given: list[tuple[str, str]], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        labels_bytes(given)


@pytest.mark.parametrize("moment", [-1, 0, 2**35 - 1, 2**42])
def test_a_moment_of_another_length_has_no_tail(moment: int) -> None:
    with pytest.raises(ValueError, match=f"{moment} ms is no timestamp of six bytes"):
        timestamp_tail(moment)
