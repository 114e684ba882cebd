"""Delivery: what a request is, several receivers, stopping, other settings, and what is told of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger import __version__
from gpuledger.agent.deliver.receivers import Receivers
from gpuledger.agent.deliver.settings import DiskQueue, QueueConfig, ReceiverSettings
from gpuledger.host.clock import SystemClock
from gpuledger.model.errors import GpuledgerError
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


def test_a_request_is_what_remote_write_1_0_asks_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 7, samples=3))
            await emptied(here)
        (post,) = there.posts
        assert post.headers == {
            "": "POST /api/v1/write HTTP/1.1",
            "host": f"127.0.0.1:{there.port}",
            "user-agent": f"gpuledger/{__version__}",
            "content-type": "application/x-protobuf",
            "content-encoding": "snappy",
            "x-prometheus-remote-write-version": "0.1.0",
            "content-length": str(len(post.body)),
        }
        assert post.samples == [(1, 7)] * 3

    run(test)


def test_a_receiver_may_have_a_name_beyond_ascii(tmp_path: Path) -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "localhost")

    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            named = settings(there.url.replace("127.0.0.1", wide))
            async with sending(tmp_path, named) as here:
                here.accept(block(1, 7))
                await emptied(here)
        assert there.posts[0].headers["host"] == f"localhost:{there.port}"

    run(test)


def test_blocks_are_gathered_until_there_are_enough_or_the_first_has_waited(tmp_path: Path) -> None:
    config = QueueConfig(max_samples_per_send=40, batch_send_deadline=0.2)

    async def test() -> None:
        async with (
            receiving(ScriptedReceiver()) as there,
            sending(tmp_path, settings(there.url, queue_config=config)) as here,
        ):
            for number in range(10):
                here.accept(block(1, number, samples=10))
            await until(lambda: one(here).sent_samples == 80, "two full requests")
            assert one(here).queued_samples == 20
            await emptied(here)
        assert [len(post.samples) for post in there.posts] == [40, 40, 20]

    run(test)


def test_a_block_of_more_samples_than_a_request_may_have_goes_in_parts(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 1, samples=250))
            await emptied(here)
        assert sorted(len(post.samples) for post in there.posts) == [50, 100, 100]

    run(test)


def test_one_connection_carries_all_requests_of_a_shard(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            for number in range(20):
                here.accept(block(1, number))
                await emptied(here)
        assert len(there.posts) == 20
        assert there.connections == 1

    run(test)


def test_every_receiver_gets_what_is_for_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as first, receiving(ScriptedReceiver()) as second:
            both = settings(first.url, "first"), settings(second.url, "second")
            async with sending(tmp_path, *both) as here:
                here.accept(block(1, 1))
                here.accept(block(1, 2), ["second", "gone"])
                await emptied(here)
        assert first.taken == [(1, 1)]
        assert second.taken == [(1, 1), (1, 2)]

    run(test)


def test_a_dead_receiver_does_not_hold_up_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as alive:
            dead = settings(f"http://127.0.0.1:{free_port()}/", "dead")
            async with sending(tmp_path, dead, settings(alive.url, "alive")) as here:
                feed(here, 2, range(5))
                await until(lambda: here.state()[1].sent_samples == 10, "the living one to get all")
                assert [state.queued_samples for state in here.state()] == [10, 0]

    run(test)


def test_samples_too_old_are_dropped_also_while_they_are_being_tried(tmp_path: Path) -> None:
    clock = HandClock()

    async def test() -> None:
        there = settings(f"http://127.0.0.1:{free_port()}/", queue=DiskQueue(max_age=100.0))
        async with sending(tmp_path, there, clock=clock) as here:
            feed(here, 1, range(5))
            await until(lambda: one(here).requests.get("connect"), "a try")
            clock.now = 50.0
            feed(here, 1, range(5, 7))
            clock.now = 101.0
            await until(lambda: one(here).dropped["queue_age"] == 5, "the old ones to go")
            assert one(here).queued_samples == 2

    run(test)


def test_stopping_sends_what_is_queued_without_waiting_for_more(tmp_path: Path) -> None:
    config = QueueConfig(batch_send_deadline=3600.0)

    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            here = Receivers([settings(there.url, queue_config=config)], tmp_path, SystemClock())
            here.start()
            feed(here, 3, range(20))
            await here.stop()
        assert sorted(there.taken) == everything(3, 20)

    run(test)


def test_stopping_does_not_wait_for_a_receiver_that_is_down_and_the_next_start_sends(tmp_path: Path) -> None:
    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        here = Receivers([settings(there.url)], tmp_path, SystemClock())
        here.start()
        feed(here, 3, range(20))
        async with asyncio.timeout(4):
            await here.stop()
        async with receiving(there), sending(tmp_path, settings(there.url)) as again:
            assert one(again).queued_samples == 60
            await emptied(again)
        assert sorted(there.taken) == everything(3, 20)
        assert in_order(there.taken)

    run(test)


def test_a_second_program_is_refused_the_queues(tmp_path: Path) -> None:
    async def test() -> None:
        async with sending(tmp_path, settings("http://127.0.0.1:9/")):
            other = Receivers([settings("http://127.0.0.1:9/")], tmp_path, SystemClock())
            with pytest.raises(
                GpuledgerError, match=r"are in use \(another gpuledger\): stop it, or name another"
            ):
                other.start()

    run(test)


def test_other_settings_go_on_with_the_same_queue(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            dead = settings(f"http://127.0.0.1:{free_port()}/")
            async with sending(tmp_path, dead) as here:
                feed(here, 3, range(30))
                await until(lambda: one(here).failing, "a failure")
                config = replace(EAGER, min_shards=2, max_shards=4)
                await here.apply([settings(there.url, queue_config=config)])
                feed(here, 3, range(30, 40))
                await emptied(here)
                assert one(here).shards == 2
        assert sorted(there.taken) == everything(3, 40)
        assert in_order(there.taken)

    run(test)


def test_a_receiver_that_is_no_longer_named_rests_and_goes_on_when_it_is_named_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        async with sending(tmp_path, settings(there.url)) as here:
            feed(here, 1, range(3))
            await here.apply([settings("http://127.0.0.1:9/", "other")])
            assert [state.name for state in here.state()] == ["other"]
            assert "a receiver that is not named any more" in caplog.text
            async with receiving(there):
                await here.apply([settings(there.url)])
                await emptied(here)
        assert there.taken == everything(1, 3)

    run(test)


def test_settings_that_cannot_be_taken_change_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            (tmp_path / "bad").write_text("no folder")
            with pytest.raises(GpuledgerError, match=r"queue .*/bad cannot be used"):
                await here.apply([settings(there.url, "good"), settings(there.url, "bad")])
            here.accept(block(1, 1))
            await emptied(here)
        assert there.taken == [(1, 1)]

    run(test)


def test_more_shards_are_taken_for_a_receiver_far_away_and_the_order_is_kept(tmp_path: Path) -> None:
    config = replace(EAGER, max_samples_per_send=5, max_shards=4, capacity=10)

    async def test() -> None:
        def script(post: Post) -> object:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.05)
                there.taken += post.samples
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

            return answer

        async def sleep(seconds: float) -> None:
            # Ten of the seconds after which the number of shards is thought over.
            await asyncio.sleep(seconds / 20)
            clock.ahead += seconds

        class Fast(SystemClock):
            ahead = 0.0

            def elapsed(self) -> float:
                return super().elapsed() + self.ahead

        clock = Fast()
        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with receiving(there):
            here = Receivers([settings(there.url, queue_config=config)], tmp_path, clock, sleep=sleep)
            here.start()
            feed(here, 8, range(100))
            await until(lambda: one(here).shards == 4, "four shards")
            await emptied(here)
            await here.stop(0)
        assert sorted(there.taken) == everything(8, 100)
        assert in_order(there.taken)

    run(test)


def test_the_state_says_how_far_delivery_is(tmp_path: Path) -> None:
    clock = HandClock()

    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        target: ReceiverSettings = settings(there.url + "?token=secret", "x")
        async with sending(tmp_path, target, clock=clock) as here:
            here.accept(block(1, 5, samples=2))
            clock.now = 10.0
            here.accept(block(1, 6))
            await until(lambda: one(here).failing, "a failure")
            state = one(here)
            assert state.url == there.url
            assert (state.queued_blocks, state.queued_samples, state.accepted_samples) == (2, 3, 3)
            assert 0 < state.queued_bytes < state.disk_bytes
            assert state.oldest == 1_795_000_000.0
            assert (state.newest_accepted, state.newest_sent, state.last_success) == (
                1_795_000_000.006,
                None,
                None,
            )
            assert state.last_error_at == 1_795_000_010.0
            async with receiving(there):
                await emptied(here)
                state = one(here)
                assert (state.oldest, state.newest_sent) == (None, 1_795_000_000.006)
                assert (state.sent_samples, state.sent_bytes) == (
                    3,
                    sum(len(post.body) for post in there.posts),
                )
                assert state.last_success == 1_795_000_010.0

    run(test)
