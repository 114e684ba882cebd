"""Sender of one receiver: parallel shards, each sending one remote-write request at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from gpuledger.agent.deliver import state
from gpuledger.agent.deliver.client import RemoteWriteClient, backoff_delay, must_retry, parse_retry_after
from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.protocol import WriteAnswer, WriteProtocol
from gpuledger.agent.deliver.queue import QueuedRecord, ReceiverQueue
from gpuledger.agent.deliver.refused_series import (
    LEFT_OUT_SECONDS,
    RefusalSearch,
    RefusedSeries,
    SeriesSample,
)
from gpuledger.agent.deliver.requests import RecordsRequest, SeriesRequest, WriteRequest
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.deliver.shard_queue import ShardQueue
from gpuledger.agent.deliver.state import ReceiverCounts, ThrottledLog
from gpuledger.http.client_messages import HttpRequestFailed, HttpResponse
from gpuledger.model.source import Clock

_LOG = logging.getLogger(__name__)
Sleep = Callable[[float], Awaitable[object]]
# Statuses that some of a batch's samples can cause.
_SPLIT_STATUSES: Final = frozenset({400, 409, 413, 422})
_TOO_MANY: Final = 429
# After so many failures in succession, a 429 without Retry-After is not taken for a limit of the rate, but
# for one of the series: some receivers answer it as long as one series of a request is above a limit.
_LIMITED_FAILURES: Final = 6
# The order in which an accepted part (True) and a limited one are sent again. A limit of the rate that lets a
# sample pass now and then does not fit it.
_TURNS: Final = (True, False, False, True) * 4


class Sender:
    """Delivers a queue between `start` and `stop`; a new sender can take over `in_flight` of the old one.

    Records with the same shard hash go to one shard and are sent in order: each waits until the previous one
    is delivered or dropped.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        queue: ReceiverQueue,
        counts: ReceiverCounts,
        clock: Clock,
        throttled_log: ThrottledLog,
        chance: Callable[[], float],
        sleep: Sleep,
        refused: RefusedSeries,
        protocol: WriteProtocol,
        metadata: MetadataStore,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._counts = counts
        self._clock = clock
        self._throttled_log = throttled_log
        self._chance = chance
        self._sleep = sleep
        self._refused = refused
        self._metadata = metadata
        self.client = RemoteWriteClient(settings, clock, protocol)
        config = settings.queue_config
        self._most = config.max_samples_per_send
        self._room = max(config.capacity, 2 * self._most)
        self._shard_queues: list[ShardQueue] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._retry_at = 0.0
        self._draining = self._resizing = False
        self._drained = asyncio.Event()

    @property
    def shards(self) -> int:
        """Number of shards, which is the number of parallel requests."""
        return len(self._shard_queues)

    @property
    def in_flight(self) -> list[QueuedRecord]:
        """Dequeued records that are neither delivered nor dropped, in queue order."""
        return sorted(
            (item for shard in self._shard_queues for item in shard.pending), key=lambda item: item.serial
        )

    @property
    def has_room(self) -> bool:
        """Whether every shard has room for more records."""
        return bool(self._tasks) and all(shard.samples < self._room for shard in self._shard_queues)

    def start(self, shards: int, in_flight: Iterable[QueuedRecord] = ()) -> None:
        """Start this many shards, beginning with the records that are already dequeued."""
        self._shard_queues = [ShardQueue() for _ in range(shards)]
        for item in in_flight:
            self.dispatch(item)
        self._tasks = [asyncio.create_task(self._run(shard)) for shard in self._shard_queues]
        for task in self._tasks:
            task.add_done_callback(_log_shard_end)
        self.fill_shards()

    def fill_shards(self) -> None:
        """Dequeue records until a shard is full or the queue is empty."""
        try:
            while self.has_room and (item := self._queue.next_record()) is not None:
                self.dispatch(item)
        except Exception as error:  # noqa: BLE001  (out of memory or a defect must not end the callers)
            self._throttled_log.warn("filling", f"cannot read the queue ({error!r}); retrying")

    def dispatch(self, item: QueuedRecord) -> None:
        """Assign a dequeued record to its shard."""
        shard = self._shard_queues[item.record.shard % len(self._shard_queues)]
        shard.append(item)
        if shard.samples >= self._most or len(shard.pending) == 1:
            shard.changed.set()

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Send queued records for at most `drain_seconds` and until the first failure, then stop."""
        if drain_seconds > 0 and self._queue.blocks and not self._resizing and self._tasks:
            self._draining = True
            for shard in self._shard_queues:
                shard.changed.set()
            # The rest remains in the queue.
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds):
                    await self._drained.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self.client.close()

    async def resize(self, shards: int) -> None:
        """Change the number of shards after the current requests end. Cancelled, it keeps the old number."""
        self._resizing = True
        for shard in self._shard_queues:
            shard.changed.set()
        try:
            await asyncio.wait(self._tasks, timeout=self._settings.remote_timeout)
        except asyncio.CancelledError:
            shards = self.shards
            raise
        finally:
            await self.stop()
            self._resizing = False
            self.start(shards, self.in_flight)

    async def _run(self, shard: ShardQueue) -> None:
        while await self._wait_for_batch(shard):
            try:
                await self._deliver(shard)
            except Exception as error:  # noqa: BLE001  (one failure must not end the shard)
                self._record_defect(error)
                await self._back_off(shard)
            self.fill_shards()

    async def _wait_for_batch(self, shard: ShardQueue) -> bool:
        """Wait for a full batch or the batch_send_deadline. Returns False when the shard must end."""
        while not self._resizing:
            left = None
            if shard.pending:
                waited = self._clock.elapsed() - shard.pending[0].dequeued_at
                left = self._settings.queue_config.batch_send_deadline - waited
                if shard.samples >= self._most or left <= 0 or self._draining:
                    return True
            shard.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await shard.changed.wait()
        return False

    async def _deliver(self, shard: ShardQueue) -> None:
        """Send a batch until each of its records is delivered or dropped."""
        part: Sequence[QueuedRecord] = shard.next_batch(self._most)
        while part := self._drop_expired(shard, part):
            if any(map(self._refused.concerns, part)):
                await self._deliver_by_series(shard, part)
                return
            request = RecordsRequest([item.record for item in part], self._metadata)
            answer = await self._send(request)
            if answer is None or (self._is_limit(answer) and shard.failures < _LIMITED_FAILURES):
                await self._back_off(shard)
                continue
            if self._is_limit(answer):
                await self._deliver_by_series(shard, part, answer)
                return
            shard.failures = 0
            if answer.status in _SPLIT_STATUSES:
                await self._deliver_by_series(shard, part, answer)
            elif answer.status < 300:
                self._counts.refusing = False
                self._finish(shard, part, _spread(part, answer.unwritten))
            else:
                self._counts.refusing = True
                self._drop_rejected(shard, part, answer.response)
            return

    async def _deliver_by_series(
        self, shard: ShardQueue, items: Sequence[QueuedRecord], answer: WriteAnswer | None = None
    ) -> None:
        """Deliver all samples but those of refused series. `answer`: the refusal of all in one request.

        Ends without a result if a record must not be sent any more.
        """
        search = RefusalSearch(items, self._refused)
        refusal = answer
        of_limit = answer is not None and self._is_limit(answer)
        accepted: Sequence[SeriesSample] = ()
        while part := search.next_part():
            if answer is None:
                answer = await self._send(SeriesRequest(part, self._metadata))
            limited = answer is not None and self._is_limit(answer)
            waits = search.is_exhausted
            if len(part) > 1:
                waits |= not of_limit and shard.failures < _LIMITED_FAILURES
            elif answer is not None and limited and not waits:
                others = list(filter(None, (accepted, *search.others_than(part))))
                answer, other = await self._compare(part, answer, others)
                accepted = other or accepted
                # If the part was accepted after all, or all are limited, pauses help more than requests.
                limited = of_limit = answer is not None and self._is_limit(answer)
            if answer is None or (limited and waits):
                await self._back_off(shard)
                if any(map(self._queue.drop_reason, items)):
                    return
                search.retry(part)
                answer = None
                continue
            if answer.status < 300:
                search.accept(part, answer.unwritten)
                # The last one: the receiver may refuse an older sample of its series.
                accepted = part[-1:]
            else:
                refusal = answer
                divisible = limited or answer.status in _SPLIT_STATUSES
                search.refuse(part, divisible=divisible, unwritten=answer.unwritten)
            if not limited or len(part) == 1:
                shard.failures = 0
            answer = None
        if refusal is not None:
            self._log_refusal(refusal.response, search.refused)
        if search.accepted:
            self._counts.refusing = False
        elif search.is_news:
            self._counts.refusing = True
        self._finish(shard, items, search.lost)

    async def _compare(
        self, part: Sequence[SeriesSample], answer: WriteAnswer, others: Sequence[Sequence[SeriesSample]]
    ) -> tuple[WriteAnswer | None, Sequence[SeriesSample]]:
        """Send a limited part and another one in turn; return the answer for the part and the other one.

        The answer is `answer` if the other one is accepted each time and the part never. It is None if the
        limit may concern all series.
        """
        for other in others:
            for is_other in _TURNS:
                found = await self._send(SeriesRequest(other if is_other else part, self._metadata))
                if found is None:
                    return None, ()
                if found.status < 300 and not is_other:
                    return found, other
                if found.status >= 300 and is_other:
                    break
            else:
                return answer, other
        return None, ()

    async def _send(self, request: WriteRequest) -> WriteAnswer | None:
        """Send once. Returns a final response (delivered or rejected), or None if it must be retried.

        Also returns a 429 that must be retried if the receiver does not say when (see `_is_limit`).
        """
        await self._wait_for_retry_after()
        began, samples = self._clock.elapsed(), request.samples
        try:
            answer = await self.client.send(request)
        except HttpRequestFailed as error:
            self._record_failure(error.kind, str(error), samples)
            return None
        response = answer.response
        if must_retry(answer.status, retry_429=self._settings.queue_config.retry_on_http_429):
            self._record_failure(str(answer.status), self.client.describe(response), samples)
            delay = parse_retry_after(response.headers.get("retry-after", ""), self._clock.unix())
            self._retry_at = max(self._retry_at, self._clock.elapsed() + delay)
            return answer if self._is_limit(answer) and not response.headers.get("retry-after") else None
        self._clear_failing()
        if answer.status < 300:
            self._counts.requests["2xx"] += 1
            self._counts.busy_seconds += self._clock.elapsed() - began
            self._counts.sent_bytes += answer.size
            if answer.unwritten:
                why = (
                    f"the receiver wrote only {samples - answer.unwritten} of {samples} samples of a request"
                )
                self._set_error(why)
                self._throttled_log.warn("unwritten", f"{why}; the others are dropped")
        else:
            self._counts.requests[str(answer.status)] += 1
        return answer

    def _is_limit(self, answer: WriteAnswer) -> bool:
        """Whether a response says that there is too much of something, and must be retried."""
        return answer.status == _TOO_MANY and self._settings.queue_config.retry_on_http_429

    async def _wait_for_retry_after(self) -> None:
        """Wait as long as the receiver's last Retry-After requires; it applies to all shards."""
        while (left := self._retry_at - self._clock.elapsed()) > 0:
            await self._pause(left)

    async def _back_off(self, shard: ShardQueue) -> None:
        config = self._settings.queue_config
        delay = backoff_delay(shard.failures, config.min_backoff, config.max_backoff, self._chance())
        shard.failures += 1
        await self._pause(delay)

    async def _pause(self, seconds: float) -> None:
        if self._draining:
            self._drained.set()
        await self._sleep(seconds)

    def _finish(self, shard: ShardQueue, part: Sequence[QueuedRecord], lost: Counter[int]) -> None:
        """Count records as delivered, without the samples that were `lost` of each (by serial)."""
        counts = self._counts
        sent = sum(item.record.samples for item in part) - lost.total()
        if sent:
            counts.sent_samples += sent
            newest = max(item.record.newest for item in part) / 1000
            counts.newest_sent = max(newest, counts.newest_sent or newest)
            counts.last_success = self._clock.unix()
        for item in part:
            self._queue.finish_partly(item, lost[item.serial])
        self._remove(shard, part)

    def _drop_rejected(self, shard: ShardQueue, part: Sequence[QueuedRecord], response: HttpResponse) -> None:
        self._log_refusal(response)
        self._queue.finish(part, state.REJECTED)
        self._remove(shard, part)

    def _log_refusal(self, response: HttpResponse, refused: Sequence[SeriesSample] = ()) -> None:
        """Log a refusal, with one of the series that are its cause if they are known."""
        error = self.client.describe(response)
        self._set_error(error)
        what = "the rejected samples are dropped"
        if refused:
            count = len({(sample.item.record.shard, sample.labels) for sample in refused})
            what = (
                f"it refuses {count} series, such as {refused[0].name}; their samples are dropped, "
                f"after a second refusal for {LEFT_OUT_SECONDS / 60:g} minutes"
            )
        self._throttled_log.warn(f"refused {response.status}", f"{error}; {what}")

    def _drop_expired(self, shard: ShardQueue, part: Sequence[QueuedRecord]) -> Sequence[QueuedRecord]:
        """Drop the first records that must not be sent any more; return the rest."""
        first = 0
        while first < len(part) and (reason := self._queue.drop_reason(part[first])):
            self._queue.finish(part[first : first + 1], reason)
            first += 1
        if first:
            self._remove(shard, part[:first])
        return part[first:]

    def _remove(self, shard: ShardQueue, part: Sequence[QueuedRecord]) -> None:
        """Remove finished records from the shard and save the positions."""
        shard.remove(part)
        self._queue.save_positions(
            tuple(each.done_position(self._queue.reader.position) for each in self._shard_queues)
        )
        if self._draining:
            self.fill_shards()
            if not self._queue.blocks:
                self._drained.set()

    def _record_failure(self, kind: str, why: str, samples: int) -> None:
        counts = self._counts
        counts.requests[kind] += 1
        counts.retried_samples += samples
        counts.failing = True
        self._set_error(why)
        self._throttled_log.warn("failing", f"{why}; the samples stay queued and are retried")

    def _record_defect(self, error: Exception) -> None:
        """Handle out of memory or a defect: the batch is retried."""
        if not self._counts.failing:
            _LOG.error("remote write to %s: cannot send a request", self._settings.name, exc_info=error)
        self._counts.failing = True
        self._set_error("internal error; see the log of gpuledger agent")

    def _clear_failing(self) -> None:
        if self._counts.failing:
            self._counts.failing = False
            self._throttled_log.log_recovery("failing", "the receiver responds again")

    def _set_error(self, why: str) -> None:
        self._counts.last_error = why
        self._counts.last_error_at = self._clock.unix()


def _spread(items: Sequence[QueuedRecord], unwritten: int) -> Counter[int]:
    """Assign samples that were not written to the last records, by serial."""
    lost: Counter[int] = Counter()
    for item in reversed(items):
        lost[item.serial] = min(unwritten, item.record.samples)
        unwritten -= lost[item.serial]
    return lost


def _log_shard_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("a remote-write shard ended unexpectedly", exc_info=error)
