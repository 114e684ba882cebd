"""Laws of what reads pages of metrics: the agent, neighbours in a textfile directory, dcgm-exporter's."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, fuzzed, held_below, kept, mutated, named
from gpuledger.agent.scrape.answer import AnswerReader, ScrapeFailed
from gpuledger.agent.scrape.labelling import Labelling
from gpuledger.agent.scrape.lines import OPENMETRICS, TEXT
from gpuledger.agent.scrape.pages import PageError, Pages
from gpuledger.model.text import from_bytes
from gpuledger.outputs.textfile import Neighbours
from gpuledger.sources.dcgm_exporter.profiling import parse

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
    """Taken twice and then not at all: what is told is series with names, and all of it ends."""
    for form in (TEXT, OPENMETRICS):
        for honor in (False, True):
            pages = Pages(Labelling({"job": "j", "instance": "i"}))
            try:
                first = pages.take(body, form, honor=honor)
                second = pages.take(body, form, honor=honor)
            except PageError as error:
                one_line(str(error))
            else:
                assert (second.counts.scraped, second.counts.added) == (first.counts.scraped, 0)
                assert sorted(second.entries) == sorted(first.entries)
            ended = pages.end()
            assert len(ended) == len(set(ended))
            assert pages.end() == []


def check_neighbour(folder: Path, body: bytes) -> None:
    (folder / "other.prom").write_bytes(body)
    for _, names in Neighbours(folder / "own.prom", ("a", "gpu_process_count")).clashes():
        assert set(names) <= {"a", "gpu_process_count"}


@pytest.mark.parametrize("path", kept("exposition"), ids=named)
def test_a_kept_page_is_taken(path: Path, tmp_path: Path) -> None:
    with bounded():
        check_scrape(path.read_bytes())
        check_neighbour(tmp_path, path.read_bytes())


@fuzzed
@given(body=mutated("exposition", *WORDS))
def test_any_page_is_taken(body: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        check_scrape(body)
        check_neighbour(tmp_path_factory.getbasetemp(), body)


def check_profiling(body: bytes) -> None:
    for values in parse(from_bytes(body)).values():
        assert all(quantity.believes(value) for quantity, value in values.items())


@pytest.mark.parametrize("path", kept("dcgm-page"), ids=named)
def test_a_kept_page_of_dcgm_exporter_is_taken(path: Path) -> None:
    with bounded():
        check_profiling(path.read_bytes())


@fuzzed
@given(
    mutated("dcgm-page", b'UUID="GPU-0"', b'GPU_I_ID="2"', b"DCGM_FI_PROF_SM_ACTIVE{", b"} 0.5", b"} 1e308")
)
def test_any_page_of_dcgm_exporter_is_taken(body: bytes) -> None:
    with bounded():
        check_profiling(body)


def check_answer(raw: bytes, cuts: list[int]) -> None:
    """However it is cut, an answer is the same."""
    whole, in_parts = _answered([raw]), _answered(_parts(raw, cuts))
    assert whole == in_parts


def _parts(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[start:end] for start, end in pairwise(places)]


def _answered(parts: list[bytes]) -> object:
    reader = AnswerReader(1 << 20)
    try:
        for part in parts:
            if reader.feed(part):
                break
        else:
            reader.close()
        return reader.answer and (reader.answer.status, reader.answer.page(1 << 20))
    except ScrapeFailed as error:
        one_line(str(error))
        return "failed"


@pytest.mark.parametrize("path", kept("http-answer"), ids=named)
def test_a_kept_answer_is_the_same_byte_by_byte(path: Path) -> None:
    raw = path.read_bytes()
    with bounded():
        check_answer(raw, list(range(len(raw))))


@fuzzed
@given(mutated("http-answer", *HTTP), st.lists(st.integers(0, 2000), max_size=5))
def test_any_answer_is_the_same_however_it_is_cut(raw: bytes, cuts: list[int]) -> None:
    with bounded():
        check_answer(raw, cuts)


def test_a_page_that_unpacks_to_more_than_its_limit_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(64 << 20), 9)
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    reader = AnswerReader(1 << 20)
    with held_below(8 << 20):
        assert reader.feed(raw)
        assert reader.answer is not None
        with pytest.raises(ScrapeFailed, match="limit"):
            reader.answer.page(1 << 20)


LONG = 100_000
ENDLESS = {
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


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_long_is_not_long_to_read(name: str, tmp_path: Path) -> None:
    with bounded():
        check_scrape(ENDLESS[name])
        check_profiling(ENDLESS[name])
        check_neighbour(tmp_path, ENDLESS[name])
