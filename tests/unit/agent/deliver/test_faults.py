"""Delivery to receivers that are down, refuse, are slow, or break off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from gpuledger.agent.deliver import sender
from gpuledger.agent.deliver.queue import Queue
from gpuledger.agent.deliver.reader import Reader
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
    one,
    receiving,
    run,
    sending,
    settings,
    until,
)


@pytest.mark.parametrize("shards", [1, 3])
def test_what_waits_while_the_receiver_is_down_arrives_in_order_when_it_is_back(
    tmp_path: Path, shards: int
) -> None:
    config = replace(EAGER, min_shards=shards, max_shards=shards)

    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        there.scheme = "http"
        async with sending(tmp_path, settings(there.url, queue_config=config)) as here:
            feed(here, 4, range(300))
            await until(lambda: one(here).requests.get("connect", 0) > 5, "some tries in vain")
            state = one(here)
            assert (state.queued_samples, state.sent_samples, state.failing) == (1200, 0, True)
            assert state.last_error == "127.0.0.1 cannot be reached: Connection refused"
            async with receiving(there):
                await emptied(here)
                assert not one(here).failing
        assert sorted(there.taken) == everything(4, 300)
        assert in_order(there.taken)

    run(test)


@pytest.mark.parametrize(
    "status", ["500 Oops", "503 Later", "429 Slow down", "302 Found\nLocation: http://elsewhere/"]
)
def test_answers_that_may_pass_are_tried_again_in_order(tmp_path: Path, status: str) -> None:
    async def test() -> None:
        def script(post: Post) -> str:
            return status if len(there.posts) % 3 else "200 OK"

        there = ScriptedReceiver(script)
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            feed(here, 2, range(50))
            await emptied(here)
            assert one(here).requests[status[:3]] > 0
            assert one(here).retried_samples > 0
            assert sum(one(here).dropped.values()) == 0
        assert sorted(there.taken) == everything(2, 50)
        assert in_order(there.taken)

    run(test)


def test_a_redirect_is_not_followed_and_its_remedy_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as elsewhere:
            there = ScriptedReceiver(lambda post: f"307 Temporary Redirect\nLocation: {elsewhere.url}")
            async with receiving(there), sending(tmp_path, settings(there.url)) as here:
                here.accept(block(1, 1))
                await until(lambda: len(there.posts) > 2, "some tries")
                assert one(here).last_error == (
                    "it answers 307, a redirect, which is not followed: name the URL that it leads to"
                )
            assert elsewhere.connections == 0

    run(test)


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_of_a_refused_request_only_the_block_that_it_is_about_is_lost(
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
            state = one(here)
            assert state.dropped["rejected"] == 3
            assert state.sent_samples == 87
            assert not state.refusing
            assert state.last_error == f"it answers {status}: out of bounds\\x1b[31m \\x00"
        assert there.taken == [(1, number) for number in range(30) for _ in range(3) if number != 13]

    run(test)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("out of bounds" in line for line in lines) == 1
    assert not any("\x1b" in line or "\n" in line for line in lines)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_that_is_about_no_sample_in_particular_is_not_asked_about_again(
    tmp_path: Path, status: int
) -> None:
    async def test() -> None:
        there = ScriptedReceiver(lambda post: f"{status} No")
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            for number in range(10):
                here.accept(block(1, number))
            await emptied(here)
            assert one(here).dropped["rejected"] == 10
            await until(lambda: one(here).refusing, "a receiver that takes nothing")
        assert len(there.posts) <= 2

    run(test)


def test_429_is_a_refusal_where_the_user_says_so(tmp_path: Path) -> None:
    config = replace(EAGER, retry_on_http_429=False)

    async def test() -> None:
        there = ScriptedReceiver(lambda post: "429 Slow down")
        async with receiving(there), sending(tmp_path, settings(there.url, queue_config=config)) as here:
            here.accept(block(1, 1))
            await emptied(here)
            assert one(here).dropped["rejected"] == 1

    run(test)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_holds_all_shards_for_as_long_as_it_says(tmp_path: Path, form: str) -> None:
    clock = HandClock()
    config = replace(EAGER, min_shards=3, max_shards=3)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        # The sender's own wait goes by at once; the second of looking after the queue does not.
        await asyncio.sleep(3600 if seconds == 1.0 else 0)
        clock.now += seconds

    async def test() -> None:
        said = "60" if form == "seconds" else formatdate(clock.unix() + 60, usegmt=True)

        def script(post: Post) -> str:
            return f"503 Later\nRetry-After: {said}" if clock.now == 0 else "204 No Content"

        there = ScriptedReceiver(script)
        async with receiving(there):
            here = Receivers([settings(there.url, queue_config=config)], tmp_path, clock, lambda: 0.5, sleep)
            here.start()
            here.accept(block(0, 1))
            await until(lambda: there.taken, "the sample")
            feed(here, 3, range(2, 3))
            await emptied(here)
            await here.stop(0)
        assert max(slept) > 59
        assert clock.now >= 60

    run(test)


def test_a_slow_receiver_gets_everything_and_no_two_requests_of_a_shard_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        open_now = most_open = 0

        def script(post: Post) -> object:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal open_now, most_open
                open_now += 1
                most_open = max(most_open, open_now)
                await asyncio.sleep(0.02)
                open_now -= 1
                there.taken += post.samples
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

            return answer

        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            feed(here, 2, range(200))
            await emptied(here)
        assert sorted(there.taken) == everything(2, 200)
        assert in_order(there.taken)
        assert most_open == 1

    run(test)


def test_a_receiver_that_never_answers_is_given_up_after_the_timeout_and_asked_anew(tmp_path: Path) -> None:
    async def test() -> None:
        def script(post: Post) -> object:
            async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()

            return "204 No Content" if len(there.posts) > 2 else nothing

        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with receiving(there), sending(tmp_path, settings(there.url, remote_timeout=0.1)) as here:
            here.accept(block(1, 1))
            await emptied(here)
            assert one(here).requests["timeout"] == 2
        assert there.connections == 3

    run(test)


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"])
def test_a_receiver_that_dies_in_the_middle_of_an_answer_is_asked_anew(tmp_path: Path, part: bytes) -> None:
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
            assert one(here).requests["broken"] >= 3
        assert there.taken == everything(1, 3)

    run(test)


def test_a_receiver_that_resets_in_the_middle_of_a_request_is_asked_anew(tmp_path: Path) -> None:
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
        assert there.taken == [(1, 0), (1, 1), (1, 2)]

    run(test)


def test_a_connection_that_the_receiver_closed_while_idle_costs_no_failure(tmp_path: Path) -> None:
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
                # Half of it alone: it would still read what we send, and never answer.
                writers[-1].write_eof()
            assert one(here).requests == {"2xx": 5}
        # What reached it before we heard of the end was sent once more.
        assert list(dict.fromkeys(there.taken)) == [(1, number) for number in range(5)]

    run(test)


def test_what_a_proxy_says_unasked_is_no_answer_to_the_next_request(tmp_path: Path) -> None:
    async def test() -> None:
        there = ScriptedReceiver()
        answered, hung_up = asyncio.Event(), asyncio.Event()

        def script(post: Post) -> object:
            async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there.taken += post.samples
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
            await until(hung_up.is_set, "the connection with the unasked answer to be given up")
            here.accept(block(1, 2))
            await emptied(here)
        assert there.taken == [(1, 1), (1, 2)]
        assert there.connections == 2

    run(test)


def failing_first(times: int, real: Callable[..., object]) -> Callable[..., object]:
    """The same, for which there is no memory so many times."""
    left = times

    def called(*arguments: object) -> object:
        nonlocal left
        left -= 1
        if left >= 0:
            raise MemoryError
        return real(*arguments)

    return called


def test_memory_that_runs_out_while_it_sends_delays_that_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        there = ScriptedReceiver()
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            monkeypatch.setattr(sender, "joined", failing_first(3, sender.joined))
            monkeypatch.setattr(Reader, "next", failing_first(2, Reader.next))
            monkeypatch.setattr(Queue, "tend", failing_first(1, Queue.tend))
            feed(here, 4, range(20))
            await emptied(here)
            assert not one(here).failing
            await until(lambda: "looked after (MemoryError())" in caplog.text, "the queue to be looked after")
        assert sorted(there.taken) == everything(4, 20)
        assert in_order(there.taken)

    run(test)
    assert caplog.text.count("a request could not be made") == 1
    assert "which it never should" not in caplog.text
