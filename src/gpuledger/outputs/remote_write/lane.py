"""What one shard has to send: records in order, one request at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from gpuledger.outputs.remote_write.queue import Item


class Lane:
    """Items that came out of the queue for one shard and are neither delivered nor dropped."""

    def __init__(self) -> None:
        self.pending: deque[Item] = deque()
        self.samples = 0
        # Set when there may be something to do.
        self.changed = asyncio.Event()

    def put(self, item: Item) -> None:
        """Behind all others."""
        self.pending.append(item)
        self.samples += item.record.samples

    def batch(self, most: int) -> list[Item]:
        """The first ones, as many as together have at most so many samples; the very first in any case."""
        found: list[Item] = []
        samples = 0
        for item in self.pending:
            samples += item.record.samples
            if found and samples > most:
                break
            found.append(item)
        return found

    def remove(self, items: Sequence[Item]) -> None:
        """Take the first ones away, which these are."""
        for item in items:
            first = self.pending.popleft()
            assert first is item
            self.samples -= item.record.samples

    def point(self, read_to: int) -> int:
        """The place before which everything of this shard is done."""
        return self.pending[0].place if self.pending else read_to
