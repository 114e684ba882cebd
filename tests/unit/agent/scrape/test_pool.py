"""All targets together: what is said of those that are equal."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.agent.scrape.labelling import Delivery
from gpuledger.agent.scrape.loop import Deliveries
from gpuledger.agent.scrape.pool import Pool
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.host.clock import SystemClock


def test_a_target_that_is_there_twice_is_scraped_once_and_said_once_however_often_others_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def target(number: int) -> Target:
        settings = ScrapeSettings(interval=3600.0)
        return Target("t", f"http://127.0.0.1:1/{number}", (("job", "t"),), settings)

    async def change() -> list[str]:
        pool, deliveries = Pool(lambda *_: None, SystemClock()), Deliveries(Delivery())
        for others in ([], [target(2)], [target(3)]):
            pool.become([target(1), *others, target(1)], deliveries)
        urls = [loop.target.url for loop in pool.loops]
        pool.become([target(1)], deliveries)
        pool.become([target(1), target(1)], deliveries)
        await pool.stop()
        return urls

    assert asyncio.run(change()) == ["http://127.0.0.1:1/1", "http://127.0.0.1:1/3"]
    # It was well in between.
    assert [record.message for record in caplog.records] == [
        "http://127.0.0.1:1/1 of t is there twice with equal labels"
    ] * 2
