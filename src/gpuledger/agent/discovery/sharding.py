"""Sharding: assigns each target to one of several agents, and hands targets over when the count changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final
from urllib.parse import urlsplit

from gpuledger.agent.relabel.rules import hashmod
from gpuledger.agent.scrape.settings import Target
from gpuledger.model.errors import UsageError

_ORDINAL: Final = re.compile(r"(?P<set>.+)-(?P<ordinal>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` (from 0) of `count`. A shard with an index beyond the count owns no targets."""

    index: int = 0
    count: int = 1

    def owns(self, target: Target) -> bool:
        """Return whether this shard owns the target: hashmod of its address, as in the prometheus engine.

        The address is `__address__` after relabeling: all pages of one exporter get the same shard.
        """
        if self.count == 1 and not self.index:
            return True
        return self.index == hashmod(urlsplit(target.url).netloc, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(written: str) -> Shard:
    """Parse `INDEX/COUNT`. Raises ValueError."""
    index, _, count = written.partition("/")
    if not (index.isascii() and index.isdigit() and count.isascii() and count.isdigit() and int(count)):
        raise ValueError("expected a shard such as 0/3")
    if int(index) >= int(count):
        raise ValueError(f"expected an index from 0 to {int(count) - 1} for {count} shards")
    return Shard(int(index), int(count))


def parse_stateful_set_pod(pod: str) -> tuple[str, int]:
    """Return StatefulSet name and ordinal from a pod's name. Raises UsageError."""
    match = _ORDINAL.fullmatch(pod)
    if match is None:
        raise UsageError(
            f"--shard auto: the pod name {pod} is not one of a StatefulSet (NAME-0, NAME-1, ...); "
            "set --shard INDEX/COUNT"
        )
    return match["set"], int(match["ordinal"])


class ShardAssignment:
    """This agent's shard and its former shards.

    `shard` is None while it is unknown: the agent then scrapes nothing, because another may scrape it. A new
    owner of a target starts at once; the old one continues until all agents are ready and for one more
    interval of the target, so that the last agent learns of the change. Both scrape at the same times and
    export the same series: duplicates are better than gaps.

    `next_handover`: when the next target of a former shard moves to its new one, of all that were split since
    the caller set it to infinity.
    """

    def __init__(self, shard: Shard | None = None) -> None:
        self.shard = shard
        self.next_handover = inf
        # Former shards, with the time since which all agents of the new count are ready (infinity: not yet).
        self._former: dict[Shard, float] = {}

    @property
    def former_shards(self) -> tuple[Shard, ...]:
        """Former shards: this agent still scrapes their targets."""
        return tuple(self._former)

    def assign(self, shard: Shard, *, settled: bool, now: float) -> None:
        """Set the shard. `settled`: all agents of the new count are ready."""
        if shard != self.shard:
            if self.shard is not None:
                self._former[self.shard] = inf
            self._former.pop(shard, None)
            self.shard = shard
        if settled:
            self._former = {old: min(since, now) for old, since in self._former.items()}

    def split_targets(self, targets: Iterable[Target], now: float) -> tuple[list[Target], list[Target]]:
        """Split targets into those to scrape now and those of other shards."""
        own: list[Target] = []
        others: list[Target] = []
        for target in targets if self.shard is not None else ():
            until = self._owned_until(target)
            if until > now:
                own.append(target)
                self.next_handover = min(self.next_handover, until)
            else:
                others.append(target)
        return own, others

    def drop_expired(self) -> None:
        """Delete former shards without remaining targets."""
        self._former = {shard: since for shard, since in self._former.items() if since == inf}

    def _owned_until(self, target: Target) -> float:
        """Return until when this agent scrapes the target: infinity if no end is known."""
        if self.shard is not None and self.shard.owns(target):
            return inf
        interval = target.settings.interval
        return max(
            (since + interval for shard, since in self._former.items() if shard.owns(target)), default=-inf
        )
