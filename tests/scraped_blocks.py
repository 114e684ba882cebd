"""Scrapes pages of a scripted target once each, and collects the blocks that are delivered."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection

from gpuledger.agent.deliver.records import Block
from gpuledger.agent.scrape.loop import ReceiverRouting, ScrapeLoop
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.agent.scrape.state import GroupTotals
from gpuledger.exposition.remote_write import STALE
from gpuledger.host.clock import SystemClock
from scripted_target import Answer, scripted
from write_request import series_of

ALL = ReceiverRouting(WriteRelabeling())
Values = dict[str, float | None]


class Accepted:
    """Collects the delivered blocks and their receivers."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.totals = GroupTotals()
        self.receivers: list[Collection[str] | None] = []

    def accept(self, block: Block, receivers: Collection[str] | None) -> None:
        self.blocks.append(block)
        self.receivers.append(receivers)

    def values(self, number: int = -1) -> Values:
        """Values of a block by series name; None is a staleness marker."""
        found: Values = {}
        for labels, ((value, _),) in series_of(self.blocks[number].payload):
            found[dict(labels)["__name__"]] = None if value == STALE else struct.unpack("<d", value)[0]
        return found


def target(port: int, settings: ScrapeSettings | None = None) -> Target:
    url = f"http://127.0.0.1:{port}/metrics"
    return Target("t", url, (("instance", "i"), ("job", "t")), settings or ScrapeSettings(interval=1.0))


def scraped(
    pages: list[Answer], settings: ScrapeSettings | None = None, routing: ReceiverRouting = ALL
) -> Accepted:
    """Scrape each page once."""
    accepted, left = Accepted(), list(pages)

    async def run(port: int) -> None:
        loop = ScrapeLoop(
            target(port, settings), routing, accepted.accept, SystemClock(), totals=accepted.totals
        )
        for number in range(len(pages)):
            await loop.scrape(1_700_000_000_000 + number)
        loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: left.pop(0)) as server:
        asyncio.run(run(server.port))
    return accepted
