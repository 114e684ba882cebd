"""QueryWorker: queries in a thread, shared by equal requests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpuledger.http.routes import Response
from gpuledger.web.api.ledger_access import QueryWorker
from running import PATIENCE


def test_too_many_pending_requests_get_503() -> None:
    ready = threading.Event()
    worker = QueryWorker("test", waiting=2)

    def compute() -> Response:
        ready.wait(PATIENCE)
        return Response()

    async def within() -> list[int]:
        pending = [worker.submit(number, compute) for number in range(3)]
        ready.set()
        return [(one if isinstance(one, Response) else await one).status for one in pending]

    assert asyncio.run(within()) == [200, 200, 503]


def test_equal_concurrent_requests_share_one_computation() -> None:
    worker, computed = QueryWorker("test", waiting=2), []

    def compute() -> Response:
        computed.append(1)
        return Response(body=b"x")

    async def within() -> set[bytes]:
        pending = [worker.submit("same", compute) for _ in range(50)]
        return {(one if isinstance(one, Response) else await one).body for one in pending}

    assert (asyncio.run(within()), len(computed)) == ({b"x"}, 1)


def test_a_thread_that_cannot_start_fails_one_request_and_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without memory for a thread, as under RLIMIT_AS."""
    worker, start, attempts = QueryWorker("test"), threading.Thread.start, []

    def start_second_time(thread: threading.Thread) -> None:
        attempts.append(thread)
        if len(attempts) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_second_time)

    async def within() -> int:
        with pytest.raises(RuntimeError, match="new thread"):
            worker.submit("same", Response)
        answer = worker.submit("same", Response)
        return (answer if isinstance(answer, Response) else await answer).status

    assert asyncio.run(within()) == 200


def test_a_response_for_an_ended_loop_is_dropped_and_the_worker_continues() -> None:
    worker, ready = QueryWorker("test"), threading.Event()

    def compute() -> Response:
        ready.wait(PATIENCE)
        return Response()

    async def leave() -> None:
        worker.submit(1, compute)

    async def stay() -> int:
        answer = worker.submit(2, Response)
        return (answer if isinstance(answer, Response) else await answer).status

    asyncio.run(leave())
    ready.set()
    assert asyncio.run(stay()) == 200
