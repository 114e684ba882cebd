"""Which of several agents scrapes a target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from gpuledger.agent.relabel.rule import hashmod
from gpuledger.agent.scrape.settings import Target
from gpuledger.model.errors import UsageError

_ORDINAL: Final = re.compile(r"(?P<set>.+)-(?P<ordinal>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """The `index`-th (from 0 on) of `count` agents. One with an index beyond the count scrapes nothing."""

    index: int = 0
    count: int = 1

    def has(self, target: Target) -> bool:
        """Whether this agent is to scrape the target: by hashmod, as the other engine does, too."""
        return (self.count == 1 and not self.index) or self.index == hashmod(_address(target), self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def _address(target: Target) -> str:
    """`__address__` as it is after relabelling: pages of one exporter stay together."""
    return urlsplit(target.url).netloc


def parse_shard(written: str) -> Shard:
    """A Shard out of `INDEX/COUNT`. Raises ValueError."""
    index, _, count = written.partition("/")
    if not (index.isascii() and index.isdigit() and count.isascii() and count.isdigit() and int(count)):
        raise ValueError("a shard such as 0/3 is wanted")
    if int(index) >= int(count):
        raise ValueError(f"shards of {count} are 0 to {int(count) - 1}")
    return Shard(int(index), int(count))


def own_stateful_set(pod: str) -> tuple[str, int]:
    """Name of the StatefulSet and the ordinal in it, out of a pod's name. Raises UsageError."""
    match = _ORDINAL.fullmatch(pod)
    if match is None:
        raise UsageError(
            f"--shard auto: the pod's name {pod} is not a StatefulSet's (NAME-0, NAME-1, ...); "
            "give --shard INDEX/COUNT"
        )
    return match["set"], int(match["ordinal"])


@dataclass(slots=True)
class Split:
    """Targets that are this agent's and the others'. `until` is when the first of them that is kept for a
    moment only goes over to another; None where none is.
    """

    mine: list[Target] = field(default_factory=list)
    others: list[Target] = field(default_factory=list)
    until: float | None = None


class Share:
    """`shard` is None while it is not known: then nothing is this agent's, since another may scrape it.

    Who shall have a target begins at once; who had it goes on until all agents that there shall be are ready,
    and for one interval of the target more, in which the last of them hears of it. Both scrape at the same
    moments of the interval, and what both tell is the same series: better twice than not at all.
    """

    def __init__(self, shard: Shard | None = None) -> None:
        self.shard = shard
        # Since when all agents of the share that followed are ready; None while they are not.
        self._former: dict[Shard, float | None] = {}

    @property
    def former(self) -> tuple[Shard, ...]:
        """Shares that this agent had and goes on with for a while."""
        return tuple(self._former)

    def become(self, shard: Shard, *, settled: bool, now: float) -> None:
        """Have this share from now on. `settled`: as many agents as it is one of are there and ready."""
        if shard != self.shard:
            if self.shard is not None:
                self._former[self.shard] = None
            self._former.pop(shard, None)
            self.shard = shard
        if settled:
            self._former = {one: now if since is None else since for one, since in self._former.items()}

    def split(self, targets: Iterable[Target], now: float) -> Split:
        """Whose each target is."""
        found = Split()
        if self.shard is None:
            return found
        for target in targets:
            if self.shard.has(target):
                found.mine.append(target)
                continue
            kept, until = self._kept(target, now)
            (found.mine if kept else found.others).append(target)
            if until is not None:
                found.until = until if found.until is None else min(found.until, until)
        return found

    def forget(self) -> None:
        """Let go of former shares of which no target is kept any more."""
        self._former = {one: since for one, since in self._former.items() if since is None}

    def _kept(self, target: Target, now: float) -> tuple[bool, float | None]:
        """Whether it is of a former share that is not over, and when that will be, where it is known."""
        ends = [
            None if since is None else since + target.settings.interval
            for shard, since in self._former.items()
            if shard.has(target)
        ]
        if None in ends:
            return True, None
        last = max((end for end in ends if end is not None), default=now)
        return (True, last) if last > now else (False, None)
