"""The scrape pool deduplicates equal targets."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.agent.scrape.loop import ReceiverRouting
from gpuledger.agent.scrape.pool import ScrapePool
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.host.clock import SystemClock


def test_a_duplicate_target_is_scraped_once_and_logged_once_while_other_targets_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def target(number: int) -> Target:
        settings = ScrapeSettings(interval=3600.0)
        return Target("t", f"http://127.0.0.1:1/{number}", (("job", "t"),), settings)

    async def change() -> list[str]:
        pool, routing = ScrapePool(lambda *_: None, SystemClock()), ReceiverRouting(WriteRelabeling())
        for others in ([], [target(2)], [target(3)]):
            pool.set_targets([target(1), *others, target(1)], routing)
        urls = [loop.target.url for loop in pool.loops]
        pool.set_targets([target(1)], routing)
        pool.set_targets([target(1), target(1)], routing)
        await pool.stop()
        return urls

    assert asyncio.run(change()) == ["http://127.0.0.1:1/1", "http://127.0.0.1:1/3"]
    # Logged twice: the duplicate was removed in between.
    assert [record.message for record in caplog.records] == [
        "duplicate target http://127.0.0.1:1/1 of t: equal URL and labels"
    ] * 2
