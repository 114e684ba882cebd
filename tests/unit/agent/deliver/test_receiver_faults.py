"""Delivery to receivers that are down, reject, are slow or break connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from gpuledger.agent.deliver import requests
from gpuledger.agent.deliver.queue import ReceiverQueue
from gpuledger.agent.deliver.queue_reader import QueueReader
from gpuledger.agent.deliver.receivers import Receivers
from running import free_port
from write_helpers import (
    EAGER,
    HandClock,
    Post,
    ScriptedReceiver,
    block,
    emptied,
    everything,
    feed,
    in_order,
    only_state,
    receiving,
    run,
    sending,
    settings,
    until,
)


@pytest.mark.parametrize("shards", [1, 3])
def test_samples_queued_during_an_outage_arrive_in_order_afterwards(tmp_path: Path, shards: int) -> None:
    config = replace(EAGER, min_shards=shards, max_shards=shards)

    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        there.scheme = "http"
        async with sending(tmp_path, settings(there.url, queue_config=config)) as here:
            feed(here, 4, range(300))
            await until(lambda: only_state(here).requests.get("connect", 0) > 5, "some failed attempts")
            state = only_state(here)
            assert (state.queued_samples, state.sent_samples, state.failing) == (1200, 0, True)
            assert state.last_error == "cannot connect: connection refused"
            async with receiving(there):
                await emptied(here)
                assert not only_state(here).failing
        assert sorted(there.received) == everything(4, 300)
        assert in_order(there.received)

    run(test)


@pytest.mark.parametrize(
    "status", ["500 Oops", "503 Later", "429 Slow down", "302 Found\nLocation: http://elsewhere/"]
)
def test_retryable_statuses_are_retried_in_order(tmp_path: Path, status: str) -> None:
    async def test() -> None:
        def script(post: Post) -> str:
            return status if len(there.posts) % 3 else "200 OK"

        there = ScriptedReceiver(script)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            feed(here, 2, range(50))
            await emptied(here)
            assert only_state(here).requests[status[:3]] > 0
            assert only_state(here).retried_samples > 0
            assert sum(only_state(here).dropped.values()) == 0
        assert sorted(there.received) == everything(2, 50)
        assert in_order(there.received)

    run(test)


def test_a_redirect_is_not_followed_and_the_error_names_the_remedy(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as elsewhere:
            there = ScriptedReceiver(lambda post: f"307 Temporary Redirect\nLocation: {elsewhere.url}")
            async with receiving(there), sending(tmp_path, settings(there.url)) as here:
                here.accept(block(1, 1))
                await until(lambda: len(there.posts) > 2, "some tries")
                assert only_state(here).last_error == (
                    "the receiver returned HTTP status 307; redirects are not followed, set the URL to the "
                    "redirect's target"
                )
            assert elsewhere.connections == 0

    run(test)


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_only_the_block_that_causes_a_rejection_is_dropped(
    tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        def script(post: Post) -> str:
            return f"{status} No" if any(number == 13 for _, number in post.samples) else "204 No Content"

        there = ScriptedReceiver(script, body="out of\r\nbounds\x1b[31m \x00")
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(30):
                here.accept(block(1, number, samples=3))
            await emptied(here)
            state = only_state(here)
            assert state.dropped["rejected"] == 3
            assert state.sent_samples == 87
            assert not state.refusing
            assert state.last_error == (
                f"the receiver returned HTTP status {status}: out of bounds\\x1b[31m \\x00"
            )
        assert there.received == [(1, number) for number in range(30) for _ in range(3) if number != 13]

    run(test)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("out of bounds" in line for line in lines) == 1
    assert not any("\x1b" in line or "\n" in line for line in lines)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_rejection_that_no_sample_causes_is_not_retried_in_halves(tmp_path: Path, status: int) -> None:
    async def test() -> None:
        there = ScriptedReceiver(lambda post: f"{status} No")
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(10):
                here.accept(block(1, number))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 10
            await until(lambda: only_state(here).refusing, "a receiver that rejects everything")
        assert len(there.posts) <= 2

    run(test)


def test_429_is_a_rejection_without_retry_on_http_429(tmp_path: Path) -> None:
    config = replace(EAGER, retry_on_http_429=False)

    async def test() -> None:
        there = ScriptedReceiver(lambda post: "429 Slow down")
        async with receiving(there), sending(tmp_path, settings(there.url, queue_config=config)) as here:
            here.accept(block(1, 1))
            await emptied(here)
            assert only_state(here).dropped["rejected"] == 1

    run(test)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_delays_all_shards(tmp_path: Path, form: str) -> None:
    clock = HandClock()
    config = replace(EAGER, min_shards=3, max_shards=3)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        # The sender's waits pass at once; the maintenance interval of one second does not.
        await asyncio.sleep(3600 if seconds == 1.0 else 0)
        clock.now += seconds

    async def test() -> None:
        delay = "60" if form == "seconds" else formatdate(clock.unix() + 60, usegmt=True)

        def script(post: Post) -> str:
            return f"503 Later\nRetry-After: {delay}" if clock.now == 0 else "204 No Content"

        there = ScriptedReceiver(script)
        async with receiving(there):
            here = Receivers([settings(there.url, queue_config=config)], tmp_path, clock, lambda: 0.5, sleep)
            here.start()
            here.accept(block(0, 1))
            await until(lambda: there.received, "the sample")
            feed(here, 3, range(2, 3))
            await emptied(here)
            await here.stop(0)
        assert max(slept) > 59
        assert clock.now >= 60

    run(test)


def test_a_shard_sends_one_request_at_a_time_to_a_slow_receiver(tmp_path: Path) -> None:
    async def test() -> None:
        open_now = most_open = 0

        def script(post: Post) -> object:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal open_now, most_open
                open_now += 1
                most_open = max(most_open, open_now)
                await asyncio.sleep(0.02)
                open_now -= 1
                there.received += post.samples
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

            return answer

        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            feed(here, 2, range(200))
            await emptied(here)
        assert sorted(there.received) == everything(2, 200)
        assert in_order(there.received)
        assert most_open == 1

    run(test)


def test_a_request_without_a_response_times_out_and_is_retried(tmp_path: Path) -> None:
    async def test() -> None:
        def script(post: Post) -> object:
            async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()

            return "204 No Content" if len(there.posts) > 2 else nothing

        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with receiving(there), sending(tmp_path, settings(there.url, remote_timeout=0.1)) as here:
            here.accept(block(1, 1))
            await emptied(here)
            timeouts = only_state(here).requests["timeout"]
        # A slow machine may also miss the timeout of a request with a response.
        assert timeouts >= 2
        assert there.connections == timeouts + 1

    run(test)


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"])
def test_a_truncated_response_is_retried(tmp_path: Path, part: bytes) -> None:
    async def test() -> None:
        def script(post: Post) -> object:
            async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(part)
                await writer.drain()
                writer.transport.abort() if not part else writer.close()

            return "204 No Content" if len(there.posts) > 3 else die

        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            feed(here, 1, range(3))
            await emptied(here)
            assert only_state(here).requests["broken"] >= 3
        assert there.received == everything(1, 3)

    run(test)


def test_a_connection_reset_during_a_request_is_retried(tmp_path: Path) -> None:
    resets = 0

    async def test() -> None:
        there = ScriptedReceiver()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal resets
            if resets < 3:
                resets += 1
                await reader.readexactly(200)
                writer.transport.abort()
            else:
                await there.serve(reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        there.port = server.sockets[0].getsockname()[1]
        async with server, sending(tmp_path, settings(there.url)) as here:
            for number in range(3):
                here.accept(block(1, number, padding=100_000))
            await emptied(here)
        assert there.received == [(1, 0), (1, 1), (1, 2)]

    run(test)


def test_an_idle_connection_closed_by_the_receiver_is_no_failure(tmp_path: Path) -> None:
    async def test() -> None:
        there = ScriptedReceiver(lambda post: "204 No Content\nConnection: keep-alive")
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await there.serve(reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        there.port = server.sockets[0].getsockname()[1]
        async with server, sending(tmp_path, settings(there.url)) as here:
            for number in range(5):
                here.accept(block(1, number))
                await emptied(here)
                # Closes only its sending half: it would read a request and never respond.
                writers[-1].write_eof()
            assert only_state(here).requests == {"2xx": 5}
        # Requests that it received before we noticed the end were sent again.
        assert list(dict.fromkeys(there.received)) == [(1, number) for number in range(5)]

    run(test)


def test_an_unsolicited_response_is_not_used_for_the_next_request(tmp_path: Path) -> None:
    async def test() -> None:
        there = ScriptedReceiver()
        answered, hung_up = asyncio.Event(), asyncio.Event()

        def script(post: Post) -> object:
            async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there.received += post.samples
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                await writer.drain()
                await answered.wait()
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                assert await reader.read() == b""
                hung_up.set()

            return answer_twice if len(there.posts) == 1 else "204 No Content"

        there.script = script  # type: ignore[assignment]
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 1))
            await emptied(here)
            answered.set()
            await until(hung_up.is_set, "the connection with the unsolicited response to be closed")
            here.accept(block(1, 2))
            await emptied(here)
        assert there.received == [(1, 1), (1, 2)]
        assert there.connections == 2

    run(test)


def failing_first(times: int, real: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function so that its first calls raise MemoryError."""
    left = times

    def called(*arguments: object) -> object:
        nonlocal left
        left -= 1
        if left >= 0:
            raise MemoryError
        return real(*arguments)

    return called


def test_out_of_memory_delays_sending_and_ends_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        there = ScriptedReceiver()
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            monkeypatch.setattr(requests, "join_records", failing_first(3, requests.join_records))
            monkeypatch.setattr(QueueReader, "next_record", failing_first(2, QueueReader.next_record))
            monkeypatch.setattr(
                ReceiverQueue, "run_maintenance", failing_first(1, ReceiverQueue.run_maintenance)
            )
            feed(here, 4, range(20))
            await emptied(here)
            assert not only_state(here).failing
            await until(
                lambda: "queue maintenance failed (MemoryError())" in caplog.text, "failed maintenance"
            )
        assert sorted(there.received) == everything(4, 20)
        assert in_order(there.received)

    run(test)
    assert caplog.text.count("cannot send a request") == 1
    assert "shard ended unexpectedly" not in caplog.text
