"""What a fleet's Prometheus answers, range by range, and the report that comes of it."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.report import fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.scraped import Ending, Range, Vector
from gpuledger.ledger.report.report import Line, Period, Report
from gpuledger.ledger.report.settings import Prices

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


Told = list[tuple[Labels, float, float]]


def levels(told: Told) -> dict[str, Vector]:
    """Each series with its least and its last value; what does not begin at 0 was there before."""
    return {
        "alive": [(labels, least) for labels, least, _ in told if least],
        "last": [(labels, last) for labels, _, last in told],
        "least": [(labels, least) for labels, least, _ in told],
    }


def part(
    begins: float,
    ends: float,
    devices: Told = [],  # noqa: B006  (never changed)
    energy: Told = [],  # noqa: B006
    seconds: Mapping[str, Told] | None = None,
    **more: Vector,
) -> Range:
    counts = more.pop("counts", [(labels, (ends - begins) / 15) for labels, _, _ in devices])
    times = {word: levels(told) for word, told in (seconds or {}).items()}
    return Range(begins, ends, levels(devices), levels(energy), counts, times, **more)


class Books:
    """A fleet whose Prometheus scraped it every 15 s, asked about whole days."""

    def __init__(self, before: Range | None = None, ahead: Range | None = None) -> None:
        self.fleet = Fleet(Inventory(15.0))
        self.now = BEGIN
        self.fleet.begin(before or part(BEGIN - DAY, BEGIN), ahead or part(BEGIN, BEGIN + 90))

    def day(
        self, devices: Told, energy: Told, seconds: Mapping[str, Told] | None = None, **more: Vector
    ) -> None:
        self.fleet.add(part(self.now, self.now + DAY, devices, energy, seconds, **more))
        self.now += DAY

    def report(
        self,
        by: str = "pod",
        *,
        after: Range | None = None,
        ending: Ending = Ending(),  # noqa: B008  (never changed)
        complete: bool = True,
        prices: Prices = Prices(),  # noqa: B008
    ) -> Report:
        self.fleet.end(after, ending, complete=complete)
        period = Period(int(BEGIN), int(self.now), int(BEGIN), self.now)
        return fleet_report(
            self.fleet, fleet_grouping(by, self.fleet), prices, period, "Prometheus at http://p"
        )


def rows(found: Report) -> dict[tuple[str, ...], Line]:
    return {line.key: line for line in (*found.lines, *found.own)}


def watching(*uuids: str) -> Range:
    """The day before, in which these Gpus had told 1000 J, all of it idle."""
    devices: Told = [(device(uuid), 0.0, 1000.0) for uuid in uuids]
    return part(BEGIN - DAY, BEGIN, devices, [(own(uuid), 0.0, 1000.0) for uuid in uuids])


def one_day(ahead: Range | None = None) -> Books:
    books = Books(watching("GPU-0", "GPU-1"), ahead)
    devices: Told = [(device("GPU-0"), 1000, 1500), (device("GPU-1"), 1000, 1200)]
    energy: Told = [(pod("GPU-0", "t"), 0, 500), (pod("GPU-1", "u"), 0, 200)]
    books.day(devices, energy, watts=[({"uuid": "GPU-0"}, 700.0), ({"uuid": "GPU-1"}, 700.0)])
    return books
