"""Which of several agents scrapes a target."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
