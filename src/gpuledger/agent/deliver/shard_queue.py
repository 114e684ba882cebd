"""Queue of one shard of a sender: the records that it delivers next, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from gpuledger.agent.deliver.queue import QueuedRecord


class ShardQueue:
    """Records dequeued for one shard that are neither delivered nor dropped yet."""

    def __init__(self) -> None:
        self.pending: deque[QueuedRecord] = deque()
        self.samples = 0
        # Failures since the last response.
        self.failures = 0
        # Set when a batch may be ready.
        self.changed = asyncio.Event()

    def append(self, item: QueuedRecord) -> None:
        """Append a record."""
        self.pending.append(item)
        self.samples += item.record.samples

    def next_batch(self, most: int) -> list[QueuedRecord]:
        """Return the first records with at most `most` samples together, but at least one record."""
        found: list[QueuedRecord] = []
        samples = 0
        for item in self.pending:
            samples += item.record.samples
            if found and samples > most:
                break
            found.append(item)
        return found

    def remove(self, items: Sequence[QueuedRecord]) -> None:
        """Remove these records, which must be the first ones."""
        for item in items:
            first = self.pending.popleft()
            assert first is item
            self.samples -= item.record.samples

    def done_position(self, read_position: int) -> int:
        """Return the position before which all records of this shard are delivered or dropped."""
        return self.pending[0].position if self.pending else read_position
