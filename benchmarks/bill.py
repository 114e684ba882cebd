"""Repeats the wrong bills of issue 25, and checks each amount against one that is computed here.

    python benchmarks/bill.py [--write docs/reports.md]

Exit status 1 if an amount is wrong. The ledger, its file, the reports and the formats are the program's; the
node is simulated, with a tick per minute. The column 851e4ab has what that commit billed for the same ticks,
measured once; the two figures with * are the issue's, of another node. Amounts are exact fractions, except
those of written rows, which have ten decimals.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from builders import FakeClock, gpu  # noqa: E402  (after the path is set)
from gpuledger.ledger.report.focus import as_focus  # noqa: E402
from gpuledger.ledger.report.formats import as_csv, as_json  # noqa: E402
from gpuledger.ledger.report.money import round_decimal  # noqa: E402
from gpuledger.ledger.report.ranges import parse_range  # noqa: E402
from gpuledger.ledger.report.report_table import report_table  # noqa: E402
from gpuledger.ledger.report.settings import Prices  # noqa: E402
from gpuledger.ledger.report.usage_report import UsageReport  # noqa: E402
from gpuledger.ledger.store.history import History  # noqa: E402
from gpuledger.ledger.store.report_query import build_report  # noqa: E402
from gpuledger.ledger.store.retention import RetentionLimits  # noqa: E402
from gpuledger.ledger.store.watched_range import resolve_watched_range  # noqa: E402
from gpuledger.model import quantities as q  # noqa: E402
from gpuledger.model.workload import Workload  # noqa: E402
from ledger_helpers import Run  # noqa: E402
from money_helpers import costs, prices  # noqa: E402
from time_helpers import UNIX, Has, Runs, Truth  # noqa: E402
from unit.ledger.report.fleet.scrapes import ScrapedNode, scraped_report  # noqa: E402

MARKS = ("<!-- bill: begin -->", "<!-- bill: end -->")
HOUR, DAY, WEEK = 3600, 86_400, 7 * 86_400
H100, A100 = "NVIDIA H100", "NVIDIA A100"
HALF = Fraction(1, 2)
ONE = prices(gpu_hour=1)
BOTH_MODELS = [{"gpu": "*H100*", "price": "2.40"}, {"gpu": "*A100*", "price": "1.13"}]
# Decimals of money in a format; the exact total has no end.
DIGITS = {"rows of JSON": 10, "rows of CSV": 10, "rows of FOCUS": 10, "total of the table": 2}
KOLKATA = ZoneInfo("Asia/Kolkata")
# What 851e4ab billed for `hour_of_a_node` by each key.
BEFORE = {
    "gpu": "1.48",
    "user": "1.48",
    "command": "2.48",
    "namespace": "2.48",
    "pod": "4.48",
    "owner": "4.48",
}
KEYS = (*BEFORE, "model", "container", "label:team", "namespace,model", "user,command,gpu")
# Watts of a Gpu by seconds since UNIX.
Watts = Callable[[str, int], int]


class Row(NamedTuple):
    """One measurement. `now` is right if it equals `right`, or is within `bound` of it."""

    what: str
    before: str
    now: Fraction
    right: Fraction
    bound: Fraction = Fraction(0)

    @property
    def is_right(self) -> bool:
        """Whether the amount is the right one."""
        return abs(self.now - self.right) <= self.bound

    def cells(self) -> str:
        """Return the row of the table."""
        error = f" ± {digits(self.bound)}" if self.bound else ""
        verdict = "right" if self.is_right else "WRONG"
        return (
            f"| {self.what} | {self.before} | {digits(self.now)}{error} | {digits(self.right)} | {verdict} |"
        )


def digits(amount: Fraction) -> str:
    """Return all digits of an amount, at most ten after the point, at least two."""
    text = f"{round_decimal(amount, 10):f}".rstrip("0")
    whole, _, rest = text.partition(".")
    return f"{whole}.{rest:0<2}"


def pod(name: str, namespace: str = "nlp", user: str = "mira") -> Workload:
    """Return a pod as an owner."""
    return Workload("pod", namespace, name, "main", pod_uid=f"uid-{name}", user=user)


class Bill:
    """A ledger file, written by the program's Ledger with a tick per minute, and reports of it."""

    def __init__(
        self,
        folder: Path,
        truths: Sequence[Truth],
        ticks: range,
        watts: Watts | None = None,
        zone: tzinfo = UTC,
    ) -> None:
        self.zone = zone
        folder.mkdir()
        run = Run(folder, boot="boot", clock=FakeClock(UNIX + ticks[0]), limits=RetentionLimits(zone=zone))
        # Millijoules, as the driver counts them.
        counters = dict.fromkeys((one.gpu.uuid for one in truths), 0)
        since = ticks[0] - 1
        for at in ticks:
            run.clock.now_unix, run.clock.now_elapsed = UNIX + at, float(at)
            seen = [one.snapshot(at, since) for one in truths]
            readings = [reading for snapshot in seen for reading in snapshot.readings]
            if watts is not None:
                for uuid in counters:
                    counters[uuid] += watts(uuid, since) * (at - since) * 1000
                readings = [
                    replace(one, values={**one.values, q.ENERGY: counters[one.device.uuid]})
                    for one in readings
                ]
            allocations = tuple(each for snapshot in seen for each in snapshot.allocations)
            run.ledger.post(replace(seen[0], readings=tuple(readings), allocations=allocations))
            since = at
        run.store.close()
        self.file = run.store.file

    def report(self, by: str, given: Prices, period: str = "", since: str = "2020-01-01") -> UsageReport:
        """Return the report that `gpuledger report` prints with these flags."""
        with closing(History(self.file)) as history:
            requested = parse_range(since, "now", period, history.last, self.zone)
            return build_report(history, by, given, resolve_watched_range(history, requested))

    def total(self, by: str, given: Prices, period: str = "") -> Fraction:
        """Return the exact cost."""
        return self.report(by, given, period).total.cost or Fraction(0)


def hour_of_a_node(folder: Path) -> Iterator[Row]:
    """Yield totals of one ledger by each key, a shared and a reserved GPU, idle time, and two models.

    In an hour, four pods share GPU 0, a pod reserves GPU 1 and runs nothing, and dan is on GPU 2 for half.
    """
    four = [pod(f"p-{n}", "vision" if n < 2 else "nlp", "mira" if n % 2 else "jo") for n in range(4)]
    shared = [Runs(who, name="torchrun" if who.pod == "p-3" else "python3") for who in four]
    truths = [
        Truth(gpu(0, name=H100), runs=shared),
        Truth(gpu(1, name=H100), [Has(pod("reserved"), Fraction(1))]),
        Truth(gpu(2, name=A100), runs=[Runs(Workload("user", user="dan"), ends=HOUR / 2)]),
    ]
    bill = Bill(folder, truths, range(0, HOUR + 1, 60))
    for by, before in BEFORE.items():
        yield Row(f"three GPUs for an hour at 1, by {by}", before, bill.total(by, ONE), Fraction(3))
    found = costs(bill.report("pod", ONE))
    paid = [found[who.pod] for who in four]
    yield Row("four pods share a GPU for an hour: all four", "4.00", sum(paid, Fraction(0)), Fraction(1))
    yield Row("the same: each pod", "1.00", max(paid), Fraction(1, 4))
    yield Row("a pod reserves a GPU and runs nothing", "0.00", found["reserved"], Fraction(1))
    yield Row("a GPU is idle for half an hour", "no price", found["idle"], HALF)
    report = bill.report("model", prices(gpu_hour=BOTH_MODELS))
    for model, right in ((H100, Fraction("4.80")), (A100, Fraction("1.13"))):
        lines = [one.cost or 0 for one in (*report.lines, *report.gpu_accounts) if one.key == (model,)]
        what = f"{model} at {'2.40, two' if model == H100 else '1.13, one'} for an hour"
        yield Row(what, "one price", Fraction(sum(lines)), right)


def namespace_in_prometheus(folder: Path) -> Iterator[Row]:
    """Yield the cost of a namespace in the ledger, and in a Prometheus that scraped the same node."""
    runs = [Runs(pod(f"p-{number}"), 900.0, 4500.0 + 300 * number) for number in range(4)]
    truth = Truth(gpu(0), runs=runs)
    # From the first start at 900 s to the last end at 5400 s.
    right = Fraction(4500, HOUR)
    found = costs(Bill(folder, [truth], range(0, 9001, 60)).report("namespace", ONE))
    yield Row("a namespace of four pods for 1.25 h at 1, from the ledger", "0.08 *", found["nlp"], right)
    node = ScrapedNode(15.0)
    node.play(truth, map(float, range(0, 9001, 5)))
    for hours, what, expected in (
        (0, "the same from Prometheus, scraped every 15 s", right),
        (1, "the same, only its last half hour", HALF),
    ):
        begins, ends = UNIX + hours * HOUR, UNIX + 2 * HOUR
        (line,) = scraped_report(node, begins, ends, UNIX + 9000, "namespace", ONE).lines
        bound = Fraction(line.time_bound or 0, HOUR * 1_000_000)
        yield Row(what, "" if hours else "0.32 *", line.cost or Fraction(0), expected, bound)


def half_hour_zone(folder: Path) -> Iterator[Row]:
    """Yield the bills of two months that meet at 18:30 UTC: two hours before it, and two after."""
    midnight = seconds_at(datetime(2026, 11, 1, tzinfo=KOLKATA))
    truth = Truth(gpu(0), runs=[Runs(Workload("user", user="dan"), midnight - 3 * HOUR)])
    bill = Bill(folder, [truth], range(midnight - 2 * HOUR, midnight + 2 * HOUR + 1, 60), zone=KOLKATA)
    months = bill.total("user", ONE, "2026-10") + bill.total("user", ONE, "2026-11")
    yield Row("4 h at 1 around a month's end in India: October + November", "5.00", months, Fraction(4))
    yield Row("the same in one bill", "4.00", bill.total("user", ONE), Fraction(4))


def month(folder: Path) -> Iterator[Row]:
    """Yield November 2026 in India of one GPU, beside the same computed manually.

    Days 1-10: `train` of vision has the GPU, 600 W. Days 11-20: `left` of vision and `right` of nlp have half
    of it each, 500 W. Days 21-25: `reserved` of nlp has it and runs nothing, 100 W. Days 26-30: nobody, 50 W.
    """
    first = seconds_at(datetime(2026, 11, 1, tzinfo=KOLKATA))
    day = [first + number * DAY for number in range(31)]
    has = [
        Has(pod("train", "vision"), Fraction(1), day[0], day[10]),
        Has(pod("left", "vision"), HALF, day[10], day[20]),
        Has(pod("right", "nlp"), HALF, day[10], day[20]),
        Has(pod("reserved", "nlp"), Fraction(1), day[20], day[25]),
    ]
    runs = [Runs(one.owner, one.begins, one.ends) for one in has[:3]]
    levels = ((day[0], 50), (day[10], 600), (day[20], 500), (day[25], 100), (day[30] + DAY, 50))
    # The ledger begins and ends two hours outside the month.
    bill = Bill(
        folder,
        [Truth(gpu(0, name=H100), has, runs)],
        range(first - 2 * HOUR, day[30] + 2 * HOUR + 1, 60),
        lambda _, at: next(watts for until, watts in levels if at < until),
        KOLKATA,
    )
    listed = [{"until": "2026-11-16", "price": "2.00"}, {"price": "2.50"}]
    november = bill.report("namespace", prices(gpu_hour=listed, kwh="0.30", pue="1.4"), "2026-11")
    found = costs(november)
    # Hours:   vision 10 days + half of 10 days = 360; nlp half of 10 days + 5 days = 240; idle 5 days = 120.
    #          The sum is 720 = 30 x 24.
    # Time:    vision 240 x 2.00 + 60 x 2.00 + 60 x 2.50 = 750 (half of days 11-15, half of days 16-20);
    #          nlp 60 x 2.00 + 60 x 2.50 + 120 x 2.50 = 570; idle 120 x 2.50 = 300.
    #          The sum is 1620 = 360 x 2.00 + 360 x 2.50.
    # Energy:  vision 240 h x 0.6 kW + 240 h x 0.5 kW / 2 = 204 kWh; nlp 240 h x 0.5 kW / 2 = 60 kWh;
    #          idle, also while the GPU is reserved: 120 h x 0.1 kW + 120 h x 0.05 kW = 18 kWh.
    # A kWh:   0.30 x 1.4 = 0.42; vision 85.68, nlp 25.20, idle 7.56. The sum is 118.44 = 282 x 0.42.
    what = "a month of a GPU in India"
    yield Row(f"{what}: vision, 750 + 85.68", "", found["vision"], Fraction("835.68"))
    yield Row(f"{what}: nlp, 570 + 25.20", "", found["nlp"], Fraction("595.20"))
    yield Row(f"{what}: idle, 300 + 7.56", "", found["idle"], Fraction("307.56"))
    yield Row(f"{what}: total, 1620 + 118.44", "", november.total.cost or Fraction(0), Fraction("1738.44"))


def week(folder: Path) -> Iterator[Row]:
    """Yield the total of a week on eight GPUs, exact and in each format: of all keys, the most wrong one."""
    truths = []
    for number in range(8):
        # Jobs of 5 to 29 hours, of which up to three share the GPU; once, a quarter of it is reserved.
        who = [pod(f"p-{n}", f"ns-{n % 3}", f"user-{n % 4}") for n in range(number, number + 5)]
        runs = [
            Runs(who[n % 5], at, at + HOUR * (5 + (n * 7 + number) % 25), name=f"c{n % 3}")
            for n, at in enumerate(range(number * 600, WEEK, 11 * HOUR + 900))
        ]
        has = [Has(who[0], Fraction(1, 4), DAY, 2 * DAY + 720)]
        truths.append(Truth(gpu(number, name=H100 if number < 4 else A100), has, runs))

    def watts(uuid: str, at: int) -> int:
        return 60 + (at // 60 * 37 + int(uuid.removeprefix("GPU-")) * 91) % 600

    # The ledger begins an hour earlier: it knows no energy before the first move of a counter.
    bill = Bill(folder, truths, range(-HOUR, WEEK + 1, 60), watts)
    joules = sum(watts(one.gpu.uuid, at) * 60 for one in truths for at in range(0, WEEK, 60))
    # Four GPUs of each model for 168 hours. A kWh is 3.6 million joules.
    right = 4 * 168 * (Fraction("2.40") + Fraction("1.13"))
    right += Fraction(joules, 3_600_000) * Fraction("0.3217") * Fraction("1.31")
    priced = prices(gpu_hour=BOTH_MODELS, kwh="0.3217", pue="1.31")
    since = datetime.fromtimestamp(UNIX, UTC).strftime("%Y-%m-%dT%H:%MZ")
    totals: dict[str, list[Fraction]] = {}
    for by in KEYS:
        for name, total in totals_in_formats(bill.report(by, priced, since=since)):
            totals.setdefault(name, []).append(total)
    for name, every in totals.items():
        expected = Fraction(round_decimal(right, DIGITS[name])) if name in DIGITS else right
        worst = max(every, key=lambda total: abs(total - expected))
        yield Row(f"a week of eight GPUs by {len(every)} keys: {name}", "", worst, expected)


def totals_in_formats(found: UsageReport) -> Iterator[tuple[str, Fraction]]:
    """Yield the exact total, the sum of the rows of each file format, and the total of the table."""
    yield "exact total", found.total.cost or Fraction(0)
    written = as_json(found)
    costs_in_json = [row["decimals"]["cost"] for row in (*written["rows"], *written["own"])]
    yield "rows of JSON", sum(map(Fraction, costs_in_json), Fraction(0))
    for name, text, column in (
        ("rows of CSV", as_csv(found), "cost"),
        ("rows of FOCUS", as_focus(found, "node"), "BilledCost"),
    ):
        rows = csv.DictReader(io.StringIO(text))
        yield name, sum((Fraction(row[column] or 0) for row in rows), Fraction(0))
    (last,) = re.findall(r"^total .*?([\d,.]+)$", report_table(found, 0), re.MULTILINE)
    yield "total of the table", Fraction(last.replace(",", ""))


def seconds_at(time: datetime) -> int:
    """Return the seconds from UNIX to a time."""
    return int(time.timestamp() - UNIX)


def main() -> int:
    """Measure, print the table and, with --write, write it to a file. Return 1 if an amount is wrong."""
    given = create_parser(__doc__).parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for scene in (hour_of_a_node, namespace_in_prometheus, half_hour_zone, month, week):
            rows += scene(Path(name) / scene.__name__)
    lines = ["| measurement | 851e4ab | now | right value | |", "|---|---|---|---|---|"]
    print_table([*lines, *(row.cells() for row in rows)], given.write, MARKS)
    return int(not all(row.is_right for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
