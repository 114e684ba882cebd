"""Writes the ledger of one month of a small node, and the outputs of the finance page's commands.

    python benchmarks/finance_month.py [--write docs/finance.md] [--state-dir FOLDER]

The node is simulated with a tick per minute of October 2026; ledger, file and commands are the program's.
With --state-dir the ledger is kept in that folder, or reused if it is there.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from bill import DAY, HOUR, UNIX, FakeClock, Has, Run, Runs, Truth, gpu, pod, q, round_decimal, seconds_at
from builders import instance
from gpuledger.cli import explain, report
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import NODE_NAME
from gpuledger.model.workload import Workload
from tables import create_parser, print_table

FIRST, LAST = (seconds_at(datetime(2026, month, 1, tzinfo=UTC)) for month in (10, 11))
ONE = Fraction(1)
H100 = gpu(0, name="NVIDIA H100 80GB HBM3", sm_count=132)
CUT = gpu(1, name="NVIDIA H100 80GB HBM3", sm_count=132)
UNMETERED = gpu(2, name="NVIDIA T400 4GB", sm_count=6)
SLICES = [instance(CUT, number, index=number, profile="3g.40gb", sm_count=60) for number in (1, 2)]
# The program was not running on the 12th from 06:00 to 12:00; GPU 0 was lost on the 25th for three hours.
STOPPED = (FIRST + 11 * DAY + 6 * HOUR, FIRST + 11 * DAY + 12 * HOUR)
LOST = (FIRST + 24 * DAY + 9 * HOUR, FIRST + 24 * DAY + 12 * HOUR)
CONFIG = """\
price:
  currency: EUR
  kwh: 0.30
  gpu_hour:
    - {gpu: "*H100*", mig: "3g.*", price: 1.10, per: instance}
    - {gpu: "*H100*", price: 2.40}
    - {gpu: "*T400*", price: 0.05}
pue: 1.4
teams:
  - {team: vision, namespace: "vision*"}
  - {team: nlp, namespace: nlp}
  - {team: nlp, user: [mira, jo]}
report: {timezone: UTC, account: lab}
"""
# What the meter of the machine shows: its GPUs, and processors, memory, disks and fans. With the building's
# overhead it is 1.4 times as much.
MACHINE_KWH, BUILDING_KWH = Decimal("676.6"), Decimal("947.2")
# Watts of the GPU without a meter, at most: its power limit.
MOST_WATTS = 70


def truths() -> list[Truth]:
    """What happens: training and a reserved notebook, two MIG slices, and a desktop GPU without a meter."""
    day = [FIRST + number * DAY for number in range(32)]
    train, notebook = pod("train", "vision"), pod("notebook", "vision-dev")
    chat, test = pod("chat", "nlp"), pod("nightly", "nlp")
    mira = Workload("user", user="mira")
    whole = [Has(train, ONE, day[0], day[20]), Has(notebook, ONE, day[20], day[28])]
    slices = [Has(chat, ONE, day[0], day[31], SLICES[0]), Has(test, ONE, day[10], day[13], SLICES[1])]
    running = [Runs(chat, day[0], day[31], SLICES[0]), Runs(test, day[10], day[13], SLICES[1])]
    return [
        Truth(H100, whole, [Runs(train, day[0], day[20])], lost=[LOST]),
        Truth(CUT, slices, running, SLICES),
        Truth(UNMETERED, runs=[Runs(mira, day[4] + 9 * HOUR, day[9])]),
    ]


def watts(uuid: str, at: int) -> int:
    """The power of a GPU with a meter."""
    if uuid == CUT.uuid:
        return 380 if FIRST + 10 * DAY <= at < FIRST + 13 * DAY else 260
    return 640 if at < FIRST + 20 * DAY else 70


def write_ledger(folder: Path) -> None:
    """Write the month with a tick per minute, from an hour before it to an hour after it."""
    folder.mkdir()
    nodes = truths()
    clock = FakeClock(UNIX + FIRST - HOUR)
    run = Run(folder, boot="boot", clock=clock, limits=RetentionLimits(zone=UTC))
    counters = {H100.uuid: 0, CUT.uuid: 0}
    since = FIRST - HOUR - 60
    for at in range(FIRST - HOUR, LAST + HOUR + 1, 60):
        for uuid in counters:
            counters[uuid] += watts(uuid, since) * (at - since) * 1000 if at != since else 0
        if not STOPPED[0] < at < STOPPED[1]:
            clock.now_unix, clock.now_elapsed = UNIX + at, float(at)
            seen = [one.snapshot(at, since) for one in nodes]
            readings = [
                replace(one, values={**one.values, q.ENERGY: counters[one.device.uuid]})
                if one.device.uuid in counters and one.up
                else one
                for snapshot in seen
                for one in snapshot.readings
            ]
            allocations = tuple(each for snapshot in seen for each in snapshot.allocations)
            run.ledger.post(replace(seen[0], readings=tuple(readings), allocations=allocations))
        since = at
    run.store.close()
    # As `serve` on this machine does.
    with contextlib.closing(sqlite3.connect(run.store.file)) as ledger, ledger:
        ledger.execute("REPLACE INTO meta VALUES (?, 'gpu-1')", (NODE_NAME,))


def output(command: Callable[[list[str]], int], *arguments: str) -> str:
    """What a command prints to standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        command([*arguments, "--config", "finance.yaml", "--state-dir", "books"])
    return out.getvalue()


def sections() -> Iterator[tuple[str, list[str]]]:
    """What the page has between its marks, by name."""
    month = ("--in", "2026-10")
    yield "settings", ["```yaml", *CONFIG.splitlines(), "```"]
    # Without the bars.
    teams = re.sub(r" +[#=]+$", "", output(report.run, *month, "--by", "team"), flags=re.MULTILINE)
    yield "teams", block(re.sub(r"^-+$", lambda line: line[0][:100], teams, flags=re.MULTILINE))
    Path("2026-10.json").unlink(missing_ok=True)
    output(report.run, *month, "--by", "team", "--statement", "2026-10.json")
    # The hash is another in each run, because it contains the time.
    verified = output(report.run, "--verify", "2026-10.json")
    yield "verify", block(re.sub(r"(SHA-256) \w{64}", r"\1 ...", verified))
    rows = list(csv.DictReader(io.StringIO(output(report.run, *month, "--format", "focus"))))
    yield "focus", list(focus_table(rows))
    found = json.loads(output(report.run, *month, "--by", "gpu", "--format", "json"))
    yield "meter", list(meter_table(found))
    yield "cloud", list(cloud_table(found))
    yield "instances", list(instance_table(rows))
    text = output(explain.run, "namespace:vision-dev", *month)
    yield "explain", block("\n".join(line for line in text.splitlines()[:16] if "not measured" not in line))


def block(text: str) -> list[str]:
    """The lines of a fenced block."""
    return ["```", *text.rstrip("\n").splitlines(), "```"]


def focus_table(rows: list[dict[str, str]]) -> Iterator[str]:
    """The file's charges by resource, Sku and owner, and their sum."""
    columns = ("ResourceName", "SkuId", "AllocatedResourceId", "ListUnitPrice")
    sums: dict[tuple[str, ...], tuple[Decimal, Decimal]] = {}
    for row in rows:
        key = tuple(row[name] or f"({row['x_Account']})" for name in columns)
        quantity, cost = sums.get(key, (Decimal(0), Decimal(0)))
        sums[key] = (quantity + Decimal(row["PricingQuantity"]), cost + Decimal(row["BilledCost"]))
    yield f"| {' | '.join((*columns, 'PricingQuantity', 'BilledCost'))} |"
    yield "|---|---|---|--:|--:|--:|"
    for key, (quantity, cost) in sorted(sums.items()):
        yield f"| {' | '.join((*key, str(quantity), str(cost)))} |"
    total = sum((cost for _, cost in sums.values()), Decimal(0))
    days = len({row["ChargePeriodStart"] for row in rows})
    yield f"| all {len(rows)} charges of {days} days | | | | | {total} |"


def kwh(millijoules: int) -> Decimal:
    """Kilowatt-hours with three decimals."""
    return round_decimal(Fraction(millijoules, 3_600_000_000), 3)


def meter_table(found: Any) -> Iterator[str]:
    """From the report to the meters of the machine and of the building."""
    owners = sum(row["millijoules"] or 0 for row in found["rows"])
    own = dict.fromkeys(("idle", "unattributed", "unobserved"), 0)
    for row in found["own"]:
        own[row["account"]] += row["millijoules"] or 0
    total = kwh(found["total"]["millijoules"])
    most = Decimal(MOST_WATTS) * 744 / 1000
    rest, pue = MACHINE_KWH - total, BUILDING_KWH / MACHINE_KWH
    yield "| | kWh | from |"
    yield "|---|--:|---|"
    for what, amount, source in (
        ("owners", kwh(owners), "rows of the report"),
        ("idle", kwh(own["idle"]), "row `idle`"),
        (
            "unobserved",
            kwh(own["unobserved"]),
            "row `unobserved`: gpuledger was stopped, or GPU 0 lost",
        ),
        ("GPUs with a meter", total, "the total: the rise of their counters"),
        (
            "GPU 2, without a meter",
            f"0 to {most}",
            f"in no row; at most {MOST_WATTS} W for 744 hours",
        ),
        ("processors, memory, fans", f"{rest - most} to {rest}", "the difference"),
        ("**meter of the machine**", MACHINE_KWH, ""),
        ("**meter of the building**", BUILDING_KWH, f"{pue:.3f} times as much: the `pue`"),
    ):
        yield f"| {what} | {amount} | {source} |"


def cloud_table(found: Any) -> Iterator[str]:
    """The hours of each GPU: 744 in October, as on the invoice for the machine."""
    names = ("billed to owners", "idle", "down", "unobserved", "not watched", "sum")
    yield f"| GPU | {' | '.join(names)} |"
    yield f"|---|{'--:|' * len(names)}"
    for gpu_ in found["gpus"]:
        by_account = gpu_["microseconds_by_account"]
        parts = [by_account.get(name, 0) for name in ("owner", "idle", "down", "unobserved")]
        parts.append(gpu_["unwatched_microseconds"])
        cells = [hours(part) for part in (*parts, sum(parts))]
        yield f"| {gpu_['gpu']} {gpu_['model']} | {' | '.join(cells)} |"


def hours(microseconds: int) -> str:
    """Hours with two decimals."""
    return f"{round_decimal(Fraction(microseconds, HOUR * 1_000_000), 2)}"


def instance_table(rows: list[dict[str, str]]) -> Iterator[str]:
    """The hours of MIG Instances as a cloud sells them, out of the FOCUS file."""
    per_instance = [row for row in rows if row["SkuPriceId"].endswith("per=instance")]
    cost: dict[str, Decimal] = {}
    for row in per_instance:
        owner = row["AllocatedResourceName"] or f"({row['x_Account']})"
        cost[owner] = cost.get(owner, Decimal(0)) + Decimal(row["BilledCost"])
    yield "| owner | cost EUR | instance-hours: cost / 1.10 |"
    yield "|---|--:|--:|"
    for owner, each in (*cost.items(), ("sum", sum(cost.values(), Decimal(0)))):
        yield f"| {owner} | {each:.4f} | {each / Decimal('1.10'):.2f} |"


def main() -> None:
    """Write the ledger, run the commands, and print what the page has between its marks."""
    parser = create_parser(__doc__)
    parser.add_argument("--state-dir", type=Path, help="keep the ledger in this folder")
    given = parser.parse_args()
    write = given.write and given.write.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = given.state_dir or Path(name)
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        Path("finance.yaml").write_text(CONFIG)
        if not Path("books").exists():
            write_ledger(Path("books"))
        for section, lines in sections():
            print_table(lines, write, (f"<!-- {section}: begin -->", f"<!-- {section}: end -->"))


if __name__ == "__main__":
    main()
