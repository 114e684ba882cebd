"""Laws of a Prometheus's answers: numbers that can be added up, or one line of what is wrong."""

from __future__ import annotations

import gzip
from email.message import Message
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import bounded, check_line, fuzzed, held_below, kept, mutated, named
from gpuledger.app.prometheus_api import Prometheus
from gpuledger.ledger.report.fleet.rises import Rises
from gpuledger.ledger.report.fleet.scraped import Scrapes
from gpuledger.model.errors import GpuledgerError

WORDS = (
    *(b'"NaN"', b'"+Inf"', b'"1e999"', b'"-1e300"', b"NaN", b"1e999", b"9" * 400, b'"value":', b'"values":'),
    *(b'"metric":{"a":1}', b'"status":"error"', b'"error":"a\\nb"', b'"\\ud800"', b"null", b"[[", b"true"),
)


class Answered(Prometheus):
    """A Prometheus that answers everything so."""

    def __init__(self, body: bytes, packed: bool = False, most: int = 1 << 20) -> None:
        super().__init__("http://prometheus:9090", most=most)
        self._answer = gzip.compress(body, mtime=0) if packed else body
        self._packed = packed

    def _exchange(self, request: object) -> tuple[int, Message, bytes]:
        headers = Message()
        if self._packed:
            headers["Content-Encoding"] = "gzip"
        return 200, headers, self._answer


def law(body: bytes) -> None:
    for packed in (False, True):
        try:
            for labels, value in Answered(body, packed).vector("up", 1.0):
                assert all(isinstance(text, str) for pair in labels.items() for text in pair)
                assert isfinite(value)
        except GpuledgerError as error:
            check_line(error)
        try:
            for _, times in Answered(body, packed).matrix("up[1h]", 1.0):
                assert all(map(isfinite, times))
        except GpuledgerError as error:
            check_line(error)


@pytest.mark.parametrize("path", kept("prometheus"), ids=named)
def test_a_kept_answer_is_numbers_or_one_line(path: Path) -> None:
    with bounded():
        law(path.read_bytes())


@fuzzed
@given(mutated("prometheus", *WORDS))
def test_any_answer_is_numbers_or_one_line(body: bytes) -> None:
    with bounded():
        law(body)


def test_an_answer_that_unpacks_beyond_all_bounds_is_not_unpacked() -> None:
    answered = Answered(b"", packed=True, most=1 << 20)
    answered._answer = gzip.compress(bytes(64 << 20), 9)
    with held_below(16 << 20), pytest.raises(GpuledgerError, match="more than 1 MiB"):
        answered.vector("up", 1.0)


VALUES = st.floats(0, 1e18, allow_nan=False).map(lambda value: round(value, 3))
SERIES = st.sampled_from([{"uuid": "GPU-0", "instance": "a"}, {"uuid": "GPU-0", "instance": "b"}])
VECTOR = st.lists(st.tuples(SERIES, VALUES), max_size=3)
FIELDS = ("last", "least", "resets", "highest", "increase", "samples", "wider", "wider_samples")


@fuzzed
@given(st.lists(st.fixed_dictionaries({"last": VECTOR, **dict.fromkeys(FIELDS[1:], VECTOR)}), max_size=3))
def test_whatever_the_answers_no_counter_rises_by_less_than_nothing(ranges: list[dict[str, object]]) -> None:
    """The answers of one range come from several queries, between which samples may arrive."""
    adder, scrapes = Rises(), Scrapes()
    for answers in ranges:
        windows = scrapes.windows(answers, ("uuid",))  # type: ignore[arg-type]  # (as hypothesis makes them)
        for found in adder.add(windows, lambda _: False).values():
            assert isfinite(found.amount)
            assert found.amount >= 0
            assert found.error >= 0
