"""A target that another shard scrapes by now has not ended; one that is gone has."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gpuledger.agent.scrape.labelling import Delivery
from gpuledger.agent.scrape.loop import Deliveries
from gpuledger.agent.scrape.pool import Pool
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.exposition.remote_write import STALE
from gpuledger.host.clock import SystemClock
from gpuledger.outputs.remote_write.block import Block
from scripted_target import Answer, scripted


async def _until(blocks: list[bytes], *wanted: bytes) -> None:
    async with asyncio.timeout(60):
        while not any(all(part in block for part in wanted) for block in blocks):
            await asyncio.sleep(0.01)


def test_a_target_of_another_shard_is_not_marked_as_ended_and_one_that_is_gone_is() -> None:
    blocks: list[bytes] = []

    def accept(block: Block, _: Collection[str] | None) -> None:
        blocks.append(block.payload)

    async def hand_over(port: int) -> None:
        settings = ScrapeSettings(interval=0.2, timeout=0.2)
        url = f"http://127.0.0.1:{port}/"
        moved = Target("t", f"{url}moved", (("job", "moved"),), settings)
        gone = Target("t", f"{url}gone", (("job", "gone"),), settings)
        pool, deliveries = Pool(accept, SystemClock()), Deliveries(Delivery())
        pool.become([moved, gone], deliveries)
        await _until(blocks, b"moved")
        await _until(blocks, b"gone")
        pool.become([], deliveries, {moved.key})
        await _until(blocks, b"gone", STALE)
        await pool.stop()

    with scripted(lambda _: Answer("a 1\n")) as target:
        asyncio.run(hand_over(target.port))
    assert not [block for block in blocks if b"moved" in block and STALE in block]
