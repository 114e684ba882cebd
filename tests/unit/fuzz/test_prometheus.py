"""Fuzz tests of Prometheus responses: finite numbers, or an error of one line."""

from __future__ import annotations

import gzip
from email.message import Message
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, check_line, corpus_files, file_name, fuzzed, memory_below, mutated_files
from gpuledger.app.prometheus_api import PrometheusClient
from gpuledger.ledger.report.fleet.rises import Rises
from gpuledger.ledger.report.fleet.scraped import LabelResolver
from gpuledger.model.errors import GpuledgerError

WORDS = (
    *(b'"NaN"', b'"+Inf"', b'"1e999"', b'"-1e300"', b"NaN", b"1e999", b"9" * 400, b'"value":', b'"values":'),
    *(b'"metric":{"a":1}', b'"status":"error"', b'"error":"a\\nb"', b'"\\ud800"', b"null", b"[[", b"true"),
)


class Answered(PrometheusClient):
    """A client with this response to every request."""

    def __init__(self, body: bytes, packed: bool = False, max_body: int = 1 << 20) -> None:
        super().__init__("http://prometheus:9090", max_body=max_body)
        self._answer = gzip.compress(body, mtime=0) if packed else body
        self._packed = packed

    def _exchange(self, request: object) -> tuple[int, Message, bytes]:
        headers = Message()
        if self._packed:
            headers["Content-Encoding"] = "gzip"
        return 200, headers, self._answer


def check_responses(body: bytes) -> None:
    for packed in (False, True):
        try:
            for labels, value in Answered(body, packed).query_vector("up", 1.0):
                assert all(isinstance(text, str) for pair in labels.items() for text in pair)
                assert isfinite(value)
        except GpuledgerError as error:
            check_line(error)
        try:
            for _, times in Answered(body, packed).query_sample_times("up[1h]", 1.0):
                assert all(map(isfinite, times))
        except GpuledgerError as error:
            check_line(error)


@pytest.mark.parametrize("path", corpus_files("prometheus"), ids=file_name)
def test_a_corpus_response_gives_numbers_or_a_one_line_error(path: Path) -> None:
    with bounded():
        check_responses(path.read_bytes())


@fuzzed
@given(mutated_files("prometheus", *WORDS))
def test_a_mutated_response_gives_numbers_or_a_one_line_error(body: bytes) -> None:
    with bounded():
        check_responses(body)


def test_decompression_of_a_response_is_limited() -> None:
    answered = Answered(b"", packed=True, max_body=1 << 20)
    answered._answer = gzip.compress(bytes(64 << 20), 9)
    with memory_below(16 << 20), pytest.raises(GpuledgerError, match="more than 1 MiB"):
        answered.query_vector("up", 1.0)


VALUES = st.floats(0, 1e18, allow_nan=False).map(lambda value: round(value, 3))
SERIES = st.sampled_from([{"uuid": "GPU-0", "instance": "a"}, {"uuid": "GPU-0", "instance": "b"}])
VECTOR = st.lists(st.tuples(SERIES, VALUES), max_size=3)
FIELDS = ("last", "least", "resets", "highest", "increase", "samples", "wider", "wider_samples")


@fuzzed
@given(st.lists(st.fixed_dictionaries({"last": VECTOR, **dict.fromkeys(FIELDS[1:], VECTOR)}), max_size=3))
def test_no_counter_rise_is_negative_for_any_responses(ranges: list[dict[str, object]]) -> None:
    """The responses for one range come from several queries, and samples can arrive in between."""
    adder, scrapes = Rises(), LabelResolver()
    for answers in ranges:
        windows = scrapes.windows(answers, ("uuid",))  # type: ignore[arg-type]  # (as hypothesis makes them)
        for found in adder.add(windows, lambda _: False).values():
            assert isfinite(found.amount)
            assert found.amount >= 0
            assert found.error >= 0
