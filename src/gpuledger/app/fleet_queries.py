"""The PromQL queries of a report about a fleet.

They are instant queries over ranges of at most one day, each evaluated at the end of its day. A range
function holds the samples of one series at a time, so no query comes near `--query.max-samples` (50 million
by default), however long the period and however large the fleet. Other servers that accept PromQL may count
more samples, and time out on a month. Days are joined by each counter's last value, not by `increase()`,
which loses the increase between the last scrape of one day and the first scrape of the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuledger.app.counter_queries import (
    SAMPLED,
    plain_matchers,
    query_levels,
    query_rises,
    scrape_intervals,
    span,
    with_matchers,
)
from gpuledger.app.prometheus_api import Labels, PrometheusClient
from gpuledger.ledger.report.fleet.fleet import scrape_delay
from gpuledger.ledger.report.fleet.scraped import (
    ALLOCATED,
    HELD,
    RESIDENT,
    PeriodEnd,
    ScrapedRange,
    Target,
    node_of,
    target_of,
)
from gpuledger.ledger.report.grouping import OWNER_TAGS
from gpuledger.ledger.report.report_keys import LABEL
from gpuledger.model.workload import JOB_FACTS, POD_FACTS

DAY = 86_400.0
# Seconds: Prometheus's default lookback delta of instant vectors.
_LOOKBACK = 300.0
DEFAULT_INTERVAL = 60.0
# Seconds before now in which metrics are searched when the period has none.
SEARCHED = 90 * DAY

DEVICES = "gpuledger_device_energy_joules_total"
ENERGY = "gpuledger_energy_joules_total"
WATCHED = "gpuledger_gpu_watched_seconds_total"
GPU_TIME = "gpuledger_gpu_seconds_total"
_PENDING, _ZERO_HOLD = "gpuledger_energy_pending_joules", "gpuledger_zero_hold_seconds"
_TIME_PENDING = "gpuledger_gpu_seconds_pending"
_BOOKS, _JOB_INFO = "gpuledger_books_info", "gpuledger_job_info"
# Keys of reports that need facts of jobs, and of the controllers of pods.
_JOB_KEYS, _POD_KEYS = frozenset((OWNER_TAGS, *JOB_FACTS)), frozenset((OWNER_TAGS, "job", *POD_FACTS))
# GPU-seconds per second of a node that is faster than the clock.
_FASTER = 1.1
_SECONDS = {
    RESIDENT: "gpuledger_owner_resident_seconds_total",
    HELD: "gpuledger_owner_held_seconds_total",
    ALLOCATED: "gpuledger_owner_allocated_seconds_total",
}


class FleetQueries:
    """The queries of one report. Its `keys` decide which metrics of pods and jobs are queried."""

    def __init__(self, client: PrometheusClient, match: str, keys: Iterable[str]) -> None:
        self._client = client
        self._query = client.query_vector
        self._match = plain_matchers(match)
        self._keys = {key.strip() for key in keys}
        self._labels = sorted(key.removeprefix(LABEL) for key in self._keys if key.startswith(LABEL))
        # The longest time between scrapes, in seconds.
        self.interval = DEFAULT_INTERVAL

    def scrape_intervals(self, ends: list[float]) -> dict[Target, float]:
        """Seconds between scrapes by target, at the latest of these times that has samples."""
        for at in reversed(ends):
            ticks = self._of("gpuledger_ticks_total")
            found = scrape_intervals(self._client.query_sample_times, ticks, at)
            if found:
                self.interval = max(found.values())
                return found
        return {}

    def short_holds(self, intervals: Mapping[Target, float], at: float) -> dict[str, tuple[float, float]]:
        """Seconds for which new counters are 0, and between scrapes, of nodes where these can miss the 0."""
        holds = self._query(f"last_over_time({self._of(_ZERO_HOLD)}[{span(SAMPLED)}])", at)
        scraped = [(node_of(labels), hold, intervals.get(target_of(labels), 0.0)) for labels, hold in holds]
        # Scrapes are a little late, now and then.
        return {node: (hold, interval) for node, hold, interval in scraped if hold < interval - 1}

    def has_data(self, begins: float, ends: float) -> bool:
        """Whether there are metrics of gpuledger in this period."""
        found = (
            f"count(last_over_time({self._of(name)}[{span(ends - begins)}]))" for name in (DEVICES, WATCHED)
        )
        return bool(self._query(" or ".join(found), ends))

    def data_times(self, now: float) -> tuple[float, float] | None:
        """The hours, of the last SEARCHED, with the first and the last metrics of gpuledger."""
        hourly = f"count({self._of(DEVICES)})[{span(SEARCHED)}:1h]"
        times = [time for _, times in self._client.query_sample_times(hourly, now) for time in times]
        return (min(times), max(times)) if times else None

    def is_simulated(self, ends: float) -> bool:
        """Whether any node is simulated or replays a recording."""
        selector = self._of("gpuledger_source_info", 'simulated="true"')
        return bool(self._query(f"count(last_over_time({selector}[{span(DAY)}]))", ends))

    def query_range(self, begins: float, ends: float) -> ScrapedRange:
        """All data of one part of the period."""
        within = f"[{span(ends - begins)}]"
        devices, watched = (self._rises(name, begins, ends) for name in (DEVICES, WATCHED))
        for name, totals in ((DEVICES, devices), (WATCHED, watched)):
            if totals["last"]:
                totals["still"] = self._query(self._of(name), ends)
        limit, power = (
            f"max by (uuid) (max_over_time({self._of(name)}{within}))"
            for name in ("gpuledger_device_power_limit_watts", "gpuledger_device_power_watts")
        )
        return ScrapedRange(
            begins,
            ends,
            devices,
            self._rises(ENERGY, begins, ends),
            counts=self._counts(within, ends),
            seconds={word: self._rises(name, begins, ends) for word, name in _SECONDS.items()},
            ratios=self._query(f"last_over_time({self._of('gpuledger_device_sm_ratio')}{within})", ends),
            watts=self._query(f"{limit} or {power}", ends),
            infos=self._query(f"last_over_time({self._of('gpuledger_device_info')}{within})", ends),
            pods=self._pods(within, ends),
            pod_labels=self._pod_labels(within, ends),
            watched=watched,
            gpu_time=self._rises(GPU_TIME, begins, ends),
            jobs=self._jobs(within, ends),
            bases=self._query(f"count by (basis) (last_over_time({self._of(_BOOKS)}{within}))", ends),
        )

    def query_levels(self, begins: float, ends: float, *, seconds: bool = False) -> ScrapedRange:
        """The values of the counters that sum to those of their Gpus, and of the others if `seconds`."""
        times = _SECONDS if seconds else {}
        return ScrapedRange(
            begins,
            ends,
            self._levels(DEVICES, begins, ends),
            self._levels(ENERGY, begins, ends),
            counts=self._counts(f"[{span(ends - begins)}]", ends),
            seconds={word: self._levels(name, begins, ends) for word, name in times.items()},
            watched=self._levels(WATCHED, begins, ends),
            gpu_time=self._levels(GPU_TIME, begins, ends),
        )

    def query_energy_ending(self, begins: float, ends: float, until: float) -> PeriodEnd:
        """Energy at both ends of the period and in the time after it, as far as it has passed."""
        recent = span(scrape_delay(self.interval))
        rates = self._query(f"max by (uuid) (rate({self._of(DEVICES)}[{recent}]))", ends)
        return self._ending(ENERGY, _PENDING, rates, begins, ends, until)

    def query_time_ending(self, begins: float, ends: float, until: float) -> PeriodEnd:
        """GPU time at both ends of the period and in the time after it.

        Rates only of simulated nodes that are faster than the clock: a Gpu has one second in a second.
        """
        recent = span(scrape_delay(self.interval))
        rates = self._query(f"max by (uuid) (rate({self._of(WATCHED)}[{recent}])) > {_FASTER}", ends)
        return self._ending(GPU_TIME, _TIME_PENDING, rates, begins, ends, until)

    def bases_by_time(self, begins: float, ends: float) -> dict[str, tuple[float, float]]:
        """When each basis of GPU time was exported first and last in the period, to five minutes."""
        found: dict[str, list[float]] = {}
        for start, end in day_ranges(begins, ends):
            every = f"count by (basis) ({self._of(_BOOKS)})[{span(end - start)}:5m]"
            for labels, times in self._client.query_sample_times(every, end):
                found.setdefault(labels.get("basis", ""), []).extend(times)
        return {basis: (min(times), max(times)) for basis, times in sorted(found.items()) if times}

    def _ending(
        self,
        accounts: str,
        waiting: str,
        rates: list[tuple[Labels, float]],
        begins: float,
        ends: float,
        until: float,
    ) -> PeriodEnd:
        pending = f"max by (uuid) (last_over_time({self._of(waiting)}[{span(_LOOKBACK)}]))"
        return PeriodEnd(
            [labels for labels, _ in self._query(self._of(accounts), ends)],
            self._query(pending, begins),
            self._query(pending, ends),
            rates,
            self._kept(waiting, begins, scrape_delay(self.interval)),
            self._kept(waiting, ends, until - ends),
        )

    def _kept(self, waiting: str, begins: float, seconds: float) -> list[tuple[Labels, float]]:
        """What is pending and cannot have been booked within `seconds`: the minimum over that time."""
        if seconds < 1:
            return []
        least = f"min_over_time({self._of(waiting)}[{span(seconds)}])"
        return self._query(f"max by (uuid) ({least})", begins + seconds)

    def _counts(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        """The number of scrapes of each Gpu; older programs export no GPU time."""
        counts = (f"count_over_time({self._of(name)}{within})" for name in (WATCHED, DEVICES))
        return self._query(" or ".join(counts), ends)

    def _levels(self, name: str, begins: float, ends: float) -> dict[str, list[tuple[Labels, float]]]:
        return query_levels(self._query, self._of(name), begins, ends)

    def _rises(self, name: str, begins: float, ends: float) -> dict[str, list[tuple[Labels, float]]]:
        return query_rises(self._query, self._of(name), begins, ends, self.interval)

    def _jobs(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        if not _JOB_KEYS.intersection(self._keys):
            return []
        return self._query(f"last_over_time({self._of(_JOB_INFO)}{within})", ends)

    def _pods(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        if not _POD_KEYS.intersection(self._keys):
            return []
        return self._query(f"last_over_time({self._of('gpuledger_pod_info')}{within})", ends)

    def _pod_labels(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        found: list[tuple[Labels, float]] = []
        for label in self._labels:
            selector = self._of("gpuledger_pod_label_info", f"label={json.dumps(label)}")
            found += self._query(f"last_over_time({selector}{within})", ends)
        return found

    def _of(self, name: str, more: str = "") -> str:
        return with_matchers(name, self._match, more)


def day_ranges(begins: float, ends: float, cuts: Sequence[float] = ()) -> Iterator[tuple[float, float]]:
    """Ranges of at most a day; each ends at the cuts within it, such as changes of prices."""
    while begins < ends:
        part = min([begins + DAY, ends, *(cut for cut in cuts if cut > begins)])
        yield begins, part
        begins = part
