"""Sharding: assigns each target to one of several agents, and hands targets over when the count changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
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
        """Return whether this shard owns the target: hashmod of its address, as in the prometheus engine."""
        return (self.count == 1 and not self.index) or self.index == hashmod(_address(target), self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def _address(target: Target) -> str:
    """Return `__address__` after relabeling: all pages of one exporter get the same shard."""
    return urlsplit(target.url).netloc


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


@dataclass(slots=True)
class TargetSplit:
    """Targets of this shard and of other shards.

    `next_handover`: when the next target of a former shard moves to its new one; None if there is none.
    """

    own: list[Target] = field(default_factory=list)
    other_shards: list[Target] = field(default_factory=list)
    next_handover: float | None = None


class ShardAssignment:
    """This agent's shard and its former shards.

    `shard` is None while it is unknown: the agent then scrapes nothing, because another may scrape it. A new
    owner of a target starts at once; the old one continues until all agents are ready and for one more
    interval of the target, so that the last agent learns of the change. Both scrape at the same times and
    export the same series: duplicates are better than gaps.
    """

    def __init__(self, shard: Shard | None = None) -> None:
        self.shard = shard
        # Former shards, with the time since which all agents of the new count are ready (None: not yet).
        self._former: dict[Shard, float | None] = {}

    @property
    def former_shards(self) -> tuple[Shard, ...]:
        """Former shards: this agent still scrapes their targets."""
        return tuple(self._former)

    def assign(self, shard: Shard, *, settled: bool, now: float) -> None:
        """Set the shard. `settled`: all agents of the new count are ready."""
        if shard != self.shard:
            if self.shard is not None:
                self._former[self.shard] = None
            self._former.pop(shard, None)
            self.shard = shard
        if settled:
            self._former = {old: now if since is None else since for old, since in self._former.items()}

    def split_targets(self, targets: Iterable[Target], now: float) -> TargetSplit:
        """Split targets into those to scrape now and those of other shards."""
        found = TargetSplit()
        if self.shard is None:
            return found
        for target in targets:
            if self.shard.owns(target):
                found.own.append(target)
                continue
            kept, until = self._kept(target, now)
            (found.own if kept else found.other_shards).append(target)
            if until is not None:
                found.next_handover = (
                    until if found.next_handover is None else min(found.next_handover, until)
                )
        return found

    def drop_expired(self) -> None:
        """Delete former shards without remaining targets."""
        self._former = {shard: since for shard, since in self._former.items() if since is None}

    def _kept(self, target: Target, now: float) -> tuple[bool, float | None]:
        """Return whether a former shard still owns the target, and when that ends, if known."""
        ends = [
            None if since is None else since + target.settings.interval
            for shard, since in self._former.items()
            if shard.owns(target)
        ]
        if None in ends:
            return True, None
        last = max((end for end in ends if end is not None), default=now)
        return (True, last) if last > now else (False, None)
