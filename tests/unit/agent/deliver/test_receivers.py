"""Receivers: requests, several receivers, stopping, changed settings and state."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger import __version__
from gpuledger.agent.deliver.receivers import Receivers
from gpuledger.agent.deliver.settings import DiskQueueLimits, QueueConfig, ReceiverSettings
from gpuledger.host.clock import SystemClock
from gpuledger.model.errors import GpuledgerError
from running import PATIENCE, free_port
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


def test_a_request_conforms_to_remote_write_1_0(tmp_path: Path) -> None:
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


def test_a_receiver_may_have_a_unicode_host_name(tmp_path: Path) -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "localhost")

    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            named = settings(there.url.replace("127.0.0.1", wide))
            async with sending(tmp_path, named) as here:
                here.accept(block(1, 7))
                await emptied(here)
        assert there.posts[0].headers["host"] == f"localhost:{there.port}"

    run(test)


def test_blocks_are_batched_until_full(tmp_path: Path) -> None:
    config = QueueConfig(max_samples_per_send=40, batch_send_deadline=3600.0)

    async def test() -> None:
        async with (
            receiving(ScriptedReceiver()) as there,
            sending(tmp_path, settings(there.url, queue_config=config)) as here,
        ):
            for number in range(10):
                here.accept(block(1, number, samples=10))
            await until(lambda: only_state(here).sent_samples == 80, "two full requests")
            assert only_state(here).queued_samples == 20
        assert [len(post.samples) for post in there.posts] == [40, 40]

    run(test)


def test_a_batch_that_is_not_full_is_sent_at_the_deadline(tmp_path: Path) -> None:
    config = QueueConfig(max_samples_per_send=40, batch_send_deadline=0.1)

    async def test() -> None:
        async with (
            receiving(ScriptedReceiver()) as there,
            sending(tmp_path, settings(there.url, queue_config=config)) as here,
        ):
            here.accept(block(1, 1, samples=10))
            here.accept(block(1, 2, samples=10))
            await emptied(here)
        assert [len(post.samples) for post in there.posts] == [20]

    run(test)


def test_a_block_above_max_samples_per_send_is_split(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            here.accept(block(1, 1, samples=250))
            await emptied(here)
        assert sorted(len(post.samples) for post in there.posts) == [50, 100, 100]

    run(test)


def test_all_requests_of_a_shard_reuse_one_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            for number in range(20):
                here.accept(block(1, number))
                await emptied(here)
        assert len(there.posts) == 20
        assert there.connections == 1

    run(test)


def test_each_receiver_gets_only_its_blocks(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as first, receiving(ScriptedReceiver()) as second:
            both = settings(first.url, "first"), settings(second.url, "second")
            async with sending(tmp_path, *both) as here:
                here.accept(block(1, 1))
                here.accept(block(1, 2), ["second", "gone"])
                await emptied(here)
        assert first.received == [(1, 1)]
        assert second.received == [(1, 1), (1, 2)]

    run(test)


def test_a_dead_receiver_does_not_delay_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as alive:
            dead = settings(f"http://127.0.0.1:{free_port()}/", "dead")
            async with sending(tmp_path, dead, settings(alive.url, "alive")) as here:
                feed(here, 2, range(5))
                await until(lambda: here.state()[1].sent_samples == 10, "the live receiver to be served")
                assert [state.queued_samples for state in here.state()] == [10, 0]

    run(test)


def test_expired_samples_are_dropped_even_during_retries(tmp_path: Path) -> None:
    clock = HandClock()

    async def test() -> None:
        there = settings(f"http://127.0.0.1:{free_port()}/", queue=DiskQueueLimits(max_age=100.0))
        async with sending(tmp_path, there, clock=clock) as here:
            feed(here, 1, range(5))
            await until(lambda: only_state(here).requests.get("connect"), "an attempt")
            clock.now = 50.0
            feed(here, 1, range(5, 7))
            clock.now = 101.0
            await until(lambda: only_state(here).dropped["queue_age"] == 5, "samples to expire")
            assert only_state(here).queued_samples == 2

    run(test)


def test_stopping_sends_queued_samples_without_waiting_for_a_full_batch(tmp_path: Path) -> None:
    config = QueueConfig(batch_send_deadline=3600.0)

    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            here = Receivers([settings(there.url, queue_config=config)], tmp_path, SystemClock())
            here.start()
            feed(here, 3, range(20))
            await here.stop()
        assert sorted(there.received) == everything(3, 20)

    run(test)


def test_stopping_does_not_wait_for_a_dead_receiver_and_the_next_start_sends_the_rest(tmp_path: Path) -> None:
    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        here = Receivers([settings(there.url)], tmp_path, SystemClock())
        here.start()
        feed(here, 3, range(20))
        async with asyncio.timeout(PATIENCE):
            await here.stop(drain_seconds=3600.0)
        async with receiving(there), sending(tmp_path, settings(there.url)) as again:
            assert only_state(again).queued_samples == 60
            await emptied(again)
        assert sorted(there.received) == everything(3, 20)
        assert in_order(there.received)

    run(test)


def test_a_second_program_cannot_open_the_queues(tmp_path: Path) -> None:
    async def test() -> None:
        async with sending(tmp_path, settings("http://127.0.0.1:9/")):
            other = Receivers([settings("http://127.0.0.1:9/")], tmp_path, SystemClock())
            with pytest.raises(
                GpuledgerError,
                match=r"are in use \(another gpuledger\); stop the other program or set",
            ):
                other.start()

    run(test)


def test_changed_settings_keep_the_queue(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there:
            dead = settings(f"http://127.0.0.1:{free_port()}/")
            async with sending(tmp_path, dead) as here:
                feed(here, 3, range(30))
                await until(lambda: only_state(here).failing, "a failure")
                config = replace(EAGER, min_shards=2, max_shards=4)
                await here.apply([settings(there.url, queue_config=config)])
                feed(here, 3, range(30, 40))
                await emptied(here)
                assert only_state(here).shards == 2
        assert sorted(there.received) == everything(3, 40)
        assert in_order(there.received)

    run(test)


def test_a_removed_receiver_keeps_its_queue_and_continues_when_added_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        async with sending(tmp_path, settings(there.url)) as here:
            feed(here, 1, range(3))
            await here.apply([settings("http://127.0.0.1:9/", "other")])
            assert [state.name for state in here.state()] == ["other"]
            assert "a receiver that is no longer configured" in caplog.text
            async with receiving(there):
                await here.apply([settings(there.url)])
                await emptied(here)
        assert there.received == everything(1, 3)

    run(test)


def test_settings_that_cannot_be_applied_change_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with receiving(ScriptedReceiver()) as there, sending(tmp_path, settings(there.url)) as here:
            (tmp_path / "bad").write_text("no folder")
            with pytest.raises(GpuledgerError, match=r"cannot open the remote write queue .*/bad: "):
                await here.apply([settings(there.url, "good"), settings(there.url, "bad")])
            here.accept(block(1, 1))
            await emptied(here)
        assert there.received == [(1, 1)]

    run(test)


def test_a_slow_receiver_gets_more_shards_and_the_order_is_kept(tmp_path: Path) -> None:
    config = replace(EAGER, max_samples_per_send=5, max_shards=4, capacity=10)

    async def test() -> None:
        def script(post: Post) -> object:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.05)
                there.received += post.samples
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

            return answer

        async def sleep(seconds: float) -> None:
            # Runs the clock twenty times as fast, for the interval between two resizings.
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
            await until(lambda: only_state(here).shards == 4, "four shards")
            await emptied(here)
            await here.stop(0)
        assert sorted(there.received) == everything(8, 100)
        assert in_order(there.received)

    run(test)


def test_the_state_reports_the_progress_of_delivery(tmp_path: Path) -> None:
    clock = HandClock()

    async def test() -> None:
        there = ScriptedReceiver(port=free_port())
        target: ReceiverSettings = settings(there.url + "?token=secret", "x")
        async with sending(tmp_path, target, clock=clock) as here:
            here.accept(block(1, 5, samples=2))
            clock.now = 10.0
            here.accept(block(1, 6))
            await until(lambda: only_state(here).failing, "a failure")
            state = only_state(here)
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
                state = only_state(here)
                assert (state.oldest, state.newest_sent) == (None, 1_795_000_000.006)
                assert (state.sent_samples, state.sent_bytes) == (
                    3,
                    sum(len(post.body) for post in there.posts),
                )
                assert state.last_success == 1_795_000_010.0

    run(test)
