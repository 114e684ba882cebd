"""Scrape pool: runs one scrape loop per target and applies changes of the target set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.settings import ClientTls, Login
from gpuledger.agent.scrape.loop import AcceptBlock, ReceiverRouting, ScrapeLoop
from gpuledger.agent.scrape.settings import Target
from gpuledger.agent.scrape.state import GroupTotals, PageMemoryBudget
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.agent")

TargetKey = tuple[str, tuple[tuple[str, str], ...]]

# Intervals until a removed target's series get staleness markers, with the timestamp of the first skipped
# scrape. Until then the target may come back or another shard may export its series. As in Prometheus.
_INTERVALS_TO_END: Final = 2.1


class ScrapePool:
    """Runs the scrape loops. Used on the event loop's thread only."""

    def __init__(
        self,
        accept: AcceptBlock,
        clock: Clock,
        memory: PageMemoryBudget | None = None,
        metadata: MetadataStore | None = None,
    ) -> None:
        self._accept = accept
        self._metadata = metadata or MetadataStore()
        self._clock = clock
        self._memory = PageMemoryBudget() if memory is None else memory
        self._running: dict[TargetKey, ScrapeLoop] = {}
        self._retired: dict[TargetKey, ScrapeLoop] = {}
        self._access: dict[tuple[bool, ClientTls, Login | None], ReloadedCredentials] = {}
        self._routing: ReceiverRouting | None = None
        self._duplicates: set[TargetKey] = set()
        self.totals: dict[str, GroupTotals] = {}

    @property
    def loops(self) -> tuple[ScrapeLoop, ...]:
        """The running loops, in the order of their targets."""
        return tuple(self._running.values())

    def set_targets(
        self, targets: Iterable[Target], routing: ReceiverRouting, elsewhere: Collection[TargetKey] = ()
    ) -> None:
        """Replace the target set. Loops of unchanged targets keep running.

        Targets in `elsewhere` are scraped by another agent: their series get no staleness markers.
        """
        wanted = self._deduplicate(targets)
        same = routing == self._routing
        self._routing = routing
        before, self._running = self._running, {}
        for key, target in wanted.items():
            old = before.pop(key, None)
            if old is not None and same and old.target == target:
                self._running[key] = old
                continue
            predecessor = old or self._retired.pop(key, None)
            if predecessor is not None:
                predecessor.task.cancel()
            self._running[key] = self._start_loop(target, routing, predecessor)
        for key in self._retired.keys() & set(elsewhere):
            retired = self._retired.pop(key)
            retired.task.cancel()
            retired.forget_metadata()
        for key, old in before.items():
            old.task.cancel()
            if key in elsewhere:
                old.forget_metadata()
                continue
            old.task = asyncio.create_task(self._end_later(key, old))
            self._retired[key] = old
        in_use = {_access_of(target) for target in wanted.values()}
        self._access = {key: access for key, access in self._access.items() if key in in_use}

    async def stop(self) -> None:
        """Stop all loops without staleness markers: the next agent process continues the series."""
        tasks = [loop.task for loop in (*self._running.values(), *self._retired.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        self._retired.clear()

    def _deduplicate(self, targets: Iterable[Target]) -> dict[TargetKey, Target]:
        """Return the first target of each key; a new duplicate is logged."""
        wanted: dict[TargetKey, Target] = {}
        duplicates: set[TargetKey] = set()
        for target in targets:
            if target.key in wanted:
                duplicates.add(target.key)
                if target.key not in self._duplicates:
                    log.warning("duplicate target %s of %s: equal URL and labels", target.url, target.group)
            wanted.setdefault(target.key, target)
        self._duplicates = duplicates
        return wanted

    def _start_loop(self, target: Target, routing: ReceiverRouting, old: ScrapeLoop | None) -> ScrapeLoop:
        totals = self.totals.setdefault(target.group, GroupTotals())
        access = self._shared_credentials(target)
        loop = ScrapeLoop(
            target, routing, self._accept, self._clock, access, totals, self._memory, self._metadata
        )
        if old is not None:
            loop.inherit(old)
        loop.task = asyncio.create_task(loop.run(), name=target.url)
        return loop

    def _shared_credentials(self, target: Target) -> ReloadedCredentials | None:
        """Return the credentials object that all targets with the same login and TLS settings share."""
        encrypted, tls, login = key = _access_of(target)
        if not encrypted and login is None:
            return None
        if key not in self._access:
            self._access[key] = ReloadedCredentials(tls, login, self._clock, encrypted=encrypted)
        return self._access[key]

    async def _end_later(self, key: TargetKey, loop: ScrapeLoop) -> None:
        interval = loop.target.settings.interval
        missing = loop.schedule.next_time(self._clock.unix(), loop.due)
        await asyncio.sleep(
            max(0.0, missing / 1000 - self._clock.unix()) + (_INTERVALS_TO_END - 1) * interval
        )
        loop.end_series(missing, self.loops)
        self._retired.pop(key, None)


def _access_of(target: Target) -> tuple[bool, ClientTls, Login | None]:
    return target.url.startswith("https:"), target.settings.tls, target.settings.login
