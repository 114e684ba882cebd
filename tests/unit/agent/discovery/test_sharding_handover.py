"""Staleness markers: not for a target that another shard scrapes, but for a removed one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.records import Block
from gpuledger.agent.scrape.loop import ReceiverRouting
from gpuledger.agent.scrape.pool import ScrapePool
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.exposition.remote_write import STALE
from gpuledger.host.clock import SystemClock
from running import PATIENCE
from scripted_target import Answer, scripted


async def _until(blocks: list[bytes], *wanted: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        while not any(all(part in block for part in wanted) for block in blocks):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("steps", [1, 2], ids=["at once", "after a moment without an owner"])
def test_a_target_moved_to_another_shard_is_not_marked_stale_but_a_removed_one_is(steps: int) -> None:
    blocks: list[bytes] = []

    def accept(block: Block, _: Collection[str] | None) -> None:
        blocks.append(block.payload)

    async def move(port: int) -> None:
        # The slow target's markers come after those of the quick one would have come.
        quick, slow = (ScrapeSettings(interval=interval, timeout=1.0) for interval in (1.0, 2.0))
        url = f"http://127.0.0.1:{port}/"
        moved = Target("t", f"{url}moved", (("job", "moved"),), quick)
        gone = Target("t", f"{url}gone", (("job", "gone"),), slow)
        metadata, routing = MetadataStore(), ReceiverRouting(WriteRelabeling())
        pool = ScrapePool(accept, SystemClock(), metadata=metadata)
        pool.set_targets([moved, gone], routing)
        await _until(blocks, b"moved")
        await _until(blocks, b"gone")
        if steps == 2:
            pool.set_targets([], routing)
        pool.set_targets([], routing, {moved.key})
        await _until(blocks, b"gone", STALE)
        assert metadata.families() == ()
        await pool.stop()

    with scripted(lambda _: Answer("# HELP a b\na 1\n")) as target:
        asyncio.run(move(target.port))
    assert not [block for block in blocks if b"moved" in block and STALE in block]
