"""The PromQL queries of a report about a fleet.

They are instant queries over ranges of at most one day, each evaluated at the end of its day. A range
function holds the samples of one series at a time, so no query comes near `--query.max-samples` (50 million
by default), however long the period and however large the fleet. Other servers that accept PromQL may count
more samples, and time out on a month. Days are joined by each counter's last value, not by `increase()`,
which loses the increase between the last scrape of one day and the first scrape of the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median

from gpuledger.app.prometheus_api import Labels, PrometheusClient
from gpuledger.ledger.report.fleet.fleet import Fleet, scrape_delay
from gpuledger.ledger.report.fleet.fleet_report import fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import (
    ALLOCATED,
    HELD,
    RESIDENT,
    PeriodEnd,
    ScrapedRange,
    Target,
    target_of,
)
from gpuledger.ledger.report.grouping import LABEL
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.report.usage_report import Period, UsageReport
from gpuledger.model.errors import GpuledgerError, UsageError

DAY = 86_400.0
# Seconds: Prometheus's default lookback delta of instant vectors.
_LOOKBACK = 300.0
# Seconds of raw samples, of one series per target, from which the scrape interval is computed.
_SAMPLED = 600.0
_DEFAULT_INTERVAL = 60.0
# Seconds before now in which metrics are searched when the period has none.
_SEARCHED = 90 * DAY

DEVICES = "gpuledger_device_energy_joules_total"
ENERGY = "gpuledger_energy_joules_total"
_PENDING = "gpuledger_energy_pending_joules"
_SECONDS = {
    RESIDENT: "gpuledger_owner_resident_seconds_total",
    HELD: "gpuledger_owner_held_seconds_total",
    ALLOCATED: "gpuledger_owner_allocated_seconds_total",
}


class FleetQueries:
    """The queries of one report. `by` decides which metrics of pods are queried."""

    def __init__(self, client: PrometheusClient, match: str, by: str) -> None:
        self._client = client
        self._query = client.query_vector
        self._match = match.strip().strip("{}").strip().strip(",")
        self._by = by
        # The longest time between scrapes, in seconds.
        self.interval = _DEFAULT_INTERVAL

    def scrape_intervals(self, ends: list[float]) -> dict[Target, float]:
        """Seconds between scrapes by target, at the latest of these times that has samples."""
        for at in reversed(ends):
            ticks = f"{self._of('gpuledger_ticks_total')}[{_span(_SAMPLED)}]"
            series = self._client.query_sample_times(ticks, at)
            found: dict[Target, float] = {}
            for labels, times in series:
                gaps = [after - before for before, after in pairwise(times) if after > before]
                if gaps:
                    found[target_of(labels)] = median(gaps)
            if found:
                self.interval = max(found.values())
                return found
        return {}

    def has_data(self, begins: float, ends: float) -> bool:
        """Whether there are metrics of gpuledger in this period."""
        return bool(self._query(f"count(last_over_time({self._of(DEVICES)}[{_span(ends - begins)}]))", ends))

    def data_times(self, now: float) -> tuple[float, float] | None:
        """The hours, of the last _SEARCHED, with the first and the last metrics of gpuledger."""
        hourly = f"count({self._of(DEVICES)})[{_span(_SEARCHED)}:1h]"
        times = [time for _, times in self._client.query_sample_times(hourly, now) for time in times]
        return (min(times), max(times)) if times else None

    def is_simulated(self, ends: float) -> bool:
        """Whether any node is simulated or replays a recording."""
        selector = self._of("gpuledger_source_info", 'simulated="true"')
        return bool(self._query(f"count(last_over_time({selector}[{_span(DAY)}]))", ends))

    def query_range(self, begins: float, ends: float) -> ScrapedRange:
        """All data of one part of the period."""
        within = f"[{_span(ends - begins)}]"
        devices = self._rises(DEVICES, begins, ends)
        if devices["last"]:
            devices["still"] = self._query(self._of(DEVICES), ends)
        limit, power = (
            f"max by (uuid) (max_over_time({self._of(name)}{within}))"
            for name in ("gpuledger_device_power_limit_watts", "gpuledger_device_power_watts")
        )
        info = self._of("gpuledger_device_info", 'mig_instance=""')
        return ScrapedRange(
            begins,
            ends,
            devices,
            self._rises(ENERGY, begins, ends),
            counts=self._query(f"count_over_time({self._of(DEVICES)}{within})", ends),
            seconds={word: self._rises(name, begins, ends) for word, name in _SECONDS.items()},
            ratios=self._query(f"last_over_time({self._of('gpuledger_device_sm_ratio')}{within})", ends),
            watts=self._query(f"{limit} or {power}", ends),
            infos=self._query(f"last_over_time({info}{within})", ends),
            pods=self._pods(within, ends),
            pod_labels=self._pod_labels(within, ends),
        )

    def query_levels(self, begins: float, ends: float, *, seconds: bool = False) -> ScrapedRange:
        """The values of the energy counters, and of the time counters if `seconds`."""
        times = _SECONDS if seconds else {}
        counts = f"count_over_time({self._of(DEVICES)}[{_span(ends - begins)}])"
        return ScrapedRange(
            begins,
            ends,
            self._levels(DEVICES, begins, ends),
            self._levels(ENERGY, begins, ends),
            counts=self._query(counts, ends),
            seconds={word: self._levels(name, begins, ends) for word, name in times.items()},
        )

    def query_ending(self, begins: float, ends: float, until: float) -> PeriodEnd:
        """Data about both ends of the period, and about the time after it, as far as it has passed."""
        pending = f"max by (uuid) (last_over_time({self._of(_PENDING)}[{_span(_LOOKBACK)}]))"
        recent = _span(scrape_delay(self.interval))
        return PeriodEnd(
            [labels for labels, _ in self._query(self._of(ENERGY), ends)],
            self._query(pending, begins),
            self._query(pending, ends),
            self._query(f"max by (uuid) (rate({self._of(DEVICES)}[{recent}]))", ends),
            self._kept(begins, scrape_delay(self.interval)),
            self._kept(ends, until - ends),
        )

    def _kept(self, begins: float, seconds: float) -> list[tuple[Labels, float]]:
        """Pending energy that cannot have been booked within `seconds`: the minimum over that time."""
        if seconds < 1:
            return []
        least = f"min_over_time({self._of(_PENDING)}[{_span(seconds)}])"
        return self._query(f"max by (uuid) ({least})", begins + seconds)

    def _levels(self, name: str, begins: float, ends: float) -> dict[str, list[tuple[Labels, float]]]:
        within = f"({self._of(name)}[{_span(ends - begins)}])"
        last = self._query(f"last_over_time{within}", ends)
        if not last:
            return {"last": last, "least": []}
        least = self._query(f"min_over_time{within}", ends)
        return {"last": last, "least": least, "alive": self._query(self._of(name), begins)}

    def _rises(self, name: str, begins: float, ends: float) -> dict[str, list[tuple[Labels, float]]]:
        answers = self._levels(name, begins, ends)
        if not answers["last"]:
            return answers
        within = f"({self._of(name)}[{_span(ends - begins)}])"
        # 1.5 scrape intervals more, so that the range includes the last value before it.
        wider = f"({self._of(name)}[{_span(ends - begins + 1.5 * self.interval)}])"
        fell = f"resets{wider} > 0"
        answers["resets"] = self._query(fell, ends)
        if answers["resets"]:
            for word, function in (
                ("highest", f"max_over_time{within}"),
                ("increase", f"increase{within}"),
                ("samples", f"count_over_time{within}"),
                ("wider", f"increase{wider}"),
                ("wider_samples", f"count_over_time{wider}"),
            ):
                answers[word] = self._query(f"{function} and ({fell})", ends)
        return answers

    def _pods(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        if self._by != "job":
            return []
        return self._query(f"last_over_time({self._of('gpuledger_pod_info')}{within})", ends)

    def _pod_labels(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        if not self._by.startswith(LABEL):
            return []
        selector = self._of("gpuledger_pod_label_info", f"label={json.dumps(self._by.removeprefix(LABEL))}")
        return self._query(f"last_over_time({selector}{within})", ends)

    def _of(self, name: str, more: str = "") -> str:
        matchers = ",".join(part for part in (self._match, more) if part)
        return f"{name}{{{matchers}}}" if matchers else name


def report_from_prometheus(
    settings: FleetSettings,
    by: str,
    prices: Prices,
    between: tuple[int, int],
    now: float,
    progress: Callable[[str, float], None],
    warn: Callable[[str], None],
) -> UsageReport:
    """The report of a period in unix seconds, from Prometheus. Raises GpuledgerError with one line."""
    client = PrometheusClient(settings.url, settings.headers, settings.timeout)
    queries = FleetQueries(client, settings.match, by)
    begins, ends = float(between[0]), min(float(between[1]), now)
    if begins >= ends:
        raise UsageError("--since must be in the past")
    # Reject an unknown grouping before the first query.
    fleet_grouping(by, Fleet(Inventory(_DEFAULT_INTERVAL)))
    fleet = _query_fleet(queries, list(_parts(begins, ends)), now, client.url, progress)
    if queries.is_simulated(ends):
        warn(f"Prometheus at {client.url}: data of a simulator or a recording, not of hardware")
    first, last = fleet.first or begins, ends
    period = Period(*between, int(first), last)
    return fleet_report(fleet, fleet_grouping(by, fleet), prices, period, f"Prometheus at {client.url}")


def _query_fleet(
    queries: FleetQueries,
    parts: list[tuple[float, float]],
    now: float,
    url: str,
    progress: Callable[[str, float], None],
) -> Fleet:
    begins, ends = parts[0][0], parts[-1][1]
    intervals = queries.scrape_intervals([end for _, end in parts])
    if not intervals and not queries.has_data(begins, ends):
        raise GpuledgerError(
            f"Prometheus at {url} has no {DEVICES} in this period: {_known_times(queries, now)}"
        )
    later = scrape_delay(queries.interval)
    fleet = Fleet(Inventory(queries.interval, intervals))
    ahead = queries.query_levels(begins, min(begins + later, ends))
    fleet.begin(queries.query_levels(begins - DAY, begins, seconds=True), ahead)
    for number, part in enumerate(parts):
        progress("Prometheus", number / len(parts))
        fleet.add(queries.query_range(*part))
    until = min(ends + later, now)
    after = queries.query_levels(ends, until) if until - ends >= 1 else None
    fleet.end(after, queries.query_ending(begins, ends, until), complete=now >= ends + later)
    if not (fleet.observed or fleet.inventory.gpus or any(fleet.seconds.values())):
        raise GpuledgerError(
            f"Prometheus at {url} scrapes gpuledger, but no GPU was read in this period: run `gpuledger "
            "doctor` on the nodes"
        )
    return fleet


def _known_times(queries: FleetQueries, now: float) -> str:
    known = queries.data_times(now)
    if known is None:
        return (
            "let it scrape gpuledger's /metrics or /metrics/native, and check --since and --prometheus.match"
        )
    first, last = map(format_local_time, known)
    return f"in the last {_SEARCHED / DAY:.0f} days it has it from {first} to {last}, to the hour"


def _parts(begins: float, ends: float) -> Iterator[tuple[float, float]]:
    while begins < ends:
        part = min(begins + DAY, ends)
        yield begins, part
        begins = part


def _span(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)}ms"
