"""All targets that are scraped now, and the change from one set of them to another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gpuledger.agent.deliver.settings import ClientTls, Login
from gpuledger.agent.scrape.client import TargetAccess
from gpuledger.agent.scrape.loop import Accept, Deliveries, TargetLoop
from gpuledger.agent.scrape.settings import Target
from gpuledger.agent.scrape.state import GroupTotals, PageMemory
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.agent")

Key = tuple[str, tuple[tuple[str, str], ...]]

# A target that is gone is marked so two beats and a tenth later, at the time of its first missing beat:
# until then it may come back, or its series be told by another agent. As Prometheus does.
_BEATS_TO_END: Final = 2.1


@dataclass(slots=True)
class _Running:
    loop: TargetLoop
    task: asyncio.Task[None]


class Pool:
    """Used by the event loop's thread alone."""

    def __init__(self, accept: Accept, clock: Clock, memory: PageMemory | None = None) -> None:
        self._accept = accept
        self._clock = clock
        self._memory = PageMemory() if memory is None else memory
        self._running: dict[Key, _Running] = {}
        self._retired: dict[Key, _Running] = {}
        self._access: dict[tuple[bool, ClientTls, Login | None], TargetAccess] = {}
        self._deliveries: Deliveries | None = None
        self._twice: set[Key] = set()
        self.totals: dict[str, GroupTotals] = {}

    @property
    def loops(self) -> tuple[TargetLoop, ...]:
        """Those that scrape, in the order of their targets."""
        return tuple(running.loop for running in self._running.values())

    def become(
        self, targets: Iterable[Target], deliveries: Deliveries, elsewhere: Collection[Key] = ()
    ) -> None:
        """Scrape these from now on: what is as it was goes on undisturbed.

        Targets of `elsewhere` are scraped by another agent by now: their series have not ended.
        """
        wanted = self._each_once(targets)
        same = deliveries == self._deliveries
        self._deliveries = deliveries
        before, self._running = self._running, {}
        for key, target in wanted.items():
            old = before.pop(key, None)
            if old is not None and same and old.loop.target == target:
                self._running[key] = old
                continue
            predecessor = old or self._retired.pop(key, None)
            if predecessor is not None:
                predecessor.task.cancel()
            self._running[key] = self._started(target, deliveries, predecessor)
        for key in self._retired.keys() & set(elsewhere):
            self._retired.pop(key).task.cancel()
        for key, old in before.items():
            old.task.cancel()
            if key in elsewhere:
                continue
            self._retired[key] = _Running(old.loop, asyncio.create_task(self._end(key, old.loop)))
        in_use = {_access_of(target) for target in wanted.values()}
        self._access = {key: access for key, access in self._access.items() if key in in_use}

    async def stop(self) -> None:
        """End all scraping. Nothing is marked as ended: whoever scrapes next goes on with the series."""
        tasks = [running.task for running in (*self._running.values(), *self._retired.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        self._retired.clear()

    def _each_once(self, targets: Iterable[Target]) -> dict[Key, Target]:
        """The targets by key; of equal ones the first, which is said when it is new."""
        wanted: dict[Key, Target] = {}
        twice: set[Key] = set()
        for target in targets:
            if target.key in wanted:
                twice.add(target.key)
                if target.key not in self._twice:
                    log.warning("%s of %s is there twice with equal labels", target.url, target.group)
            wanted.setdefault(target.key, target)
        self._twice = twice
        return wanted

    def _started(self, target: Target, deliveries: Deliveries, old: _Running | None) -> _Running:
        totals = self.totals.setdefault(target.group, GroupTotals())
        access = self._shared(target)
        loop = TargetLoop(target, deliveries, self._accept, self._clock, access, totals, self._memory)
        if old is not None:
            loop.inherit(old.loop)
        return _Running(loop, asyncio.create_task(loop.run(), name=target.url))

    def _shared(self, target: Target) -> TargetAccess | None:
        """Login and certificates, read once for all targets that have the same."""
        encrypted, tls, login = key = _access_of(target)
        if not encrypted and login is None:
            return None
        if key not in self._access:
            self._access[key] = TargetAccess(tls, login, self._clock, encrypted=encrypted)
        return self._access[key]

    async def _end(self, key: Key, loop: TargetLoop) -> None:
        interval = loop.target.settings.interval
        missing = loop.beat.next(self._clock.unix(), loop.due)
        await asyncio.sleep(max(0.0, missing / 1000 - self._clock.unix()) + (_BEATS_TO_END - 1) * interval)
        loop.end(missing)
        self._retired.pop(key, None)


def _access_of(target: Target) -> tuple[bool, ClientTls, Login | None]:
    return target.url.startswith("https:"), target.settings.tls, target.settings.login
