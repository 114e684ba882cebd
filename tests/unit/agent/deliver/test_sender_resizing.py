"""Changing the number of shards while sending: nothing is lost or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.protocol import WriteProtocol
from gpuledger.agent.deliver.queue import ReceiverQueue
from gpuledger.agent.deliver.records import compress_block
from gpuledger.agent.deliver.refused_series import RefusedSeries
from gpuledger.agent.deliver.sender import Sender
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.deliver.state import ReceiverCounts, ThrottledLog
from gpuledger.host.clock import SystemClock
from write_helpers import (
    EAGER,
    NOW,
    Post,
    ScriptedReceiver,
    block,
    everything,
    in_order,
    receiving,
    run,
    settings,
    until,
)

FEW = replace(EAGER, max_samples_per_send=10)


@asynccontextmanager
async def queued(folder: Path, to: ReceiverSettings, targets: int, each: int) -> AsyncIterator[Sender]:
    """A sender with `each` queued blocks of each target."""
    clock = SystemClock()
    queue = ReceiverQueue(folder / "queue", to.queue, clock, ThrottledLog("one", clock))
    for number in range(each):
        for target in range(targets):
            queue.append(compress_block(block(target, number), int(NOW * 1000)), dequeue=False)
    to = replace(to, queue=replace(to.queue, max_age=1e9))
    queue.apply(to.queue)
    log, refused = ThrottledLog("one", clock), RefusedSeries(clock)
    protocol, metadata = WriteProtocol(to.protocol), MetadataStore()
    sender = Sender(
        to, queue, ReceiverCounts(), clock, log, lambda: 0.5, asyncio.sleep, refused, protocol, metadata
    )
    try:
        yield sender
    finally:
        await sender.stop()
        queue.close()


def test_everything_is_delivered_in_order_during_resharding(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            receiving(ScriptedReceiver()) as there,
            queued(tmp_path, settings(there.url, queue_config=FEW), 6, 100) as sender,
        ):
            sender.start(1)
            for number, shards in enumerate((3, 2, 5, 1), 1):
                least = 100 * number
                await until(lambda least=least: len(there.received) >= least, "some to be delivered")
                await sender.resize(shards)
                assert sender.shards == shards
            await until(lambda: len(set(there.received)) == 600, "all to be delivered")
        assert sorted(there.received) == everything(6, 100)
        assert in_order(there.received)

    run(test)


def test_a_stop_during_resharding_still_delivers_queued_samples(tmp_path: Path) -> None:
    released = asyncio.Event()

    async def test() -> None:
        async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await released.wait()
            writer.write(b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n")

        def script(post: Post) -> object:
            return held if len(there.posts) == 1 else "204 No Content"

        there = ScriptedReceiver(script)  # type: ignore[arg-type]
        async with (
            receiving(there),
            queued(tmp_path, settings(there.url, queue_config=FEW), 1, 50) as sender,
        ):
            sender.start(1)
            await until(lambda: there.posts, "the first request")
            resizing = asyncio.create_task(sender.resize(2))
            await asyncio.sleep(0)
            resizing.cancel()
            await asyncio.gather(resizing, return_exceptions=True)
            released.set()
            await sender.stop(30.0)
        assert there.received == everything(1, 50)

    run(test)
