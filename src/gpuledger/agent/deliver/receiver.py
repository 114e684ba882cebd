"""One receiver: its queue, its sender, its metadata, and their maintenance every second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import cramjam

from gpuledger.agent.deliver.client import RemoteWriteClient, desired_shards
from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.protocol import VERSION_1, WriteProtocol
from gpuledger.agent.deliver.queue import QueuedRecord, ReceiverQueue
from gpuledger.agent.deliver.records import Record
from gpuledger.agent.deliver.refused_series import RefusedSeries
from gpuledger.agent.deliver.sender import Sender, Sleep
from gpuledger.agent.deliver.settings import MetadataConfig, ReceiverSettings
from gpuledger.agent.deliver.state import STOPPED, ReceiverCounts, ReceiverState, ThrottledLog
from gpuledger.exposition.remote_write import FamilyMetadata, encode_metadata
from gpuledger.http.client_messages import HttpRequestFailed
from gpuledger.http.hosts import is_loopback
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_MAINTENANCE_SECONDS: Final = 1.0
_RESIZE_SECONDS: Final = 10.0


class MetadataSender:
    """Sends all metadata to one receiver from time to time, in 1.0 requests without samples.

    They are not queued: the next ones repeat them.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock, counts: ReceiverCounts, throttled_log: ThrottledLog
    ) -> None:
        self._store = store
        self._clock = clock
        self._counts = counts
        self._throttled_log = throttled_log
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None

    def start_if_due(self, config: MetadataConfig, client: RemoteWriteClient) -> None:
        """Start sending in a task, if there is metadata and the interval is over."""
        if not config.send or self._clock.elapsed() < self._due or (self._task and not self._task.done()):
            return
        if families := self._store.families():
            self._due = self._clock.elapsed() + config.send_interval
            self._task = asyncio.create_task(self._send(families, config.max_samples_per_send, client))

    def stop(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()

    async def _send(self, families: Sequence[FamilyMetadata], most: int, client: RemoteWriteClient) -> None:
        for start in range(0, len(families), most):
            part = families[start : start + most]
            body = bytes(cramjam.snappy.compress_raw(b"".join(map(encode_metadata, part))))
            try:
                response = await client.post_write_request(body)
            except HttpRequestFailed as error:
                self._throttled_log.warn("metadata", f"HELP and TYPE were not sent: {error}")
                return
            if response.status >= 300:
                self._throttled_log.warn(
                    "metadata",
                    f"HELP and TYPE were not accepted: {client.describe(response)}; to send none, set "
                    "metadata_config: {send: false}",
                )
                return
            self._counts.sent_metadata += len(part)


class Receiver:
    """Queue and sender of one receiver. Raises GpuledgerError if the queue cannot be opened."""

    def __init__(
        self,
        settings: ReceiverSettings,
        folder: Path,
        clock: Clock,
        chance: Callable[[], float],
        sleep: Sleep,
        metadata: MetadataStore,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._sleep = sleep
        self._throttled_log = ThrottledLog(settings.name, clock)
        self._counts = ReceiverCounts()
        self._refused = RefusedSeries(clock)
        try:
            self._queue = ReceiverQueue(folder, settings.queue, clock, self._throttled_log)
        except OSError as error:
            raise GpuledgerError(
                f"cannot open the remote write queue {folder}: {error.strerror or error}; make the directory "
                "readable and writable"
            ) from None
        parts = urlsplit(settings.url)
        local = is_loopback(parts.hostname or "")
        if settings.login is not None and parts.scheme != "https" and not local:
            self._throttled_log.warn(
                "plain", f"credentials are sent unencrypted to {settings.shown_url}; use an https:// URL"
            )
        self._create_sender = partial(
            Sender,
            queue=self._queue,
            counts=self._counts,
            clock=clock,
            throttled_log=self._throttled_log,
            chance=chance,
            sleep=sleep,
            metadata=metadata,
        )
        self._protocol = WriteProtocol(settings.protocol)
        self._sender = self._create_sender(settings, refused=self._refused, protocol=self._protocol)
        self._metadata = MetadataSender(metadata, clock, self._counts, self._throttled_log)
        self._maintenance: asyncio.Task[None] | None = None
        # Only one sender at a time reads the queue.
        self._changing = asyncio.Lock()
        self._synced_at = self._resized_at = clock.elapsed()
        self._before = (0, 0, 0.0)

    def start(self) -> None:
        """Start sending on the running event loop."""
        self._sender.start(self.settings.queue_config.min_shards)
        self._maintenance = asyncio.create_task(self._maintain())

    def accept(self, record: Record) -> None:
        """Queue a record."""
        counts = self._counts
        counts.accepted_samples += record.samples
        newest = record.newest / 1000
        counts.newest_accepted = max(newest, counts.newest_accepted or newest)
        item = self._queue.append(record, dequeue=self._sender.has_room)
        if item is not None:
            self._sender.dispatch(item)

    async def apply(self, settings: ReceiverSettings) -> None:
        """Apply changed settings and keep the queue."""
        if settings == self.settings:
            return
        async with self._changing:
            await self._sender.stop()
            # Also of what was started meanwhile: its client is closed.
            self._metadata.stop()
            self.settings = settings
            self._queue.apply(settings.queue)
            taken = self._sender.in_flight
            config = settings.queue_config
            shards = min(max(self._sender.shards, config.min_shards), config.max_shards)
            # Another URL or limit may accept what was refused.
            self._refused = RefusedSeries(self._clock)
            self._protocol = WriteProtocol(settings.protocol)
            self._sender = self._create_sender(settings, refused=self._refused, protocol=self._protocol)
            self._sender.start(shards, taken)

    async def stop(self, drain_seconds: float) -> None:
        """Send queued records for at most `drain_seconds`; the rest is kept on disk."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        self._metadata.stop()
        await self._sender.stop(drain_seconds)
        self._queue.close(self._unwritten_records())

    def close(self) -> None:
        """Close a receiver that was never started."""
        self._queue.close()

    def state(self) -> ReceiverState:
        """Return the current state."""
        queue, taken = self._queue, self._sender.in_flight
        since = taken[0].record.accepted if taken else queue.unread_since
        return ReceiverState(
            name=self.settings.name,
            url=self.settings.shown_url,
            shards=self._sender.shards,
            queued_blocks=queue.blocks,
            queued_samples=queue.samples,
            queued_bytes=queue.bytes,
            memory_bytes=queue.memory_bytes,
            disk_bytes=queue.segments.file_bytes,
            oldest=None if since is None else since / 1000,
            corrupt_records=queue.corrupt_records,
            torn_tails=queue.segments.torn_tails,
            dropped=dict(queue.dropped),
            refused_series=self._refused.count,
            protocol=self._protocol.version if self._protocol.known else "",
            **deepcopy(vars(self._counts)),
        )

    def _unwritten_records(self) -> list[QueuedRecord]:
        """Return the in-memory records that can still be appended to the files; drop the others.

        Only those dequeued after all records of the files keep their order.
        """
        taken = self._sender.in_flight
        last: list[QueuedRecord] = []
        while taken and taken[-1].in_memory:
            last.insert(0, taken.pop())
        for item in taken:
            if reason := STOPPED if item.in_memory else self._queue.drop_reason(item):
                self._queue.finish([item], reason)
        return last

    async def _maintain(self) -> None:
        while True:
            await self._sleep(_MAINTENANCE_SECONDS)
            try:
                self._queue.run_maintenance()
                self._refused.forget_ended()
                self._sender.fill_shards()
                if self._protocol.version == VERSION_1:
                    self._metadata.start_if_due(self.settings.metadata, self._sender.client)
                await self._sync()
                await self._resize()
            except Exception as error:  # noqa: BLE001  (out of memory or a defect: retry in a second)
                self._throttled_log.warn("tending", f"queue maintenance failed ({error!r}); retrying")

    async def _sync(self) -> None:
        now = self._clock.elapsed()
        if now - self._synced_at < self.settings.queue.sync_interval:
            return
        self._synced_at = now
        try:
            job = self._queue.segments.sync_job()
            if job is not None:
                await asyncio.get_running_loop().run_in_executor(None, job)
        except OSError as error:
            self._throttled_log.warn("sync", f"cannot sync the queue to the disk: {error.strerror}")

    async def _resize(self) -> None:
        """Change the number of shards if the rates since the last call require it."""
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
        shards_needed = desired_shards(
            shards,
            config.min_shards,
            config.max_shards,
            (counts.busy_seconds - before[2]) / sent,
            (counts.accepted_samples - before[0]) / seconds,
            self._queue.samples,
        )
        if shards_needed != shards:
            async with self._changing:
                await self._sender.resize(shards_needed)
