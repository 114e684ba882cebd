"""Sends what a queue holds to one receiver: shards side by side, each one request after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from gpuledger.agent.deliver import state
from gpuledger.agent.deliver.client import Backoff, Client, Line, Unreachable, Verdict, retry_after, verdict
from gpuledger.agent.deliver.connection import Answer
from gpuledger.agent.deliver.queue import Item, Queue
from gpuledger.agent.deliver.records import joined
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.deliver.state import Counts, Sayings
from gpuledger.model.source import Clock


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


_LOG = logging.getLogger(__name__)
Sleep = Callable[[float], Awaitable[object]]
# Answers that are about something in the samples: without it the others may pass.
_ABOUT_SOME: Final = frozenset({400, 409, 413, 422})


class Sender:
    """Between `start` and `stop` it delivers; a new one may take over what the old one had `taken`.

    Blocks that share a key are in one lane: they are sent in order, none before the one ahead of it was
    delivered or dropped.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        queue: Queue,
        counts: Counts,
        clock: Clock,
        sayings: Sayings,
        chance: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._counts = counts
        self._clock = clock
        self._sayings = sayings
        self._chance = chance
        self._sleep = sleep
        self._client = Client(settings, clock)
        config = settings.queue_config
        self._most = config.max_samples_per_send
        self._room = max(config.capacity, 2 * self._most)
        self._lanes: list[Lane] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._open_at = 0.0
        self._draining = self._resizing = False
        self._drained = asyncio.Event()

    @property
    def shards(self) -> int:
        """How many requests there can be at once."""
        return len(self._lanes)

    @property
    def taken(self) -> list[Item]:
        """What has come out of the queue and is not done with, in that order."""
        return sorted((item for lane in self._lanes for item in lane.pending), key=lambda item: item.serial)

    @property
    def has_room(self) -> bool:
        """Whether more may be taken out of the queue."""
        return bool(self._tasks) and all(lane.samples < self._room for lane in self._lanes)

    def start(self, shards: int, taken: Iterable[Item] = ()) -> None:
        """Deliver, beginning with what was taken out of the queue before."""
        self._lanes = [Lane() for _ in range(shards)]
        for item in taken:
            self.place(item)
        self._tasks = [asyncio.create_task(self._run(lane)) for lane in self._lanes]
        for task in self._tasks:
            task.add_done_callback(_tell)
        self.fill()

    def fill(self) -> None:
        """Take as much out of the queue as there is room for; the rest is for a later call."""
        try:
            while self.has_room and (item := self._queue.next()) is not None:
                self.place(item)
        except Exception as error:  # noqa: BLE001  (memory that runs out, or a defect, must not end its callers)
            self._sayings.say("filling", f"what is queued could not be read ({error!r}); it is tried again")

    def place(self, item: Item) -> None:
        """Put what came out of the queue where it is sent from."""
        lane = self._lanes[item.record.shard % len(self._lanes)]
        lane.put(item)
        if lane.samples >= self._most or len(lane.pending) == 1:
            lane.changed.set()

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Send what is queued, for so long at most, and until the first failure; then let go."""
        if drain_seconds > 0 and self._queue.blocks and not self._resizing and self._tasks:
            self._draining = True
            for lane in self._lanes:
                lane.changed.set()
            try:
                async with asyncio.timeout(drain_seconds):
                    await self._drained.wait()
            except TimeoutError:
                # What is left is in the queue.
                pass
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def resize(self, shards: int) -> None:
        """Go on with another number of shards; requests under way are waited for.

        Cancelled, it goes on with those of before.
        """
        self._resizing = True
        for lane in self._lanes:
            lane.changed.set()
        try:
            await asyncio.wait(self._tasks, timeout=self._settings.remote_timeout)
        except asyncio.CancelledError:
            shards = self.shards
            raise
        finally:
            await self.stop()
            self._resizing = False
            self.start(shards, self.taken)

    async def _run(self, lane: Lane) -> None:
        line = self._client.line()
        config = self._settings.queue_config
        backoff = Backoff(config.min_backoff, config.max_backoff, self._chance)
        try:
            while await self._gathered(lane):
                try:
                    await self._deliver(lane, line, backoff)
                except Exception as error:  # noqa: BLE001  (it must not end what delivers all that follows)
                    line.close()
                    self._broke(error)
                    await self._pause(backoff.next())
                self.fill()
        finally:
            line.close()

    async def _gathered(self, lane: Lane) -> bool:
        """Wait until there is enough for a request, or the first has waited long enough.

        Answers False when nothing is to be sent from this lane any more.
        """
        while not self._resizing:
            left = None
            if lane.pending:
                waited = self._clock.elapsed() - lane.pending[0].arrived
                left = self._settings.queue_config.batch_send_deadline - waited
                if lane.samples >= self._most or left <= 0 or self._draining:
                    return True
            lane.changed.clear()
            try:
                async with asyncio.timeout(left):
                    await lane.changed.wait()
            except TimeoutError:
                continue
        return False

    async def _deliver(self, lane: Lane, line: Line, backoff: Backoff) -> None:
        """Send a batch until all of it is delivered or dropped.

        A refused one is tried in halves, so that only those are lost which the refusal is about.
        """
        parts: list[Sequence[Item]] = [lane.batch(self._most)]
        taken = refused = False
        while parts:
            part = self._still_wanted(lane, parts.pop())
            if not part:
                continue
            answer = await self._send(line, part)
            if answer is None:
                await self._pause(backoff.next())
                parts.append(part)
                continue
            backoff.reset()
            if answer.status < 300:
                taken = True
                self._done(lane, part)
            elif len(part) > 1 and answer.status in _ABOUT_SOME:
                self._counts.requests[str(answer.status)] += 1
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                refused = True
                self._refuse(lane, part, answer)
        if taken or refused:
            self._counts.refusing = not taken

    async def _send(self, line: Line, part: Sequence[Item]) -> Answer | None:
        """Send once; answers what is final: taken, or refused for good. None: not now."""
        await self._opened()
        samples = sum(item.record.samples for item in part)
        body = joined([item.record for item in part])
        began = self._clock.elapsed()
        try:
            answer = await self._client.post(line, body)
        except Unreachable as error:
            self._failed(error.kind, str(error), samples)
            return None
        decided = verdict(answer.status, retry_429=self._settings.queue_config.retry_on_http_429)
        if decided is Verdict.AGAIN:
            self._failed(str(answer.status), self._words(answer), samples)
            asked = retry_after(answer.retry_after, self._clock.unix())
            self._open_at = max(self._open_at, self._clock.elapsed() + asked)
            return None
        if decided is Verdict.DONE:
            self._counts.busy_seconds += self._clock.elapsed() - began
            self._counts.sent_bytes += len(body)
        return answer

    async def _opened(self) -> None:
        """Wait for as long as the receiver asked all of us to."""
        while (left := self._open_at - self._clock.elapsed()) > 0:
            await self._pause(left)

    async def _pause(self, seconds: float) -> None:
        if self._draining:
            self._drained.set()
        await self._sleep(seconds)

    def _done(self, lane: Lane, part: Sequence[Item]) -> None:
        counts = self._counts
        counts.requests["2xx"] += 1
        counts.sent_samples += sum(item.record.samples for item in part)
        newest = max(item.record.newest for item in part) / 1000
        counts.newest_sent = max(newest, counts.newest_sent or newest)
        counts.last_success = self._clock.unix()
        self._answered()
        self._queue.delivered(part)
        self._forget(lane, part)

    def _refuse(self, lane: Lane, part: Sequence[Item], answer: Answer) -> None:
        self._counts.requests[str(answer.status)] += 1
        self._answered()
        self._error(self._words(answer))
        self._sayings.say(f"refused {answer.status}", f"{self._words(answer)}; what it is about is dropped")
        self._queue.drop(part, state.REJECTED)
        self._forget(lane, part)

    def _still_wanted(self, lane: Lane, part: Sequence[Item]) -> Sequence[Item]:
        first = 0
        while first < len(part) and (reason := self._queue.unwanted(part[first])):
            self._queue.drop(part[first : first + 1], reason)
            first += 1
        if first:
            self._forget(lane, part[:first])
        return part[first:]

    def _forget(self, lane: Lane, part: Sequence[Item]) -> None:
        lane.remove(part)
        self._queue.save(tuple(each.point(self._queue.read_to) for each in self._lanes))
        if self._draining:
            self.fill()
            if not self._queue.blocks:
                self._drained.set()

    def _failed(self, kind: str, why: str, samples: int) -> None:
        counts = self._counts
        counts.requests[kind] += 1
        counts.retried_samples += samples
        counts.failing = True
        self._error(why)
        self._sayings.say("failing", f"{why}; what is queued is sent again later")

    def _broke(self, error: Exception) -> None:
        """Memory ran out, or a defect was met: what was to be sent is sent again."""
        if not self._counts.failing:
            _LOG.error("remote write to %s: a request could not be made", self._settings.name, exc_info=error)
        self._counts.failing = True
        self._error("internal error; the log of gpuledger agent has the reason")

    def _answered(self) -> None:
        if self._counts.failing:
            self._counts.failing = False
            self._sayings.over("failing", "it answers again")

    def _error(self, why: str) -> None:
        self._counts.last_error = why
        self._counts.last_error_at = self._clock.unix()

    def _words(self, answer: Answer) -> str:
        text = f"it answers {answer.status}"
        if 300 <= answer.status < 400 and answer.location:
            return f"{text}, a redirect, which is not followed: name the URL that it leads to"
        said = self._client.told(answer.body)
        return f"{text}: {said}" if said else text


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("a shard of remote write has ended, which it never should", exc_info=error)
