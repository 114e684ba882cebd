"""Fuzz tests of metrics page parsers: the agent, the textfile directory and dcgm-exporter pages."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, corpus_files, file_name, fuzzed, memory_below, mutated_files
from gpuledger.agent.scrape.line_parser import OPENMETRICS, TEXT_FORMAT
from gpuledger.agent.scrape.page_cache import PageCache, PageError
from gpuledger.agent.scrape.series_labels import SeriesLabeler
from gpuledger.http.client_messages import HttpRequestFailed, ResponseParser
from gpuledger.model.text import decode_utf8
from gpuledger.outputs.textfile_neighbours import NeighbourFiles
from gpuledger.sources.dcgm_exporter.profiling import parse_profiling_metrics

WORDS = (
    *(
        b"# HELP a b\n",
        b"# TYPE a counter\n",
        b"# UNIT a_s s\n",
        b"# EOF",
        b'{a="b"}',
        b'{a="b",a="c"}',
        b" NaN",
    ),
    *(
        b' # {trace="x"} 1 2',
        b" 1e-400",
        b" 1700000000000",
        b"{,}",
        b'a{x="\\n"} 1\n',
        b" +Inf",
        b"_total 1\n",
    ),
)
HTTP = (
    b"HTTP/1.1 200 OK\r\n",
    b"\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"0\r\n",
)


def one_line(text: str) -> None:
    assert text
    assert not {category(char) for char in text} & {"Cc", "Cs", "Zl", "Zp"}, repr(text)


def check_scrape(body: bytes) -> None:
    """Read a page twice and end it: both reads give the same series, and each ends once."""
    for form in (TEXT_FORMAT, OPENMETRICS):
        for honor in (False, True):
            pages = PageCache(SeriesLabeler({"job": "j", "instance": "i"}))
            try:
                first = pages.read_page(body, form, honor=honor)
                second = pages.read_page(body, form, honor=honor)
            except PageError as error:
                one_line(str(error))
            else:
                assert (second.counts.scraped, second.counts.added) == (first.counts.scraped, 0)
                assert sorted(second.entries) == sorted(first.entries)
            ended = pages.end_series()
            assert len(ended) == len(set(ended))
            assert pages.end_series() == []


def check_neighbour(folder: Path, body: bytes) -> None:
    (folder / "other.prom").write_bytes(body)
    for problem in NeighbourFiles(folder / "own.prom", ("a", "gpu_process_count")).find_problems():
        one_line(problem.why)


@pytest.mark.parametrize("path", corpus_files("exposition"), ids=file_name)
def test_a_corpus_page_is_parsed(path: Path, tmp_path: Path) -> None:
    with bounded():
        check_scrape(path.read_bytes())
        check_neighbour(tmp_path, path.read_bytes())


@fuzzed
@given(body=mutated_files("exposition", *WORDS))
def test_a_mutated_page_is_parsed(body: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_scrape(body)
        check_neighbour(tmp_path_factory.getbasetemp(), body)


def check_profiling(body: bytes) -> None:
    for values in parse_profiling_metrics(decode_utf8(body)).values():
        assert all(quantity.is_possible(value) for quantity, value in values.items())


@pytest.mark.parametrize("path", corpus_files("dcgm-page"), ids=file_name)
def test_a_corpus_page_of_dcgm_exporter_is_parsed(path: Path) -> None:
    with bounded():
        check_profiling(path.read_bytes())


@fuzzed
@given(
    mutated_files(
        "dcgm-page", b'UUID="GPU-0"', b'GPU_I_ID="2"', b"DCGM_FI_PROF_SM_ACTIVE{", b"} 0.5", b"} 1e308"
    )
)
def test_a_mutated_page_of_dcgm_exporter_is_parsed(body: bytes) -> None:
    with bounded():
        check_profiling(body)


def check_answer(raw: bytes, cuts: list[int]) -> None:
    """A response does not depend on chunk boundaries."""
    whole, in_parts = _answered([raw]), _answered(_parts(raw, cuts))
    assert whole == in_parts


def _parts(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[start:end] for start, end in pairwise(places)]


def _answered(parts: list[bytes]) -> object:
    reader = ResponseParser(1 << 20)
    try:
        for part in parts:
            if reader.feed(part):
                break
        else:
            reader.close()
        return reader.response and (reader.response.status, reader.response.decoded_body(1 << 20))
    except HttpRequestFailed as error:
        one_line(str(error))
        return "failed"


@pytest.mark.parametrize("path", corpus_files("http-answer"), ids=file_name)
def test_a_corpus_http_response_parses_the_same_byte_by_byte(path: Path) -> None:
    raw = path.read_bytes()
    with bounded():
        check_answer(raw, list(range(len(raw))))


@fuzzed
@given(mutated_files("http-answer", *HTTP), st.lists(st.integers(0, 2000), max_size=5))
def test_a_mutated_http_response_does_not_depend_on_chunk_boundaries(raw: bytes, cuts: list[int]) -> None:
    with bounded():
        check_answer(raw, cuts)


def test_decompression_of_a_page_is_limited() -> None:
    packed = gzip.compress(bytes(64 << 20), 9)
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    reader = ResponseParser(1 << 20)
    with memory_below(8 << 20):
        assert reader.feed(raw)
        assert reader.response is not None
        with pytest.raises(HttpRequestFailed, match="limit"):
            reader.response.decoded_body(1 << 20)


LONG = 100_000
LONG_INPUTS = {
    "blanks": b"a" + b" " * LONG + b"x" + b" " * LONG + b"y\n",
    "labels": b"a{" + b'b="c",' * LONG + b"} x\n",
    "one quote": b'a{b="' + b"\\" * LONG + b"\n",
    "quotes": b'a{b="' * LONG + b"\n",
    "one name": b"a" * LONG + b"\n",
    "lines": b"\n" * LONG,
    "comments": b"# HELP " * LONG + b"\n",
    "profiling": b"DCGM_FI_PROF_SM_ACTIVE{" + b'a="b",' * LONG + b"\n",
    "profiling, unclosed": b"DCGM_FI_PROF_SM_ACTIVE{" + b'"' * LONG + b"x\n",
}


@pytest.mark.parametrize("name", LONG_INPUTS)
def test_long_input_is_read_in_bounded_time(name: str, tmp_path: Path) -> None:
    with bounded():
        check_scrape(LONG_INPUTS[name])
        check_profiling(LONG_INPUTS[name])
        check_neighbour(tmp_path, LONG_INPUTS[name])
