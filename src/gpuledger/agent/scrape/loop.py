"""Scrape loop of one target: scrapes it once per interval and passes the samples on for delivery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Final

from gpuledger.agent.deliver.credentials import ReloadedCredentials
from gpuledger.agent.deliver.metadata import MetadataStore
from gpuledger.agent.deliver.records import Block
from gpuledger.agent.scrape.client import ScrapeClient
from gpuledger.agent.scrape.line_parser import page_format
from gpuledger.agent.scrape.page_cache import PageCache, PageError
from gpuledger.agent.scrape.page_reader import PageSamples, SampleCounts
from gpuledger.agent.scrape.series_labels import (
    VALUE_BYTES,
    SeriesLabeler,
    WriteRelabeling,
    encode_timed_sample,
)
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.agent.scrape.state import GroupTotals, PageMemoryBudget, TargetState
from gpuledger.exposition.remote_write import STALE, encode_timestamp, encode_value
from gpuledger.http.client_messages import HttpRequestFailed
from gpuledger.model.source import Clock

_ALWAYS: Final = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
_EXTRA: Final = ("scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes")


class ScrapeReport:
    """Report series (`up`, `scrape_*`) of one target. Names and labels are encoded once."""

    def __init__(self, labeler: SeriesLabeler, settings: ScrapeSettings) -> None:
        names = _ALWAYS + (_EXTRA if settings.extra_metrics else ())
        # None: dropped by write_relabel_configs.
        self._prefixes = [
            outcome if isinstance(outcome, bytes) else None for outcome in map(labeler.report_series, names)
        ]
        # The encoded bytes before the values.
        self.prefixes = [prefix for prefix in self._prefixes if prefix is not None]
        self._settings = settings

    def entries(
        self, *, up: bool, seconds: float, counts: SampleCounts, body_bytes: int, timeout: float
    ) -> list[bytes]:
        """Return prefix and value of each report series. `body_bytes` is -1 for a page above the limit."""
        values = [float(up), seconds, counts.scraped, counts.kept, counts.added]
        if self._settings.extra_metrics:
            values += [timeout, self._settings.sample_limit, body_bytes]
        pairs = zip(self._prefixes, values, strict=True)
        return [prefix + encode_value(value) for prefix, value in pairs if prefix is not None]


# A scrape that starts at most this late (seconds, and at most 1 % of the interval) gets the scheduled time as
# its timestamp, which spaces timestamps evenly. Prometheus does so since 2.29.
_TOLERANCE: Final = 0.002
_TOLERANCE_SHARE: Final = 0.01


class ScrapeSchedule:
    """Scrape times of one target, in unix milliseconds: a fixed offset after each multiple of the interval.

    The offset comes from the target's digest, which makes it the same in every agent and after a restart.
    """

    __slots__ = ("_interval", "_milliseconds", "_offset")

    def __init__(self, interval: float, digest: int) -> None:
        self._interval = interval
        self._milliseconds = max(1, round(interval * 1000))
        self._offset = digest % self._milliseconds

    def next_time(self, unix: float, last: int | None = None) -> int:
        """Return the first scrape time after `unix` and after `last`.

        It is before `last` only if the clock was set back.
        """
        now = int(unix * 1000)
        scheduled = now - (now - self._offset) % self._milliseconds + self._milliseconds
        if last is not None and scheduled <= last <= scheduled + self._milliseconds:
            # The timer fired slightly early.
            return last + self._milliseconds
        return scheduled

    def intervals_between(self, scheduled: int, later: int) -> int:
        """Return the number of intervals between two scrape times."""
        return (later - scheduled) // self._milliseconds

    def timestamp(self, scheduled: int, unix: float) -> int:
        """Return the timestamp (ms) of a scrape that was due at `scheduled` and starts at `unix`."""
        late = unix * 1000 - scheduled
        tolerance = 1000 * min(_TOLERANCE, self._interval * _TOLERANCE_SHARE)
        return scheduled if abs(late) <= tolerance else int(unix * 1000)


log = logging.getLogger("gpuledger.agent")

# Marks a page of gpuledger or dcgm-exporter: its own pod and namespace labels name the GPU's owner.
_OWN_LABELS: Final = (b"DCGM_FI_", b"\ngpuledger_", b"\ngpu_process_", b"\nmy_gpu_process_")

# Accepts a block for the receivers with these names (None: all receivers).
AcceptBlock = Callable[[Block, Collection[str] | None], None]


@dataclass(frozen=True, slots=True)
class ReceiverRouting:
    """Assigns receivers to write relabeling rules.

    `receivers` (None: all) get the samples as `relabeling` changes them; `others` lists the receivers that
    have different rules.
    """

    relabeling: WriteRelabeling
    receivers: frozenset[str] | None = None
    others: tuple[tuple[WriteRelabeling, frozenset[str]], ...] = ()


class ScrapeLoop:
    """Scrapes one target. Runs on the event loop's thread only.

    `accept` is called with the samples of each scrape and must not block. `task` is set by the pool: it runs
    the loop, and later ends its series.
    """

    task: asyncio.Task[None]

    def __init__(
        self,
        target: Target,
        routing: ReceiverRouting,
        accept: AcceptBlock,
        clock: Clock,
        access: ReloadedCredentials | None = None,
        totals: GroupTotals | None = None,
        memory: PageMemoryBudget | None = None,
        metadata: MetadataStore | None = None,
    ) -> None:
        settings = target.settings
        self.target = target
        self.state = TargetState()
        self.totals = totals or GroupTotals()
        self._routing = routing
        self._accept = accept
        self._metadata = metadata or MetadataStore()
        self._clock = clock
        labeler = SeriesLabeler(
            dict(target.labels),
            settings.metric_relabeling,
            settings.label_limits,
            routing.relabeling,
            [delivery for delivery, _ in routing.others],
        )
        self._page_cache = PageCache(labeler, honor_timestamps=settings.honor_timestamps, memory=memory)
        self._report = ScrapeReport(labeler, settings)
        self._access = access
        self._client = ScrapeClient(target, access)
        self._honor = bool(settings.honor_labels)
        self._shard = target.digest & 0xFFFFFFFF
        self._ending: list[bytes] = []
        self._defect_logged = self._merge_logged = False
        self.schedule = ScrapeSchedule(settings.interval, target.digest)
        self.due: int | None = None

    async def run(self) -> None:
        """Scrape once per interval until cancelled. A scrape longer than the interval skips intervals."""
        try:
            while True:
                before, self.due = self.due, self.schedule.next_time(self._clock.unix(), self.due)
                if before is not None:
                    self.totals.missed += max(0, self.schedule.intervals_between(before, self.due) - 1)
                await asyncio.sleep(max(0.0, self.due / 1000 - self._clock.unix()))
                try:
                    await self.scrape(self.schedule.timestamp(self.due, self._clock.unix()))
                except Exception:  # noqa: BLE001  (one failed delivery must not end the loop)
                    self._log_defect("the samples of %s could not be queued for delivery")
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection and release the shared page memory."""
        self._client.close()
        self._page_cache.release_memory()

    def inherit(self, other: ScrapeLoop) -> None:
        """Continue from another loop of the same target.

        Series that this loop does not export get staleness markers.
        """
        self._page_cache.inherit(other._page_cache)
        if other._routing.others == self._routing.others:
            self._page_cache.labeler.inherit(other._page_cache.labeler)
        mine = set(self._report.prefixes)
        gone = [prefix + STALE for prefix in other._report.prefixes if prefix not in mine]
        self._ending = other._ending + gone
        self.due = other.due if other.target.settings.interval == self.target.settings.interval else None

    async def scrape(self, milliseconds: int) -> None:
        """Scrape once and deliver the samples with this timestamp."""
        began, timeout = self._clock.elapsed(), self._client.timeout.seconds
        self.state.last_scrape = milliseconds / 1000
        samples, reason, error, size, answered = PageSamples(), "", "", 0, False
        try:
            response = await self._client.fetch()
            answered = True
            body = response.decoded_body(self.target.settings.body_limit)
            size = len(body)
            samples = self._page_cache.read_page(
                body,
                page_format(response.headers.get("content-type", "")),
                honor=self._honors_labels(body),
                limit=self.target.settings.sample_limit,
                newest=milliseconds + (self.target.settings.ahead_limit or inf) * 1000,
            )
        except HttpRequestFailed as failure:
            oversized = failure.kind == "body_limit"
            reason, error = "body_limit" if oversized else "request", str(failure)
            size = -1 if oversized else 0
        except PageError as failure:
            reason, error = "page", str(failure)
            samples = PageSamples(failure.counts)
        except Exception:  # noqa: BLE001  (a defect that one page triggers must not end the loop)
            self._log_defect("the scrape of %s failed")
            reason, error = "internal", "internal error; see the log of gpuledger agent"
        if reason:
            samples.entries = self._page_cache.end_series()
        if samples.metadata is not None:
            self._metadata.set(self._shard, samples.metadata)
        if self._access is not None:
            # The error quotes the invalid line, which may echo our credentials.
            error = self._access.redact(error)
        seconds = self._clock.elapsed() - began
        self.state.answered = answered
        self._record_result(samples, reason, error, size, seconds)
        report = self._report.entries(
            up=not reason, seconds=seconds, counts=samples.counts, body_bytes=size, timeout=timeout
        )
        ending, self._ending = self._ending, []
        self._route_scrape(samples.entries + ending + report, samples.timed, milliseconds)
        self._prune_routes(samples, report, failed=bool(reason))
        self._defect_logged = reason == "internal"

    def _log_defect(self, message: str) -> None:
        """Log the current exception, once until a scrape succeeds: out of memory would repeat every time."""
        if not self._defect_logged:
            log.exception(message, self.target.url)
        self._defect_logged = True

    def _prune_routes(self, samples: PageSamples, report: list[bytes], *, failed: bool) -> None:
        """Bound the routes of receivers with different rules by the number of exported series."""
        labeler = self._page_cache.labeler
        if not failed:
            labeler.set_exported_series(len(samples.entries) + len(samples.timed) + len(report))
        if labeler.has_stale_routes:
            # After a failure the next page may export the series of the last good page again.
            prefixes = (
                self._page_cache.known_prefixes()
                if failed
                else (entry[:-VALUE_BYTES] for entry in samples.entries)
            )
            timed = (prefix for prefix, _, _ in samples.timed)
            labeler.prune_routes(chain(prefixes, timed, self._report.prefixes))

    def forget_metadata(self) -> None:
        """Do not deliver the metadata of this target any more: this agent no longer scrapes it."""
        self._metadata.remove(self._shard)

    def end_series(self, milliseconds: int, others: Iterable[ScrapeLoop] = ()) -> None:
        """Deliver staleness markers for the series of this target: it is no longer scraped.

        Series that another one exports by now, with the same labels under another address, have not ended.
        """
        self.forget_metadata()
        report, exported = self._report.prefixes, set[bytes]()
        for other in others:
            # Two targets export equal series if their labels are equal, and so these.
            if not set(report).isdisjoint(other._report.prefixes):
                exported |= other._page_cache.live_prefixes() | set(other._report.prefixes)
        ended = [*self._page_cache.end_series(), *self._ending, *(one + STALE for one in report)]
        ended = [entry for entry in ended if entry[:-VALUE_BYTES] not in exported]
        self._route_scrape(ended, [], milliseconds)

    def _honors_labels(self, body: bytes) -> bool:
        if not self._honor and self.target.settings.honor_labels is None:
            # Remembered once detected: the exporter's page may temporarily have no GPU series.
            self._honor = any(mark in body for mark in _OWN_LABELS)
        return self._honor

    def _record_result(
        self, samples: PageSamples, reason: str, error: str, size: int, seconds: float
    ) -> None:
        state, totals = self.state, self.totals
        totals.scrapes += 1
        totals.seconds += seconds
        totals.duplicates += samples.duplicates
        totals.ahead += samples.ahead
        if reason:
            totals.failures[reason] = totals.failures.get(reason, 0) + 1
        else:
            state.last_success = state.last_scrape
        if error and error != state.error:
            log.warning("%s of %s: %s", self.target.url, self.target.group, error)
        elif state.up is False and not error:
            log.info("%s of %s: the scrape succeeds again", self.target.url, self.target.group)
        if samples.duplicates and not state.duplicates:
            log.warning(
                "%s exports duplicate series, or those of the scrape report (up, scrape_*); one sample of "
                "each is sent",
                self.target.url,
            )
        if samples.ahead and not state.ahead:
            log.warning(
                "%s has %d samples with timestamps more than %g s in the future, which are dropped; set its "
                "clock or this machine's, or honorTimestamps: false",
                self.target.url,
                samples.ahead,
                self.target.settings.ahead_limit,
            )
        state.up, state.error, state.duration = not reason, error, seconds
        state.counts, state.body_bytes = samples.counts, size if size > 0 else None
        state.duplicates, state.ahead = samples.duplicates, samples.ahead
        state.kept_bytes = self._page_cache.kept_bytes + self._page_cache.labeler.kept_bytes

    def _route_scrape(
        self, entries: list[bytes], own_time: list[tuple[bytes, bytes, int]], milliseconds: int
    ) -> None:
        routing = self._routing
        if routing.receivers is None or routing.receivers:
            self._route_samples(entries, own_time, milliseconds, routing.receivers)
        labeler = self._page_cache.labeler
        merged = labeler.merged
        by_time: dict[int, list[bytes]] = {}
        for prefix, value, time in own_time:
            by_time.setdefault(time, []).append(prefix + value)
        for number, (_, receivers) in enumerate(routing.others):
            timed = [
                (entry[:-VALUE_BYTES], entry[-VALUE_BYTES:], time)
                for time, of_time in by_time.items()
                for entry in labeler.route_entries(number, of_time)
            ]
            self._route_samples(labeler.route_entries(number, entries), timed, milliseconds, receivers)
        self._count_merged(labeler.merged - merged)

    def _count_merged(self, merged: int) -> None:
        """Count samples of series that write relabeling makes equal to another series; log it once."""
        self.totals.duplicates += merged
        if merged and not self._merge_logged:
            log.warning(
                "write relabeling of a receiver makes one series of several of %s; one sample of each is "
                "sent; keep a label in which they differ, or drop the others",
                self.target.url,
            )
        self._merge_logged = bool(merged)

    def _route_samples(
        self,
        entries: Sequence[bytes],
        own_time: Sequence[tuple[bytes, bytes, int]],
        milliseconds: int,
        receivers: Collection[str] | None,
    ) -> None:
        """Pass samples to `accept`; those with an explicit timestamp go in a separate block.

        A receiver that rejects a sample as too old rejects its whole request.
        """
        try:
            tail = encode_timestamp(milliseconds)
        except ValueError:
            # Not 1971 to 2109: a machine without a hardware clock starts in 1970 until NTP sets the time.
            whole = [
                encode_timed_sample(entry[:-VALUE_BYTES], entry[-VALUE_BYTES:], milliseconds)
                for entry in entries
            ]
        else:
            whole = [tail.join(entries) + tail] if entries else []
        self._accept_samples(b"".join(whole), len(entries), (milliseconds,), receivers)
        times = [time for _, _, time in own_time]
        self._accept_samples(
            b"".join(encode_timed_sample(*sample) for sample in own_time), len(times), times, receivers
        )

    def _accept_samples(
        self, payload: bytes, samples: int, times: Sequence[int], receivers: Collection[str] | None
    ) -> None:
        if samples:
            self.totals.queued_samples += samples
            self._accept(Block(self._shard, payload, samples, min(times), max(times)), receivers)
