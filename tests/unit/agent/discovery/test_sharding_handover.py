"""A target that another shard scrapes by now has not ended; one that is gone has."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from gpuledger.agent.deliver.records import Block
from gpuledger.agent.scrape.labelling import Delivery
from gpuledger.agent.scrape.loop import Deliveries
from gpuledger.agent.scrape.pool import Pool
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.exposition.remote_write import STALE
from gpuledger.host.clock import SystemClock
from scripted_target import Answer, scripted


async def _until(blocks: list[bytes], *wanted: bytes) -> None:
    async with asyncio.timeout(60):
        while not any(all(part in block for part in wanted) for block in blocks):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("steps", [1, 2], ids=["at once", "after it was nobody's for a moment"])
def test_a_target_of_another_shard_is_not_marked_as_ended_and_one_that_is_gone_is(steps: int) -> None:
    blocks: list[bytes] = []

    def accept(block: Block, _: Collection[str] | None) -> None:
        blocks.append(block.payload)

    async def hand_over(port: int) -> None:
        # The end of the slow one is told after that of the quick one would have been.
        quick, slow = (ScrapeSettings(interval=interval, timeout=0.2) for interval in (0.2, 1.0))
        url = f"http://127.0.0.1:{port}/"
        moved = Target("t", f"{url}moved", (("job", "moved"),), quick)
        gone = Target("t", f"{url}gone", (("job", "gone"),), slow)
        pool, deliveries = Pool(accept, SystemClock()), Deliveries(Delivery())
        pool.become([moved, gone], deliveries)
        await _until(blocks, b"moved")
        await _until(blocks, b"gone")
        if steps == 2:
            pool.become([], deliveries)
        pool.become([], deliveries, {moved.key})
        await _until(blocks, b"gone", STALE)
        await pool.stop()

    with scripted(lambda _: Answer("a 1\n")) as target:
        asyncio.run(hand_over(target.port))
    assert not [block for block in blocks if b"moved" in block and STALE in block]
