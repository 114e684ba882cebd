"""What a report asks of a fleet's Prometheus.

Instant queries over ranges of a day at most, each at its day's end. A function over a range holds the samples
of one series at a time, so that none comes near `--query.max-samples` (50 million by default), however long
the report's period and however large the fleet; servers that only speak Prometheus's language may count more
of them, and time out on a month. What joins the days is not `increase()`, which would lose what a counter
rose between the last scrape of one and the first scrape of the next, but each counter's last value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median

from gpuledger.app.prometheus_api import Labels, Prometheus
from gpuledger.ledger.report.fleet.fleet import Fleet, margin
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.report import fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.scraped import ALLOCATED, HELD, RESIDENT, Ending, Range, Target, target_of
from gpuledger.ledger.report.grouping import LABEL
from gpuledger.ledger.report.report import Period, Report
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.model.errors import GpuledgerError, UsageError

DAY = 86_400.0
# So long before a moment Prometheus looks for an instant vector's samples, too.
_LOOKBACK = 300.0
# For so long the samples of one series per target are looked at one by one, to see how far apart they are.
_SAMPLED = 600.0
_DEFAULT_INTERVAL = 60.0

DEVICES = "gpuledger_device_energy_joules_total"
ENERGY = "gpuledger_energy_joules_total"
_PENDING = "gpuledger_energy_pending_joules"
_SECONDS = {
    RESIDENT: "gpuledger_owner_resident_seconds_total",
    HELD: "gpuledger_owner_held_seconds_total",
    ALLOCATED: "gpuledger_owner_allocated_seconds_total",
}


class Asker:
    """Queries of one report. `by` decides what is asked of pods."""

    def __init__(self, client: Prometheus, match: str, by: str) -> None:
        self._client = client
        self._match = match.strip().strip("{}").strip().strip(",")
        self._by = by
        self._interval = _DEFAULT_INTERVAL

    def intervals(self, ends: list[float]) -> dict[Target, float]:
        """Seconds between scrapes by target, at the last of these moments at which there are any."""
        for at in reversed(ends):
            told = self._client.matrix(f"{self._of('gpuledger_ticks_total')}[{_span(_SAMPLED)}]", at)
            found: dict[Target, float] = {}
            for labels, times in told:
                gaps = [after - before for before, after in pairwise(times) if after > before]
                if gaps:
                    found[target_of(labels)] = median(gaps)
            if found:
                self._interval = max(found.values())
                return found
        return {}

    @property
    def interval(self) -> float:
        """The longest time between scrapes, in seconds."""
        return self._interval

    def has_any(self, begins: float, ends: float) -> bool:
        """Whether there is anything of gpuledger's in this time."""
        return bool(
            self._client.vector(f"count(last_over_time({self._of(DEVICES)}[{_span(ends - begins)}]))", ends)
        )

    def is_made_up(self, ends: float) -> bool:
        """Whether a node among them is simulated or replayed."""
        selector = self._of("gpuledger_source_info", 'simulated="true"')
        return bool(self._client.vector(f"count(last_over_time({selector}[{_span(DAY)}]))", ends))

    def whole(self, begins: float, ends: float) -> Range:
        """Everything of a part of the period."""
        ask, within = self._client.vector, f"[{_span(ends - begins)}]"
        devices = self._rises(DEVICES, begins, ends)
        if devices["last"]:
            devices["still"] = ask(self._of(DEVICES), ends)
        limit, power = (
            f"max by (uuid) (max_over_time({self._of(name)}{within}))"
            for name in ("gpuledger_device_power_limit_watts", "gpuledger_device_power_watts")
        )
        info = self._of("gpuledger_device_info", 'mig_instance=""')
        return Range(
            begins,
            ends,
            devices,
            self._rises(ENERGY, begins, ends),
            counts=ask(f"count_over_time({self._of(DEVICES)}{within})", ends),
            seconds={word: self._rises(name, begins, ends) for word, name in _SECONDS.items()},
            ratios=ask(f"last_over_time({self._of('gpuledger_device_sm_ratio')}{within})", ends),
            watts=ask(f"{limit} or {power}", ends),
            infos=ask(f"last_over_time({info}{within})", ends),
            pods=self._pods(within, ends),
            pod_labels=self._pod_labels(within, ends),
        )

    def levels(self, begins: float, ends: float, *, seconds: bool = False) -> Range:
        """What counters stood at; those of time only if wanted."""
        times = _SECONDS if seconds else {}
        counts = f"count_over_time({self._of(DEVICES)}[{_span(ends - begins)}])"
        return Range(
            begins,
            ends,
            self._levels(DEVICES, begins, ends),
            self._levels(ENERGY, begins, ends),
            counts=self._client.vector(counts, ends),
            seconds={word: self._levels(name, begins, ends) for word, name in times.items()},
        )

    def ending(self, begins: float, ends: float, until: float) -> Ending:
        """What is known of both ends of the period, and of the time after it that there is already."""
        pending = f"max by (uuid) (last_over_time({self._of(_PENDING)}[{_span(_LOOKBACK)}]))"
        recent = _span(margin(self._interval))
        return Ending(
            [labels for labels, _ in self._client.vector(self._of(ENERGY), ends)],
            self._client.vector(pending, begins),
            self._client.vector(pending, ends),
            self._client.vector(f"max by (uuid) (rate({self._of(DEVICES)}[{recent}]))", ends),
            self._kept(begins, margin(self._interval)),
            self._kept(ends, until - ends),
        )

    def _kept(self, begins: float, seconds: float) -> list[tuple[Labels, float]]:
        """Pending energy that cannot have been told within so many seconds: the least that there was."""
        if seconds < 1:
            return []
        least = f"min_over_time({self._of(_PENDING)}[{_span(seconds)}])"
        return self._client.vector(f"max by (uuid) ({least})", begins + seconds)

    def _levels(self, name: str, begins: float, ends: float) -> dict[str, list[tuple[Labels, float]]]:
        within = f"({self._of(name)}[{_span(ends - begins)}])"
        last = self._client.vector(f"last_over_time{within}", ends)
        if not last:
            return {"last": last, "least": []}
        least = self._client.vector(f"min_over_time{within}", ends)
        return {"last": last, "least": least, "alive": self._client.vector(self._of(name), begins)}

    def _rises(self, name: str, begins: float, ends: float) -> dict[str, list[tuple[Labels, float]]]:
        answers = self._levels(name, begins, ends)
        if not answers["last"]:
            return answers
        within = f"({self._of(name)}[{_span(ends - begins)}])"
        # Half a scrape more than one, so that the last value before is certainly in it.
        wider = f"({self._of(name)}[{_span(ends - begins + 1.5 * self._interval)}])"
        fell = f"resets{wider} > 0"
        answers["resets"] = self._client.vector(fell, ends)
        if answers["resets"]:
            for word, asked in (
                ("highest", f"max_over_time{within}"),
                ("increase", f"increase{within}"),
                ("samples", f"count_over_time{within}"),
                ("wider", f"increase{wider}"),
                ("wider_samples", f"count_over_time{wider}"),
            ):
                answers[word] = self._client.vector(f"{asked} and ({fell})", ends)
        return answers

    def _pods(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        if self._by != "job":
            return []
        return self._client.vector(f"last_over_time({self._of('gpuledger_pod_info')}{within})", ends)

    def _pod_labels(self, within: str, ends: float) -> list[tuple[Labels, float]]:
        if not self._by.startswith(LABEL):
            return []
        selector = self._of("gpuledger_pod_label_info", f"label={json.dumps(self._by.removeprefix(LABEL))}")
        return self._client.vector(f"last_over_time({selector}{within})", ends)

    def _of(self, name: str, more: str = "") -> str:
        matchers = ",".join(part for part in (self._match, more) if part)
        return f"{name}{{{matchers}}}" if matchers else name


def from_prometheus(
    settings: FleetSettings,
    by: str,
    prices: Prices,
    between: tuple[int, int],
    now: float,
    progress: Callable[[str, float], None],
    warn: Callable[[str], None],
) -> Report:
    """The report of these unix seconds. Raises GpuledgerError in one line."""
    client = Prometheus(settings.url, settings.headers, settings.timeout)
    asker = Asker(client, settings.match, by)
    begins, ends = float(between[0]), min(float(between[1]), now)
    if begins >= ends:
        raise UsageError("--since is not in the past")
    # A grouping that there is not is an error before anything is asked.
    fleet_grouping(by, Fleet(Inventory(_DEFAULT_INTERVAL)))
    fleet = _gathered(asker, list(_parts(begins, ends)), now, client.url, progress)
    if asker.is_made_up(ends):
        warn(f"Prometheus at {client.url}: of a simulator or a recording, not of hardware")
    first, last = fleet.first or begins, ends
    period = Period(*between, int(first), last)
    return fleet_report(fleet, fleet_grouping(by, fleet), prices, period, f"Prometheus at {client.url}")


def _gathered(
    asker: Asker,
    parts: list[tuple[float, float]],
    now: float,
    url: str,
    progress: Callable[[str, float], None],
) -> Fleet:
    begins, ends = parts[0][0], parts[-1][1]
    intervals = asker.intervals([end for _, end in parts])
    if not intervals and not asker.has_any(begins, ends):
        raise GpuledgerError(
            f"Prometheus at {url} has no {DEVICES} of this time: let it scrape gpuledger's /metrics or "
            "/metrics/native, and look at --since and --prometheus.match"
        )
    later = margin(asker.interval)
    fleet = Fleet(Inventory(asker.interval, intervals))
    ahead = asker.levels(begins, min(begins + later, ends))
    fleet.begin(asker.levels(begins - DAY, begins, seconds=True), ahead)
    for number, part in enumerate(parts):
        progress("Prometheus", number / len(parts))
        fleet.add(asker.whole(*part))
    until = min(ends + later, now)
    after = asker.levels(ends, until) if until - ends >= 1 else None
    fleet.end(after, asker.ending(begins, ends, until), complete=now >= ends + later)
    return fleet


def _parts(begins: float, ends: float) -> Iterator[tuple[float, float]]:
    while begins < ends:
        part = min(begins + DAY, ends)
        yield begins, part
        begins = part


def _span(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)}ms"
