"""Streaming JSON: lists item by item, and lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.kubernetes import json_stream as stream
from gpuledger.kubernetes.json_stream import ListReader, NotJson, split_lines

ITEMS = st.lists(st.dictionaries(st.text(max_size=4), st.text() | st.floats(allow_nan=False) | st.none()))


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(ITEMS, st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_a_list_does_not_depend_on_chunk_boundaries(
    items: list[Any], size: int, ascii_only: bool, indent: int | None
) -> None:
    meta = {"resourceVersion": "7", "continue": "größer"}
    document = {"kind": "PodList", "metadata": meta, "items": items, "more": [1, {"items": [2]}]}
    data = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    reader = ListReader(cut(data, size))
    assert list(reader.items()) == items
    assert reader.metadata == meta


@pytest.mark.parametrize(
    ("data", "items"),
    [
        (b'{"items":null,"metadata":{"a":1}}', []),
        (b'{"metadata":{"a":1}}', []),
        (b'{"items":[],"metadata":{"a":1}}', []),
        (b'{"items":[1,2],"metadata":{"a":1}}', [1, 2]),
        (b' {"metadata" : {"a":1} , "items" : [ 1 , 2 ] } ', [1, 2]),
    ],
)
def test_items_can_be_null_and_at_any_position(data: bytes, items: list[int]) -> None:
    reader = ListReader([data])
    assert list(reader.items()) == items
    assert reader.metadata == {"a": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[1]",
        b'{"items":[1,2',
        b'{"items":[1 2]}',
        b'{"items":[{"a":}]}',
        b'{"items" [1]}',
        b'{"items":[1]',
        b'{"items":[tru]}',
        b'{"items":["\xff"]}',
        b'{"items":[' + b"[" * 100_000,
    ],
)
def test_an_invalid_list_is_an_error(data: bytes) -> None:
    with pytest.raises(NotJson, match="not JSON"):
        list(ListReader(cut(data, 50_000)).items())


def test_an_endless_item_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_VALUE_LENGTH", 1000)
    taken = 0

    def endless() -> Any:
        nonlocal taken
        yield b'{"items":["'
        while True:
            taken += 1
            yield b"x" * 100

    with pytest.raises(NotJson, match="over 1000"):
        list(ListReader(endless()).items())
    assert taken < 100


def test_only_one_item_is_in_memory_at_a_time() -> None:
    reader = ListReader(cut(b'{"items":[' + b",".join([b'"%s"' % (b"x" * 1000)] * 500) + b"]}", 4096))
    held = [len(reader._text) for _ in reader.items()]
    assert len(held) == 500
    assert max(held) < 3 * 4096


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b""))), st.integers(1, 9))
def test_lines_do_not_depend_on_chunk_boundaries(document: list[bytes], size: int) -> None:
    data = b"".join(one + b"\n" for one in document) + b"cut off"
    assert list(split_lines(cut(data, size))) == [one for one in document if one.strip()]


def test_an_endless_line_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_VALUE_LENGTH", 1000)
    with pytest.raises(NotJson, match="over 1000 bytes"):
        list(split_lines([b"x" * 300] * 5))
