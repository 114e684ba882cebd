"""Measures dashboards and reports of a large fleet in VictoriaMetrics: time, memory, exactness.

    python benchmarks/fleet_scale.py [--nodes 1000] [--days 30] [--write docs/fleet.md]

`fleet_series.py` makes the series, `fleet_copies.py` imports them. Panels are queried as Grafana does,
without caches, over each dashboard's own range and the longest, over recorded counters and over the exported
ones in their place. A report is a separate process. The full size is 5.9 billion samples and those of the
rules: an hour of import on two cores, then some hours of queries. The first line of the table says what was
imported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import httpx
import psutil

from command_usage import CommandUsage, run_command
from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from dashboards import DASHBOARDS, EVERYTHING, FIXED, panel_queries, substituted  # noqa: E402  (after the path is set)
from fleet_copies import import_fleet  # noqa: E402  (as above)
from fleet_series import DAY, HOUR, STEP, Fleet, Template, read_page, read_records  # noqa: E402  (as above)
from running import MODULE, get, victoria_metrics  # noqa: E402  (as above)

MARKS = ("<!-- fleet-scale: begin -->", "<!-- fleet-scale: end -->")
RANGES = {"6 h": 6 * HOUR, "24 h": DAY, "7 d": 7 * DAY, "30 d": 30 * DAY}
# Groupings of the report of a day; longer ones are grouped by the first.
KEYS = ("namespace", "node", "pod")
# Points of a graph, as Grafana requests on a wide screen.
_POINTS = 1000
# Seconds for one query.
_PATIENCE = 900
# So that each query has its own time, however long, and finds all series of a large fleet.
_FLAGS = (
    "-search.maxQueryDuration=900s",
    "-search.maxQueueDuration=600s",
    "-search.disableCache",
    "-search.maxUniqueTimeseries=5000000",
    "-search.maxSamplesPerQuery=20000000000",
)


@dataclass
class Measured:
    """What the queries of one dashboard over one range took."""

    seconds: list[tuple[float, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    # Queries without result, as of MIG instances and Xids, which no GPU of the fleet has.
    empty: int = 0
    memory: float = 0.0
    # Seconds of CPU of VictoriaMetrics.
    work: float = 0.0


def server_process() -> psutil.Process:
    """The VictoriaMetrics that this program started."""
    (found,) = (child for child in psutil.Process().children() if child.name() == "victoria-metrics")
    return found


def reset_peak(process: psutil.Process) -> None:
    """Forget the peak of resident memory. Only Linux can, and only for processes of the same user."""
    with suppress(OSError):
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peak_memory(process: psutil.Process) -> float:
    """The peak of resident memory since `reset_peak`, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process: unlike time, it hardly depends on what else the machine does."""
    times = process.cpu_times()
    return float(times.user + times.system)


def exported(expression: str) -> str:
    """The same query over the exported counters: what panels would read if there were no rules."""
    for name, record in read_records().items():
        expression = expression.replace(record.name, name)
    return expression


def measure_dashboard(
    url: str, server: psutil.Process, uid: str, until: int, seconds: int, *, recorded: bool
) -> Measured:
    """Run all queries of a dashboard that ends at this time."""
    found = Measured()
    step = max(STEP, seconds // _POINTS)
    windows = {"__range": f"{seconds}s", "__range_s": str(seconds), "__rate_interval": f"{4 * STEP}s"}
    reset_peak(server)
    before = cpu_seconds(server)
    for query in panel_queries(uid):
        expression = substituted(query.expression, {**FIXED, **EVERYTHING, **windows})
        form: dict[str, str | int] = {"query": expression if recorded else exported(expression), "nocache": 1}
        is_instant = _is_instant(query.panel, query.expression)
        times = {"time": until} if is_instant else {"start": until - seconds, "end": until, "step": step}
        began = time.monotonic()
        kind = "query" if is_instant else "query_range"
        title = str(query.panel["title"])
        try:
            # Loading CA certificates would take longer than a small query.
            options = {"timeout": _PATIENCE, "trust_env": False, "verify": False}
            answer = httpx.post(f"{url}/api/v1/{kind}", data=form | times, **options)
        except httpx.TimeoutException:
            found.failed[title] = f"no answer in {_PATIENCE} s"
        else:
            if answer.is_success:
                found.empty += not answer.json()["data"]["result"]
            else:
                found.failed[title] = answer.json().get("error", answer.text)
        found.seconds.append((time.monotonic() - began, title))
    found.memory, found.work = peak_memory(server), cpu_seconds(server) - before
    return found


def _is_instant(panel: object, expression: str) -> bool:
    assert isinstance(panel, dict)
    return any(target["expr"] == expression and target.get("instant") for target in panel["targets"])


@dataclass(frozen=True)
class Report:
    """A report of a fleet: total is (energy, GPU time).

    Of the server, `work` is seconds of CPU and `memory` MiB.
    """

    used: CommandUsage
    work: float
    memory: float
    rows: int
    total: tuple[int, int]


def measure_report(url: str, server: psutil.Process, since: int, until: int, by: str) -> Report | None:
    """Run `gpuledger report --prometheus`, as JSON; None if it fails, with its reason on stderr."""
    reset_peak(server)
    before = cpu_seconds(server)
    moments = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (since, until)]
    words = ["report", "--prometheus", url, "--by", by, "--since", moments[0], "--until", moments[1]]
    used = run_command([*MODULE, *words, "--format", "json", "--prometheus.timeout", "600s"])
    if used.status:
        return None
    report = json.loads(used.output)
    total = report["total"]["millijoules"], report["total"]["gpu_microseconds"]
    server_work = cpu_seconds(server) - before
    return Report(used, server_work, peak_memory(server), len(report["rows"]), total)


def describe(fleet: Fleet, spent: float, url: str) -> Iterator[str]:
    """What was imported, and what it needs on disk."""
    counts = fleet.counts()
    pages = get(f"{url}/metrics").text.splitlines()
    used = sum(float(line.split()[1]) for line in pages if line.startswith("vm_data_size_bytes{"))
    days = (fleet.seconds - 2 * HOUR) / DAY
    yield (
        f"{fleet.nodes:,} nodes of {fleet.gpus} GPUs, {days:g} days at {STEP // 60}-minute steps: "
        f"{counts['sessions']:,} pods, {counts['series']:,} series, {counts['samples'] / 1e6:,.0f} million "
        f"samples, and those of the rules. Imported in {spent / 60:.0f} minutes; {used / 1e9:.1f} GB on disk."
    )
    yield ""


def table(fleet: Fleet, url: str, server: psutil.Process) -> Iterator[str]:
    """Rows of dashboards, then of reports. A range that is longer than the fleet's is left out."""
    until = fleet.begins + fleet.seconds - HOUR
    fitting = {name: seconds for name, seconds in RANGES.items() if seconds <= fleet.seconds - HOUR}
    yield "| dashboard | range | counters | queries | empty | time | CPU | slowest | MiB of VictoriaMetrics |"
    yield "|---|---|---|---|---|---|---|---|---|"
    failed: dict[str, str] = {}
    longest = max(fitting, key=lambda name: fitting[name])
    for uid, dashboard in DASHBOARDS.items():
        own = f"{dashboard['time']['from'].removeprefix('now-')[:-1]} {dashboard['time']['from'][-1]}"
        for name, seconds in fitting.items():
            if name not in {own, longest}:
                continue
            for recorded in (True, False):
                found = measure_dashboard(url, server, uid, until, seconds, recorded=recorded)
                slowest, title = max(found.seconds)
                counters = "recorded" if recorded else "exported"
                spent = sum(seconds for seconds, _ in found.seconds)
                place = f"{uid.removeprefix('gpuledger-')} | {name} | {counters}"
                failed |= {f"{place} | {panel}": error for panel, error in found.failed.items()}
                yield (
                    f"| {place} | {len(found.seconds)} | {found.empty} | {spent:.1f} s | "
                    f"{found.work:.1f} s | {slowest:.1f} s: {title} | {found.memory:,.0f} |"
                )
    yield ""
    if failed:
        yield "| dashboard | range | counters | panel that failed | error |"
        yield "|---|---|---|---|---|"
        yield from (f"| {place} | {error.replace('|', ' ')} |" for place, error in failed.items())
    else:
        yield "No query failed."
    yield ""
    heads = ("report", "range", "rows", "time", "CPU", "CPU of server", "MiB", "MiB of server", "total")
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, seconds in fitting.items():
        if seconds < DAY and name != longest:
            continue
        for by in KEYS if seconds <= DAY else KEYS[:1]:
            one = measure_report(url, server, until - seconds, until, by)
            if one is None:
                yield f"| by {by} | {name} | failed | | | | | | |"
                continue
            exact = "exact" if one.total == fleet.truth(until - seconds, until) else f"off: {one.total}"
            yield (
                f"| by {by} | {name} | {one.rows:,} | {one.used.seconds:.0f} s | {one.used.work:.0f} s | "
                f"{one.work:.0f} s | {one.used.memory:,.0f} | {one.memory:,.0f} | {exact} |"
            )


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = create_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--days", type=float, default=30, help="0.25 for the shortest range")
    given = parser.parse_args()
    # An hour more at each end: counters have a value when the range begins, and reports see what followed it.
    seconds = int(given.days * DAY) + 2 * HOUR
    begins = int(time.time()) // HOUR * HOUR - seconds
    fleet = Fleet(Template(read_page()), given.nodes, given.gpus, begins, seconds)
    with victoria_metrics(*_FLAGS) as url:
        spent = import_fleet(url, fleet)
        server = server_process()
        lines = chain(describe(fleet, spent, url), table(fleet, url, server))
        print_table(lines, given.write, MARKS)


if __name__ == "__main__":
    main()
