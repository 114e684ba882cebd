"""Scrapes one target, beat by beat, and hands over what it told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct
from typing import Final

from gpuledger.agent.deliver.records import Block
from gpuledger.agent.scrape.answer import ScrapeFailed
from gpuledger.agent.scrape.client import Client, Request, TargetAccess
from gpuledger.agent.scrape.labelling import VALUE_BYTES, Delivery, Labelling, timed
from gpuledger.agent.scrape.lines import format_of
from gpuledger.agent.scrape.pages import PageError, Pages
from gpuledger.agent.scrape.reader import Counts, Samples
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.agent.scrape.state import GroupTotals, PageMemory, TargetState
from gpuledger.exposition.remote_write import STALE, timestamp_tail
from gpuledger.model.source import Clock

_pack: Final = Struct("<d").pack
_ALWAYS: Final = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
_EXTRA: Final = ("scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes")


class Report:
    """Those of one target, whose names and labels are encoded once."""

    def __init__(self, labelling: Labelling, settings: ScrapeSettings) -> None:
        names = _ALWAYS + (_EXTRA if settings.extra_metrics else ())
        # What write_relabel_configs drop is None.
        self._prefixes = [
            fate if isinstance(fate, bytes) else None for fate in map(labelling.reported, names)
        ]
        self._settings = settings

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """The bytes before the values."""
        return tuple(prefix for prefix in self._prefixes if prefix is not None)

    def entries(self, *, up: bool, seconds: float, counts: Counts, body_bytes: int) -> list[bytes]:
        """Prefix and value of each. `body_bytes` is -1 for a page that was larger than allowed."""
        values = [float(up), seconds, counts.scraped, counts.kept, counts.added]
        if self._settings.extra_metrics:
            values += [self._settings.timeout, self._settings.sample_limit, body_bytes]
        told = zip(self._prefixes, values, strict=True)
        return [prefix + _pack(value) for prefix, value in told if prefix is not None]

    def ends(self) -> list[bytes]:
        """Staleness markers for all of them."""
        return [prefix + STALE for prefix in self.prefixes]


# A scrape that begins so little after its beat is told with the beat's own time, so that timestamps are
# evenly apart; of the interval, one part in a hundred at most. As Prometheus has it since 2.29.
_TOLERANCE: Final = 0.002
_TOLERANCE_SHARE: Final = 0.01


@dataclass(slots=True)
class Beat:
    """The beats of one target, in unix milliseconds: `offset` after each multiple of the interval.

    Targets scraped by several agents of one cluster, or after a restart, keep their moment in the interval.
    """

    interval: float
    digest: int
    _offset: int = field(init=False)
    _milliseconds: int = field(init=False)

    def __post_init__(self) -> None:
        self._milliseconds = max(1, round(self.interval * 1000))
        self._offset = self.digest % self._milliseconds

    def next(self, unix: float, last: int | None = None) -> int:
        """The first beat after a moment that is not `last`, nor before it unless the clock was set back."""
        now = int(unix * 1000)
        beat = now - (now - self._offset) % self._milliseconds + self._milliseconds
        if last is not None and beat <= last <= beat + self._milliseconds:
            # Woken a little early.
            return last + self._milliseconds
        return beat

    def between(self, beat: int, later: int) -> int:
        """How many beats it is from one to another."""
        return (later - beat) // self._milliseconds

    def timestamp(self, beat: int, unix: float) -> int:
        """The milliseconds to tell of a scrape that was due at `beat` and began now."""
        late = unix * 1000 - beat
        tolerance = 1000 * min(_TOLERANCE, self.interval * _TOLERANCE_SHARE)
        return beat if abs(late) <= tolerance else int(unix * 1000)


log = logging.getLogger("gpuledger.agent")

# On a page of gpuledger's or of dcgm-exporter's, whose own labels say whose GPU a series is about.
_OWN_LABELS: Final = (b"DCGM_FI_", b"\ngpuledger_", b"\ngpu_process_", b"\nmy_gpu_process_")

# Takes a block for the receivers of these names; None is all of them.
Accept = Callable[[Block, Collection[str] | None], None]


@dataclass(frozen=True, slots=True)
class Deliveries:
    """To whom samples go. `receivers` get what `delivery` makes of them, None being all there are; the
    `others` are receivers with rules of their own.
    """

    delivery: Delivery
    receivers: frozenset[str] | None = None
    others: tuple[tuple[Delivery, frozenset[str]], ...] = ()


class TargetLoop:
    """Used by the event loop's thread alone. `accept` gets each scrape's samples at once, and never waits."""

    def __init__(
        self,
        target: Target,
        deliveries: Deliveries,
        accept: Accept,
        clock: Clock,
        access: TargetAccess | None = None,
        totals: GroupTotals | None = None,
        memory: PageMemory | None = None,
    ) -> None:
        settings = target.settings
        self.target = target
        self.state = TargetState()
        self.totals = totals or GroupTotals()
        self._deliveries = deliveries
        self._accept = accept
        self._clock = clock
        labelling = Labelling(
            dict(target.labels),
            settings.relabelling,
            settings.label_limits,
            deliveries.delivery,
            [delivery for delivery, _ in deliveries.others],
        )
        self._pages = Pages(labelling, honor_timestamps=settings.honor_timestamps, memory=memory)
        self._report = Report(labelling, settings)
        self._request = Request(
            target.url,
            settings.timeout,
            settings.body_limit,
            settings.follow_redirects,
            settings.tls.server_name,
            settings.credentials_over_http,
        )
        self._access = access
        self._client = Client(self._request, access)
        self._honor = bool(settings.honor_labels)
        self._shard = target.digest & 0xFFFFFFFF
        self._ending: list[bytes] = []
        self._stumbled = False
        self.beat = Beat(settings.interval, target.digest)
        self.due: int | None = None

    async def run(self) -> None:
        """Scrape on every beat until cancelled; a scrape that takes longer than that misses beats."""
        try:
            while True:
                before, self.due = self.due, self.beat.next(self._clock.unix(), self.due)
                if before is not None:
                    self.totals.missed += max(0, self.beat.between(before, self.due) - 1)
                await asyncio.sleep(max(0.0, self.due / 1000 - self._clock.unix()))
                try:
                    await self.scrape(self.beat.timestamp(self.due, self._clock.unix()))
                except Exception:  # noqa: BLE001  (it must not end the scraping of its target either)
                    self._stumble("what %s told could not be handed over")
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the connection, and of memory that others can use."""
        self._client.close()
        self._pages.rest()

    def inherit(self, other: TargetLoop) -> None:
        """Go on where another loop of the same target stood: what this one does not tell has ended."""
        self._pages.inherit(other._pages)
        if other._deliveries.others == self._deliveries.others:
            self._pages.labelling.inherit(other._pages.labelling)
        mine = set(self._report.prefixes)
        gone = [entry for entry in other._report.ends() if entry[:-VALUE_BYTES] not in mine]
        self._ending = other._ending + gone
        self.due = other.due if other.target.settings.interval == self.target.settings.interval else None

    async def scrape(self, milliseconds: int) -> None:
        """One scrape, told at that timestamp."""
        began = self._clock.elapsed()
        self.state.last_scrape = milliseconds / 1000
        samples, reason, error, size, answered = Samples(), "", "", 0, False
        try:
            answer = await self._client.fetch()
            answered = True
            body = answer.page(self._request.body_limit)
            size = len(body)
            samples = self._pages.take(
                body,
                format_of(answer.headers.get("content-type", "")),
                honor=self._honors(body),
                limit=self.target.settings.sample_limit,
            )
        except ScrapeFailed as failure:
            reason, error = "body_limit" if failure.oversized else "request", str(failure)
            size = -1 if failure.oversized else 0
        except PageError as failure:
            reason, error = "page", str(failure)
            samples = Samples(failure.counts)
        except Exception:  # noqa: BLE001  (a defect met on one page must not end the scraping of its target)
            self._stumble("the scrape of %s failed")
            reason, error = "internal", "internal error; the log of gpuledger agent has the reason"
        if reason:
            samples.entries = self._pages.end()
        if self._access is not None:
            # A line that cannot be read is quoted, and it may be what the target was shown.
            error = self._access.hide(error)
        seconds = self._clock.elapsed() - began
        self.state.answered = answered
        self._note(samples, reason, error, size, seconds)
        report = self._report.entries(up=not reason, seconds=seconds, counts=samples.counts, body_bytes=size)
        ending, self._ending = self._ending, []
        self._deliver(samples.entries + ending + report, samples.timed, milliseconds)
        self._forget_routes(samples, report, failed=bool(reason))
        self._stumbled = reason == "internal"

    def _stumble(self, what: str) -> None:
        """Log the exception at hand, once for as long as it lasts: memory that ran out is met each time."""
        if not self._stumbled:
            log.exception(what, self.target.url)
        self._stumbled = True

    def _forget_routes(self, samples: Samples, report: list[bytes], *, failed: bool) -> None:
        """Let what receivers with rules of their own get not outgrow what there is to tell."""
        labelling = self._pages.labelling
        if not failed:
            labelling.told(len(samples.entries) + len(samples.timed) + len(report))
        if labelling.crowded:
            # What was told before a failure may be told again, as it was.
            told = self._pages.prefixes() if failed else (entry[:-VALUE_BYTES] for entry in samples.entries)
            timed = (prefix for prefix, _, _ in samples.timed)
            labelling.forget(chain(told, timed, self._report.prefixes))

    def end(self, milliseconds: int) -> None:
        """Mark everything of this target as ended: it is scraped no more."""
        self._deliver(self._pages.end() + self._ending + self._report.ends(), [], milliseconds)

    def _honors(self, body: bytes) -> bool:
        if not self._honor and self.target.settings.honor_labels is None:
            # For good, once seen: a page that lacks its GPUs for a while is still that exporter's.
            self._honor = any(mark in body for mark in _OWN_LABELS)
        return self._honor

    def _note(self, samples: Samples, reason: str, error: str, size: int, seconds: float) -> None:
        state, totals = self.state, self.totals
        totals.scrapes += 1
        totals.seconds += seconds
        totals.duplicates += samples.duplicates
        if reason:
            totals.failures[reason] = totals.failures.get(reason, 0) + 1
        else:
            state.last_success = state.last_scrape
        if error and error != state.error:
            log.warning("%s of %s: %s", self.target.url, self.target.group, error)
        elif state.up is False and not error:
            log.info("%s of %s: answers again", self.target.url, self.target.group)
        if samples.duplicates and not state.duplicates:
            log.warning("%s tells series twice; the first of each counts", self.target.url)
        state.up, state.error, state.duration = not reason, error, seconds
        state.counts, state.body_bytes = samples.counts, size if size > 0 else None
        state.duplicates = samples.duplicates
        state.kept_bytes = self._pages.kept_bytes + self._pages.labelling.kept_bytes

    def _deliver(
        self, entries: list[bytes], own_time: list[tuple[bytes, bytes, int]], milliseconds: int
    ) -> None:
        deliveries = self._deliveries
        if deliveries.receivers is None or deliveries.receivers:
            self._hand_over(entries, own_time, milliseconds, deliveries.receivers)
        labelling = self._pages.labelling
        for number, (_, receivers) in enumerate(deliveries.others):
            times = [time for _, _, time in own_time]
            theirs = [labelling.routed(number, [prefix + value]) for prefix, value, _ in own_time]
            told = [
                (found[0][:-VALUE_BYTES], found[0][-VALUE_BYTES:], time)
                for found, time in zip(theirs, times, strict=True)
                if found
            ]
            self._hand_over(labelling.routed(number, entries), told, milliseconds, receivers)

    def _hand_over(
        self,
        entries: Sequence[bytes],
        own_time: Sequence[tuple[bytes, bytes, int]],
        milliseconds: int,
        receivers: Collection[str] | None,
    ) -> None:
        """Samples with a time of their own go by themselves: a receiver that finds one too old refuses all
        that came with it.
        """
        try:
            tail = timestamp_tail(milliseconds)
        except ValueError:
            # A machine without a clock of its own is in 1970 until it has asked for the time.
            whole = [timed(entry[:-VALUE_BYTES], entry[-VALUE_BYTES:], milliseconds) for entry in entries]
        else:
            whole = [tail.join(entries) + tail] if entries else []
        self._accept_samples(b"".join(whole), len(entries), (milliseconds,), receivers)
        times = [time for _, _, time in own_time]
        self._accept_samples(b"".join(timed(*sample) for sample in own_time), len(times), times, receivers)

    def _accept_samples(
        self, payload: bytes, samples: int, times: Sequence[int], receivers: Collection[str] | None
    ) -> None:
        if samples:
            self.totals.delivered += samples
            self._accept(Block(self._shard, payload, samples, min(times), max(times)), receivers)
