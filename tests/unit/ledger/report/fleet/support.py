"""A fleet's Prometheus answers, range by range, and the report built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC

from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.fleet_report import FleetScope, fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import PeriodEnd, ScrapedRange, Vector
from gpuledger.ledger.report.ranges import ReportPart
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import Period, ReportLine, UsageReport

HOUR, DAY = 3600.0, 86_400.0
BEGIN = 1_700_006_400.0
Labels = Mapping[str, str]


def scraped(node: str = "a", **labels: str) -> dict[str, str]:
    return {"job": "gpuledger", "instance": f"{node}:9400", "node": node, **labels}


def device(uuid: str, node: str = "a") -> dict[str, str]:
    return scraped(node, uuid=uuid)


def pod(
    uuid: str, name: str, node: str = "a", method: str = "measured", namespace: str = "ml"
) -> dict[str, str]:
    owner = {"owner_kind": "pod", "namespace": namespace, "pod": name, "container": "main", "user": "root"}
    return scraped(node, uuid=uuid, account="process", method=method, **owner)


def own(uuid: str, account: str = "idle", node: str = "a") -> dict[str, str]:
    return scraped(node, uuid=uuid, account=account, method="measured")


def owner(uuid: str, name: str, node: str = "a", cut: str = "") -> dict[str, str]:
    found = {**pod(uuid, name, node), "mig_instance": cut}
    return {
        name: value for name, value in found.items() if name not in ("account", "method", "user") and value
    }


CounterLevels = list[tuple[Labels, float, float]]


def levels(counters: CounterLevels) -> dict[str, Vector]:
    """Each series with its first and last value; a series that does not begin at 0 existed before."""
    return {
        "alive": [(labels, least) for labels, least, _ in counters if least],
        "last": [(labels, last) for labels, _, last in counters],
        "least": [(labels, least) for labels, least, _ in counters],
    }


def part(
    begins: float,
    ends: float,
    devices: CounterLevels = [],  # noqa: B006  (never changed)
    energy: CounterLevels = [],  # noqa: B006
    seconds: Mapping[str, CounterLevels] | None = None,
    **more: Vector,
) -> ScrapedRange:
    counts = more.pop("counts", [(labels, (ends - begins) / 15) for labels, _, _ in devices])
    times = {word: levels(counters) for word, counters in (seconds or {}).items()}
    return ScrapedRange(begins, ends, levels(devices), levels(energy), counts, times, **more)


def with_time(answers: ScrapedRange, watched: CounterLevels, accounts: CounterLevels) -> ScrapedRange:
    """The same range of nodes that export GPU time."""
    return replace(answers, watched=levels(watched), gpu_time=levels(accounts))


def spent(uuid: str, name: str, node: str = "a", cut: str = "", namespace: str = "ml") -> dict[str, str]:
    """The labels of GPU time of a pod."""
    labels = {**pod(uuid, name, node, namespace=namespace), "account": "owner", "mig_instance": cut}
    return {label: value for label, value in labels.items() if label not in ("method", "user") and value}


def own_time(uuid: str, account: str = "idle", node: str = "a") -> dict[str, str]:
    return scraped(node, uuid=uuid, account=account)


class ScrapedFleet:
    """A fleet scraped every 15 s, with queries for whole days."""

    def __init__(self, before: ScrapedRange | None = None, ahead: ScrapedRange | None = None) -> None:
        self.fleet = Fleet(Inventory(15.0))
        self.now = BEGIN
        self.fleet.begin(before or part(BEGIN - DAY, BEGIN), ahead or part(BEGIN, BEGIN + 90))

    def day(
        self,
        devices: CounterLevels,
        energy: CounterLevels,
        seconds: Mapping[str, CounterLevels] | None = None,
        **more: Vector,
    ) -> None:
        self.add(part(self.now, self.now + DAY, devices, energy, seconds, **more))

    def add(self, answers: ScrapedRange) -> None:
        """Add the answers for the next day."""
        self.fleet.add(answers)
        self.now = answers.ends

    def report(
        self,
        by: str = "pod",
        *,
        after: ScrapedRange | None = None,
        ending: PeriodEnd = PeriodEnd(),  # noqa: B008  (never changed)
        complete: bool = True,
        prices: Prices = Prices(),  # noqa: B008
    ) -> UsageReport:
        self.fleet.end(after, ending, complete=complete)
        period = Period(int(BEGIN), int(self.now), int(BEGIN), self.now)
        grouping = fleet_grouping(by, self.fleet.inventory)
        parts = [ReportPart(int(BEGIN // 900), int(self.now // 900), "")]
        return fleet_report(
            [self.fleet], FleetScope(grouping, prices, UTC, period, parts, "Prometheus at http://p")
        )


def rows(found: UsageReport) -> dict[tuple[str, ...], ReportLine]:
    """The rows by key; own accounts by their name."""
    own = {(line.account,): line for line in found.gpu_accounts}
    return {line.key: line for line in found.lines} | own


def watching(*uuids: str) -> ScrapedRange:
    """The day before, in which these Gpus exported 1000 J, all of it idle."""
    devices: CounterLevels = [(device(uuid), 0.0, 1000.0) for uuid in uuids]
    return part(BEGIN - DAY, BEGIN, devices, [(own(uuid), 0.0, 1000.0) for uuid in uuids])


def one_day(ahead: ScrapedRange | None = None) -> ScrapedFleet:
    books = ScrapedFleet(watching("GPU-0", "GPU-1"), ahead)
    devices: CounterLevels = [(device("GPU-0"), 1000, 1500), (device("GPU-1"), 1000, 1200)]
    energy: CounterLevels = [(pod("GPU-0", "t"), 0, 500), (pod("GPU-1", "u"), 0, 200)]
    books.day(devices, energy, watts=[({"uuid": "GPU-0"}, 700.0), ({"uuid": "GPU-1"}, 700.0)])
    return books
