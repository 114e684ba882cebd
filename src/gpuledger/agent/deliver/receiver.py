"""One receiver: its queue, its sender, and what is done about them every second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gpuledger.agent.deliver.client import wanted_shards
from gpuledger.agent.deliver.queue import Item, Queue
from gpuledger.agent.deliver.records import Record
from gpuledger.agent.deliver.sender import Sender, Sleep
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.deliver.state import STOPPED, Counts, ReceiverState, Sayings
from gpuledger.http.hosts import is_loopback
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_TEND_SECONDS: Final = 1.0
_RESIZE_SECONDS: Final = 10.0


class Receiver:
    """Open from when it is made until `stop`. Raises GpuledgerError when its queue cannot be opened."""

    def __init__(
        self,
        settings: ReceiverSettings,
        folder: Path,
        clock: Clock,
        chance: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._chance = chance
        self._sleep = sleep
        self._sayings = Sayings(settings.name, clock)
        self._counts = Counts()
        try:
            self._queue = Queue(folder, settings.queue, clock, self._sayings)
        except OSError as error:
            raise GpuledgerError(
                f"the remote write queue {folder} cannot be used: {error.strerror or error}; see that it is "
                "writable and whole"
            ) from None
        if settings.login is not None and not _is_private(settings.url):
            self._sayings.say(
                "plain", f"credentials go unencrypted to {settings.shown_url}: name it with https://"
            )
        self._sender = self._new_sender()
        self._tending: asyncio.Task[None] | None = None
        # One sender at a time takes from the queue.
        self._changing = asyncio.Lock()
        self._synced_at = self._resized_at = clock.elapsed()
        self._before = (0, 0, 0.0)

    def start(self) -> None:
        """Begin to send, in the running loop."""
        self._sender.start(self.settings.queue_config.min_shards)
        self._tending = asyncio.create_task(self._tend())

    def accept(self, record: Record) -> None:
        """Take a record."""
        counts = self._counts
        counts.accepted_samples += record.samples
        newest = record.newest / 1000
        counts.newest_accepted = max(newest, counts.newest_accepted or newest)
        item = self._queue.put(record, through=self._sender.has_room)
        if item is not None:
            self._sender.place(item)

    async def apply(self, settings: ReceiverSettings) -> None:
        """Go on with other settings and the same queue."""
        if settings == self.settings:
            return
        async with self._changing:
            await self._sender.stop()
            self.settings = settings
            self._queue.apply(settings.queue)
            taken = self._sender.taken
            config = settings.queue_config
            shards = min(max(self._sender.shards, config.min_shards), config.max_shards)
            self._sender = self._new_sender()
            self._sender.start(shards, taken)

    async def stop(self, drain_seconds: float) -> None:
        """Send what is queued, for so long at most; what is left waits on disk."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        await self._sender.stop(drain_seconds)
        self._queue.close(self._last_ones())

    def close(self) -> None:
        """Let go of what was opened and never started."""
        self._queue.close()

    def state(self) -> ReceiverState:
        """As it is now."""
        queue, counts, taken = self._queue, self._counts, self._sender.taken
        since = taken[0].record.accepted if taken else queue.unread_since
        return ReceiverState(
            name=self.settings.name,
            url=self.settings.shown_url,
            shards=self._sender.shards,
            queued_blocks=queue.blocks,
            queued_samples=queue.samples,
            queued_bytes=queue.bytes,
            memory_bytes=queue.memory_bytes,
            disk_bytes=queue.disk_bytes,
            oldest=None if since is None else since / 1000,
            accepted_samples=counts.accepted_samples,
            sent_samples=counts.sent_samples,
            sent_bytes=counts.sent_bytes,
            retried_samples=counts.retried_samples,
            newest_accepted=counts.newest_accepted,
            newest_sent=counts.newest_sent,
            last_success=counts.last_success,
            last_error=counts.last_error,
            last_error_at=counts.last_error_at,
            failing=counts.failing,
            refusing=counts.refusing,
            corrupt_records=queue.corrupt_records,
            torn_tails=queue.torn_tails,
            requests=dict(counts.requests),
            dropped=dict(queue.dropped),
        )

    def _new_sender(self) -> Sender:
        return Sender(
            self.settings, self._queue, self._counts, self._clock, self._sayings, self._chance, self._sleep
        )

    def _last_ones(self) -> list[Item]:
        """Those out of memory that may be written behind the files: what came out after them all."""
        taken = self._sender.taken
        last: list[Item] = []
        while taken and taken[-1].volatile:
            last.insert(0, taken.pop())
        for item in taken:
            if reason := STOPPED if item.volatile else self._queue.unwanted(item):
                self._queue.drop([item], reason)
        return last

    async def _tend(self) -> None:
        while True:
            await self._sleep(_TEND_SECONDS)
            try:
                self._queue.tend()
                self._sender.fill()
                await self._sync()
                await self._resize()
            except Exception as error:  # noqa: BLE001  (memory that runs out, or a defect: the next second needs it)
                self._sayings.say("tending", f"its queue could not be looked after ({error!r}); it goes on")

    async def _sync(self) -> None:
        now = self._clock.elapsed()
        if now - self._synced_at < self.settings.queue.sync_interval:
            return
        self._synced_at = now
        try:
            job = self._queue.sync_job()
            if job is not None:
                await asyncio.get_running_loop().run_in_executor(None, job)
        except OSError as error:
            self._sayings.say("sync", f"the queue may not be on the disk: {error.strerror}")

    async def _resize(self) -> None:
        """Change the number of shards, if what was sent since the last look says so."""
        now, counts = self._clock.elapsed(), self._counts
        seconds = now - self._resized_at
        if seconds < _RESIZE_SECONDS:
            return
        before, self._before = (
            self._before,
            (counts.accepted_samples, counts.sent_samples, counts.busy_seconds),
        )
        self._resized_at = now
        sent = counts.sent_samples - before[1]
        if not sent or counts.failing:
            return
        config, shards = self.settings.queue_config, self._sender.shards
        wanted = wanted_shards(
            shards,
            config.min_shards,
            config.max_shards,
            (counts.busy_seconds - before[2]) / sent,
            (counts.accepted_samples - before[0]) / seconds,
            self._queue.samples,
        )
        if wanted != shards:
            async with self._changing:
                await self._sender.resize(wanted)


def _is_private(url: str) -> bool:
    """Whether nobody can listen on the way."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
