"""Fuzz tests of requests of other users: lines on the control socket, and queries of receipts over HTTP."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock, gpu, process
from fuzzing import bounded, fuzzed, mutated, mutated_values
from gpuledger.app.readers import Peer
from gpuledger.app.user_requests import RequestThreads
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run
from unit.app.test_free_requests import ANN, Node
from unit.web.api.test_receipts import OPTIONS, ReceiptClient

CARD = gpu(0, name="NVIDIA L4")
TAKE = {"do": "free", "act": "reserve", "window": 0, "count": 1, "seconds": 60, "model": "L4", "memory": 1}
REQUESTS = (
    TAKE,
    {"do": "free", "act": "list", "window": 300},
    {"do": "free", "act": "release", "devices": ["GPU-0"]},
)
WORDS = (
    *("of=user:dan", "of=job:1", "of=pod:a/b", "mine=true", "in=2026-10", "since=1h", "until=now", "basis=x"),
    *(
        "of=4711",
        "format=html",
        "since=9999-99-99",
        "of=" + "x" * 3000,
        "of=%00",
        "of=%ED%A0%80",
        "=",
        "&",
        "%",
    ),
)


class Requests:
    """The socket's side of a node, without a socket."""

    def __init__(self) -> None:
        self.node = Node()
        one, other = socket.socketpair()
        other.close()
        self.threads = RequestThreads(one, {"free": self.node.requests.answer})

    def answer(self, line: bytes, peer: Peer) -> Any:
        with bounded():
            return self.threads._answer(line, peer)

    def close(self) -> None:
        self.threads._listening.close()


@pytest.fixture(scope="module")
def requests() -> Any:
    made = Requests()
    yield made
    made.close()


@fuzzed
@given(mutated([json.dumps(one).encode() + b"\n" for one in REQUESTS], b'"act"', b"1e999", b"NaN"))
def test_every_line_on_the_socket_is_answered(requests: Requests, line: bytes) -> None:
    answer = requests.answer(line, ANN)
    assert json.dumps(answer)
    assert "internal error" not in str(answer.get("error"))


@fuzzed
@given(mutated_values(*REQUESTS))
def test_every_request_on_the_socket_is_answered(requests: Requests, content: Any) -> None:
    answer = requests.answer(json.dumps(content).encode(), ANN)
    assert json.dumps(answer)
    assert "internal error" not in str(answer.get("error"))
    # No reservation is longer than it can be.
    requests.node.tick()
    ends = [one.ends for one in requests.node.board._book if one.ends is not None]
    assert all(end <= requests.node.board._clock.elapsed() + 12 * 3600 for end in ends)


@pytest.fixture(scope="module")
def receipts(tmp_path_factory: pytest.TempPathFactory) -> ReceiptClient:
    run = Run(tmp_path_factory.mktemp("books"), clock=FakeClock(UNIX))
    for minute in range(3):
        run.tick(
            {CARD: minute * 10_000}, [process(CARD, 7, workload=Workload("user", user="dan"))], seconds=60.0
        )
    run.store.close()
    return ReceiptClient(run.store.file, OPTIONS)


queries = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=12)), max_size=4).map("&".join)


@fuzzed
@given(query=queries)
def test_every_query_of_a_receipt_is_answered(receipts: ReceiptClient, query: str) -> None:
    with bounded():
        status, answer = receipts.json(query)
    assert status in (200, 400, 404), (status, answer)


@fuzzed
@given(name=st.text(max_size=20), query=queries)
def test_every_page_of_a_receipt_is_answered(receipts: ReceiptClient, name: str, query: str) -> None:
    with bounded():
        found = receipts.page(quote(name, errors="replace"), query)
    assert found.status in (200, 302, 303, 307, 400, 404), found.status
    assert b"<script" not in found.body
