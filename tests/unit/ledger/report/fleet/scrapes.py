"""A Prometheus that scraped the time counters of a simulated node: samples, and its answers over ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from fractions import Fraction
from itertools import pairwise

from gpuledger.ledger.report.fleet.account_rises import GPU_SECONDS
from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.fleet_report import FleetScope, fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import GPU_TIME, Answers, PeriodEnd, ScrapedRange, Vector
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import Period, UsageReport
from gpuledger.ledger.time_accounts import TimeAccounts
from gpuledger.model.session import TimeState
from time_helpers import UNIX, Books, Truth

MICRO, QUARTER = 1_000_000, 900
# Prometheus's default lookback delta.
LOOKBACK = 300.0
TARGET = {"job": "gpuledger", "instance": "a:9400", "node": "a"}
Series = tuple[tuple[str, str], ...]


@dataclass
class Samples:
    """Samples of one family: times and values by labels."""

    times: dict[Series, list[float]] = field(default_factory=lambda: defaultdict(list))
    values: dict[Series, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, labels: Mapping[str, str], at: float, value: float) -> None:
        series = tuple(sorted({**TARGET, **labels}.items()))
        self.times[series].append(at)
        self.values[series].append(value)

    def within(self, begins: float, ends: float) -> Iterable[tuple[Series, list[float], list[float]]]:
        """The samples of each series that has some, both ends included as in Prometheus 2."""
        for series, times in self.times.items():
            first, last = bisect_left(times, begins), bisect_right(times, ends)
            if first < last:
                yield series, times[first:last], self.values[series][first:last]

    def instant(self, at: float, scraped: Sequence[float]) -> Vector:
        """The series that exist at a time: a series that is missing in the newest scrape is stale."""
        newest = max((time for time in scraped if time <= at), default=0.0)
        return [
            (dict(series), values[-1])
            for series, times, values in self.within(at - LOOKBACK, at)
            if times[-1] >= newest
        ]

    def rises(self, begins: float, ends: float, interval: float, scraped: Sequence[float]) -> Answers:
        """The answers that `FleetQueries` would get for a range."""
        answers: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for series, times, values in self.within(begins, ends):
            labels = dict(series)
            answers["last"].append((labels, values[-1]))
            answers["least"].append((labels, min(values)))
            _, wide_times, wide_values = next(
                found for found in self.within(begins - 1.5 * interval, ends) if found[0] == series
            )
            fell = sum(after < before for before, after in pairwise(wide_values))
            if fell:
                answers["resets"].append((labels, fell))
                answers["highest"].append((labels, max(values)))
                answers["samples"].append((labels, len(values)))
                answers["wider_samples"].append((labels, len(wide_values)))
                answers["increase"].append((labels, _increase(times, values, begins, ends)))
                wide = _increase(wide_times, wide_values, begins - 1.5 * interval, ends)
                answers["wider"].append((labels, wide))
        return {
            "last": answers["last"],
            "least": answers["least"],
            **answers,
            "alive": self.instant(begins, scraped),
            "still": self.instant(ends, scraped),
        }


def _increase(times: Sequence[float], values: Sequence[float], begins: float, ends: float) -> float:
    """Prometheus's increase(), extrapolated to the ends of the range."""
    if len(times) < 2:
        return 0.0
    gained = values[-1] - values[0]
    gained += sum(before for before, after in pairwise(values) if after < before)
    sampled = times[-1] - times[0]
    mean = sampled / (len(times) - 1)
    before, after = times[0] - begins, ends - times[-1]
    if gained > 0 and values[0] >= 0:
        before = min(before, sampled * values[0] / gained)
    length = sampled + sum(gap if gap < 1.1 * mean else mean / 2 for gap in (before, after))
    return gained * length / sampled


@dataclass
class ScrapedNode:
    """One node's time books, and a Prometheus that scraped them every `interval` seconds.

    `owned` are the true microseconds of each span by its begin and the last name of its owner.
    """

    interval: float
    phase: float = 0.0
    basis: str = "allocation"
    books: Books = field(default_factory=Books)
    counters: Samples = field(default_factory=Samples)
    watched: Samples = field(default_factory=Samples)
    pending: Samples = field(default_factory=Samples)
    scraped: list[float] = field(default_factory=list)

    def play(self, truth: Truth, ticks: Iterable[float]) -> None:
        """Run the program over a truth with these ticks."""
        hold = max(30.0, self.interval + 10.0)
        accounts, since, due = TimeAccounts(hold, 300.0, self.basis), -1.0, self.phase
        watched_before: dict[str, int] = {}
        for at in ticks:
            if any(begins < at < ends for begins, ends in truth.stopped):
                due = at
                continue
            if any(since <= begins < at for begins, _ in truth.stopped if since >= 0):
                self.books.restart()
                accounts = TimeAccounts(hold, 300.0, self.basis)
                watched_before = dict(self.books.ledger.watched)
            accounts.post(self.books.post(truth.snapshot(at, since)), at)
            since = at
            watched = {
                uuid: amount - watched_before.get(uuid, 0)
                for uuid, amount in self.books.ledger.watched.items()
            }
            if at >= due:
                due = max(due + self.interval, at + self.interval / 2)
                self._scrape(accounts.state(watched), UNIX + at)

    def _scrape(self, state: TimeState, unix: float) -> None:
        self.scraped.append(unix)
        for row in state.rows:
            labels = {name: value for name, value in zip(GPU_TIME, row.labels, strict=True) if value}
            self.counters.add(labels, unix, row.microseconds / MICRO)
        for family, amounts in ((self.watched, state.watched), (self.pending, state.pending)):
            for uuid, amount in amounts.items():
                family.add({"uuid": uuid}, unix, amount / MICRO)

    def range(self, begins: float, ends: float) -> ScrapedRange:
        """The answers for a range."""
        given = (begins, ends, self.interval, self.scraped)
        counts = [
            ({**dict(series)}, float(len(times))) for series, times, _ in self.watched.within(begins, ends)
        ]
        nothing: Answers = {"last": [], "least": []}
        return ScrapedRange(
            begins,
            ends,
            nothing,
            nothing,
            counts=counts,
            watched=self.watched.rises(*given),
            gpu_time=self.counters.rises(*given),
        )

    def ending(self, begins: float, ends: float, until: float) -> PeriodEnd:
        """What is pending at the ends of a range, and in the time after them."""

        def last(at: float) -> Vector:
            return [
                (dict(series), values[-1]) for series, _, values in self.pending.within(at - LOOKBACK, at)
            ]

        def kept(at: float, seconds: float) -> Vector:
            return [
                (dict(series), min(values)) for series, _, values in self.pending.within(at, at + seconds)
            ]

        delay = GPU_SECONDS.scrape_delay(self.interval)
        alive = [labels for labels, _ in self.counters.instant(ends, self.scraped)]
        return PeriodEnd(alive, last(begins), last(ends), (), kept(begins, delay), kept(ends, until - ends))


def scraped_report(
    node: ScrapedNode, begins: float, ends: float, now: float, by: str = "pod", prices: Prices | None = None
) -> UsageReport:
    """The report of a range, as `--prometheus` makes it."""
    interval, day = node.interval, 86_400.0
    later = GPU_SECONDS.scrape_delay(interval)
    inventory = Inventory(interval)
    fleet = Fleet(inventory)
    fleet.begin(node.range(begins - day, begins), node.range(begins, min(begins + later, ends)))
    fleet.add(node.range(begins, ends))
    until = min(ends + later, now)
    after = node.range(ends, until) if until - ends >= 1 else None
    ending = node.ending(begins, ends, until)
    fleet.end(after, type(ending)(), ending, complete=now >= ends + later)
    period = Period(int(begins), int(ends), int(begins), ends)
    parts = [ReportPart(int(begins // QUARTER), int(ends // QUARTER), "")]
    scope = FleetScope(
        fleet_grouping(by, inventory),
        prices or Prices(basis=node.basis),
        UTC,
        period,
        parts,
        "Prometheus",
    )
    return fleet_report([fleet], scope)


def booked(books: Books, basis: str, begins: float, ends: float) -> dict[str, Fraction]:
    """Microseconds that the books have between two cuts, by the last name of the owner, or by own account."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for span in books.spans.values():
        if begins * MICRO <= span.begins < ends * MICRO:
            for account, amount in span.shares(basis).items():
                own = "idle" if account.account == "uncut" else account.account
                found[account.owner[-1] if account.owner else own] += amount
    return dict(found)
