"""The response parser: framing, limits, and decompression."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse, ResponseParser


def test_a_page_that_decompresses_above_the_limit_is_rejected() -> None:
    packed = gzip.compress(b"a" * 1_000_000)
    answer = HttpResponse(200, {"content-encoding": "gzip"}, packed)
    assert len(answer.decoded_body(1_000_000)) == 1_000_000
    with pytest.raises(HttpRequestFailed, match="body size limit") as caught:
        answer.decoded_body(999_999)
    assert caught.value.kind == "body_limit"


@pytest.mark.parametrize(
    "body",
    [gzip.compress(b"a")[:-3], b"no gzip", gzip.compress(b"a") + b"rest"],
    ids=["truncated", "not gzip", "trailing bytes"],
)
def test_a_corrupt_gzip_body_is_a_failure(body: bytes) -> None:
    with pytest.raises(HttpRequestFailed, match="gzip body"):
        HttpResponse(200, {"content-encoding": "gzip"}, body).decoded_body()


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 70))
def test_gzip_members_are_joined_wherever_they_end(texts: list[bytes], piece: int) -> None:
    body = b"".join(map(gzip.compress, texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuledger.http.client_messages._GZIP_PIECE", piece)
        assert HttpResponse(200, {"content-encoding": "gzip"}, body).decoded_body(4000) == b"".join(texts)


@given(st.binary(max_size=300).map(lambda text: text * 40), st.integers(1, 400), st.integers(1, 400))
def test_a_gzip_body_is_decompressed_in_pieces_of_any_size(text: bytes, piece: int, output: int) -> None:
    answer = HttpResponse(200, {"content-encoding": "gzip"}, gzip.compress(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuledger.http.client_messages._GZIP_PIECE", piece)
        patch.setattr("gpuledger.http.client_messages._GZIP_OUTPUT", output)
        assert answer.decoded_body(len(text)) == text
        if len(text) > 1:
            with pytest.raises(HttpRequestFailed, match="body size limit"):
                answer.decoded_body(len(text) - 1)


def test_a_body_above_the_limit_takes_no_more_memory_than_the_limit() -> None:
    answer = HttpResponse(200, {"content-encoding": "gzip"}, gzip.compress(bytes(64 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(HttpRequestFailed, match="body size limit"):
            answer.decoded_body(16 << 20)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_a_gzip_body_with_too_many_members_is_rejected() -> None:
    """Each member costs a copy of the bytes behind it: empty ones blocked the loop for seconds."""
    with pytest.raises(HttpRequestFailed, match="more than 1000 members"):
        HttpResponse(200, {"content-encoding": "gzip"}, gzip.compress(b"") * 1001).decoded_body()


def test_tiny_chunks_take_little_more_memory_than_their_bytes() -> None:
    reader = ResponseParser()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(20):
            reader.feed(b"2\r\nab\r\n" * 1000)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 40_000 < taken < 80_000


def chunked(body: bytes, sizes: list[int]) -> bytes:
    parts, at = [], 0
    for size in sizes:
        piece = body[at : at + size]
        if piece:
            parts.append(b"%x;x=y\r\n%b\r\n" % (len(piece), piece))
        at += size
    if body[at:]:
        parts.append(b"%x\r\n%b\r\n" % (len(body[at:]), body[at:]))
    return b"".join(parts) + b"0\r\nTrailer: x\r\n\r\n"


@given(st.binary(max_size=50), st.lists(st.integers(1, 9), max_size=5), st.integers(1, 40), st.booleans())
def test_a_response_parses_the_same_however_it_is_split(
    body: bytes, sizes: list[int], step: int, by_length: bool
) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\n"
    if by_length:
        sent = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        sent = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, sizes)
    reader = ResponseParser()
    done = [reader.feed(sent[at : at + step]) for at in range(0, len(sent), step)]
    assert done == [False] * (len(done) - 1) + [True]
    assert reader.response is not None
    assert (reader.response.body, reader.response.headers["a"], reader.keep_alive) == (body, "b", True)


BROKEN = [
    b"SSH-2.0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000,
]


@pytest.mark.parametrize("sent", BROKEN, ids=range(len(BROKEN)))
def test_a_malformed_response_is_a_failure(sent: bytes) -> None:
    with pytest.raises(HttpRequestFailed):
        ResponseParser().feed(sent)


@pytest.mark.parametrize("head", ["Content-Length: 900000", "Transfer-Encoding: chunked", "A: b"])
def test_a_body_above_the_limit_is_an_error_or_truncated(head: str) -> None:
    sent = f"HTTP/1.1 400 No\r\n{head}\r\n\r\n".encode() + b"2328\r\n" * ("chunked" in head) + b"x" * 9000
    with pytest.raises(HttpRequestFailed, match="body size limit of 8000 bytes exceeded"):
        ResponseParser(8000).feed(sent)
    truncated = ResponseParser(8000, truncate=True)
    assert truncated.feed(sent)
    assert truncated.response is not None
    assert (truncated.response.status, truncated.response.body[:8000]) == (400, b"x" * 8000)
    assert not truncated.keep_alive
