"""The scrape pool deduplicates equal targets, and ends the series of those that are gone."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.agent.scrape.loop import ReceiverRouting, ScrapeLoop
from gpuledger.agent.scrape.pool import ScrapePool
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.host.clock import SystemClock
from scraped_blocks import Accepted
from scripted_target import Answer, scripted


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


SAME, OTHER = (("instance", "gpu-1"), ("job", "t")), (("instance", "gpu-2"), ("job", "t"))
REPORT = {
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
}
# Labels and pages of the targets that are still scraped, and which series of the page `a 1, b 1` have ended.
SUCCESSORS = {
    "none": ([], {"a", "b"} | REPORT),
    "another instance": ([(OTHER, [Answer("a 1\nb 1\n")])], {"a", "b"} | REPORT),
    "the same instance": ([(SAME, [Answer("a 1\nb 1\n")])], set()),
    "with fewer series": ([(SAME, [Answer("b 1\nc 1\n")])], {"a"}),
    "that is down": ([(SAME, [Answer("", status=500)])], {"a", "b"}),
    "that went down": ([(SAME, [Answer("a 1\n"), Answer("", status=500)])], {"a", "b"}),
    "in two parts": ([(SAME, [Answer("a 1\n")]), (SAME, [Answer("b 1\n")])], set()),
}


@pytest.mark.parametrize(("successors", "ended"), SUCCESSORS.values(), ids=SUCCESSORS)
def test_series_that_another_target_exports_have_not_ended(
    successors: list[tuple[tuple[tuple[str, str], ...], list[Answer]]], ended: set[str]
) -> None:
    """A pod with another address, or https instead of http, and labels that name only the machine."""
    accepted = Accepted()
    scraped = [(SAME, [Answer("a 1\nb 1\n")]), *successors]
    left = {f"/{number}": list(pages) for number, (_, pages) in enumerate(scraped)}

    async def run(port: int) -> None:
        loops = []
        for number, (labels, pages) in enumerate(scraped):
            target = Target("t", f"http://127.0.0.1:{port}/{number}", labels, ScrapeSettings())
            loop = ScrapeLoop(target, ReceiverRouting(WriteRelabeling()), accepted.accept, SystemClock())
            for _ in pages:
                await loop.scrape(1_700_000_000_000)
            loops.append(loop)
        del accepted.blocks[:]
        loops[0].end_series(1_700_000_000_001, loops[1:])
        for loop in loops:
            loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: left[path].pop(0)) as server:
        asyncio.run(run(server.port))
    assert {name for number in range(len(accepted.blocks)) for name in accepted.values(number)} == ended
