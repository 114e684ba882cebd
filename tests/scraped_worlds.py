"""Two nodes with the same accounts, as series for `promtool test rules`, and the values that queries have.

Node `plain` is scraped by one target. The exporter of node `rollout` is scraped by the chart's ServiceMonitor
every 30 s and by an agent every 60 s. Its pod is replaced: for a minute, both pods are scraped, and the old
one exports what it knew. Later one scrape of the ServiceMonitor fails.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from chart import of_kind
from dashboards import FIXED, substituted
from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules
from gpuledger.ledger.exported_counters import ExportedCounters
from gpuledger.ledger.settings import LedgerSettings
from monitors import scrape_configs
from service_discovery import daemonset_pod, endpoint_targets
from stack import DEPLOY

Labels = dict[str, str]
Row = frozenset[tuple[str, str]]
# Seconds: samples and evaluations, and the time of all series.
STEP, ENDS = 15, 7200
# Queries cover the last RANGE seconds before AT.
AT, RANGE = 6900, 6000
# The pod is replaced, its old target is gone, and one scrape fails.
REPLACED, GONE, FAILED = 3000, 3090, 4500
# New series are 0 for this long: the longest scrape interval and its timeout.
HOLD, RETENTION = 70, 300
# A job of five seconds every ten minutes, once in a new pod and once of the same user.
PERIOD, FIRST_JOB, JOB_SECONDS, JOB_JOULES = 600, 100, 5, 5000
# Jobs of `short_jobs`.
SHORT_JOBS = 16

# The value at a time, when the program started at another; None if there is no sample.
Value = Callable[[float, float], float | None]


@dataclass(frozen=True)
class Series:
    """A series that the exporter exports."""

    name: str
    labels: Labels
    value: Value


def steady(first: float, rate: float = 0.0) -> Value:
    """A gauge, or a counter of the ledger, which goes on after a restart."""
    return lambda at, started: first + rate * at


def since_start(rate: float) -> Value:
    """A counter that a restart begins again: held at 0 first."""
    return lambda at, started: rate * (at - started) if at - started > HOLD else 0.0


def job(born: float, amount: float) -> Value:
    """A counter of a job that was born at this time."""

    def value(at: float, started: float) -> float | None:
        if not born <= at < born + JOB_SECONDS + RETENTION:
            return None
        return amount if at >= born + HOLD else 0.0

    return value


def jobs_until(at: float) -> int:
    return int((at - FIRST_JOB - HOLD) // PERIOD) + 1


def again(amount: float) -> Value:
    """A counter that ends after each job and begins at 0 with the next one."""

    def value(at: float, started: float) -> float | None:
        return job(FIRST_JOB + (at - FIRST_JOB) // PERIOD * PERIOD, amount)(at, started)

    return value


def owner(**labels: str) -> Labels:
    names = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
    return {name: labels.get(name, "") for name in names}


NOBODY = owner()
TRAIN = owner(owner_kind="pod", namespace="ml", pod="train-0", container="main")
API = owner(owner_kind="pod", namespace="vision", pod="api-0", container="main")
ANN = owner(owner_kind="user", user="ann")
WATTS = {"train": 150.0, "api": 120.0, "unattributed": 5.0, "unobserved": 1.0, "idle": 60.0}


def exported(world: str) -> list[Series]:
    """All series of the node's exporter."""
    busy, spare = ({"uuid": f"GPU-{world}-{number}"} for number in (0, 1))
    return [*_gauges(busy, spare), *_time(busy, spare), *_energy(busy, spare), *_health(busy, spare)]


def _gauges(busy: Labels, spare: Labels) -> Iterator[Series]:
    yield Series("gpuledger_build_info", {"version": "1"}, steady(1))
    for number, gpu in enumerate((busy, spare)):
        device = {**gpu, "mig_instance": ""}
        names = {"gpu": str(number), "name": "NVIDIA L4", "profile": ""}
        yield Series("gpuledger_device_info", {**device, **names}, steady(1))
        for name, value in (
            ("gpuledger_device_up", 1.0),
            ("gpuledger_device_sm_ratio", 1.0),
            ("gpuledger_gpu_price", 2.0),
            ("gpuledger_device_power_watts", 70.0),
            ("gpuledger_sessions_open", 1.0 - number),
            ("gpuledger_device_memory_used_bytes", 3e9),
            ("gpuledger_device_memory_free_bytes", 1e9),
        ):
            yield Series(name, dict(device), steady(value))
        for state in ("active", "held", "idle"):
            is_now = state == ("active", "idle")[number]
            yield Series("gpuledger_device_state", {**device, "state": state}, steady(float(is_now)))
    device = {**busy, "mig_instance": ""}
    process = {"pid": "77", "command": "python3", "type": "C"}
    yield Series("gpuledger_process_info", {**device, **process, **TRAIN}, steady(1))
    yield Series("gpuledger_process_memory_bytes", {**device, "pid": "77"}, steady(2e9))
    yield Series("gpuledger_process_start_time_seconds", {**device, "pid": "77"}, steady(-9e5))
    for one in (TRAIN, API):
        yield Series("gpuledger_device_owner_processes", {**device, **one}, steady(1))
        yield Series("gpuledger_device_owner_info", {**device, **one}, steady(1))


def _time(busy: Labels, spare: Labels) -> Iterator[Series]:
    def account(gpu: Labels, name: str, labels: Labels, value: Value) -> Series:
        return Series(
            "gpuledger_gpu_seconds_total", {**gpu, "mig_instance": "", "account": name, **labels}, value
        )

    for one in (TRAIN, API):
        yield account(busy, "owner", one, steady(40_000.0, 0.5))
        held = {**busy, "mig_instance": "", **one}
        yield Series("gpuledger_owner_held_seconds_total", held, since_start(0.2))
    yield account(
        spare,
        "idle",
        NOBODY,
        lambda at, started: 90_000.0 + at - 2 * JOB_SECONDS * jobs_until(at),
    )
    yield account(spare, "owner", ANN, again(JOB_SECONDS))
    for born in range(FIRST_JOB, ENDS, PERIOD):
        pod = owner(owner_kind="pod", namespace="ci", pod=f"build-{born}", container="main")
        yield account(spare, "owner", pod, job(born, JOB_SECONDS))
    for gpu, rates in ((busy, (0.8, 0.2, 0.0)), (spare, (0.1, 0.0, 0.9))):
        yield Series("gpuledger_gpu_watched_seconds_total", gpu, steady(90_000.0, 1.0))
        for state, rate in zip(("active", "held", "idle"), rates, strict=True):
            labels = {**gpu, "mig_instance": "", "state": state}
            yield Series("gpuledger_device_state_seconds_total", labels, since_start(rate))


def _energy(busy: Labels, spare: Labels) -> Iterator[Series]:
    def account(gpu: Labels, name: str, method: str, labels: Labels, value: Value) -> Series:
        return Series(
            "gpuledger_energy_joules_total", {**gpu, "account": name, "method": method, **labels}, value
        )

    yield account(busy, "process", "activity", TRAIN, steady(7e6, WATTS["train"]))
    yield account(busy, "process", "equal", API, steady(6e6, WATTS["api"]))
    yield account(busy, "unattributed", "", NOBODY, steady(1e5, WATTS["unattributed"]))
    yield account(busy, "unobserved", "", NOBODY, steady(1e5, WATTS["unobserved"]))
    yield account(spare, "idle", "", NOBODY, steady(5e6, WATTS["idle"]))
    yield account(spare, "process", "measured", ANN, again(JOB_JOULES))
    for born in range(FIRST_JOB, ENDS, PERIOD):
        pod = owner(owner_kind="pod", namespace="ci", pod=f"build-{born}", container="main")
        yield account(spare, "process", "measured", pod, job(born, JOB_JOULES))
    of_busy = sum(watts for name, watts in WATTS.items() if name != "idle")
    yield Series("gpuledger_device_energy_joules_total", busy, steady(2e7, of_busy))
    yield Series(
        "gpuledger_device_energy_joules_total",
        spare,
        lambda at, started: 1e7 + WATTS["idle"] * at + 2 * JOB_JOULES * jobs_until(at),
    )


def _ended_jobs(at: int, started: int) -> float:
    return float(max(0, jobs_until(at) - jobs_until(started)))


def _health(busy: Labels, spare: Labels) -> Iterator[Series]:
    for gpu in (busy, spare):
        for kind in ("corrected", "uncorrected"):
            errors = {**gpu, "type": kind}
            yield Series(
                "gpuledger_device_ecc_errors_total", errors, lambda at, started: 7.0 + 3 * (at > 5000)
            )
        yield Series("gpuledger_device_pcie_replays_total", gpu, lambda at, started: 100.0 + 8 * (at > 2000))
    for le in ("10", "60", "+Inf"):
        yield Series("gpuledger_session_duration_seconds_bucket", {**spare, "le": le}, _ended_jobs)


@dataclass(frozen=True)
class Scraper:
    """Samples of one target: its labels, when it is scraped, what the exporter's clock says then."""

    labels: Labels
    interval: int
    offset: int
    begins: float
    ends: float
    # When its program started and stopped changing its counters.
    started: float
    frozen: float = ENDS
    fails: frozenset[int] = frozenset()

    def samples(self, one: Series) -> Iterator[float | None]:
        """A sample at each step; None is a staleness marker."""
        for at in range(0, ENDS + 1, STEP):
            if at % self.interval != self.offset or at < self.begins:
                yield float("nan")
            elif at >= self.ends or at in self.fails:
                yield None
            else:
                yield one.value(min(at, self.frozen), self.started)


@cache
def service_monitor_labels(address: str, node: str, pod: str) -> tuple[tuple[str, str], ...]:
    """The target labels that the chart's ServiceMonitor gives the exporter's pod."""
    values: dict[str, Any] = {"serviceMonitor": {"enabled": True}}
    (workload,), (monitor,) = of_kind("DaemonSet", values), of_kind("ServiceMonitor", values)
    made = daemonset_pod(workload, node=node, address=address)
    made["metadata"]["name"] = pod
    (config,) = scrape_configs(monitor)
    rules = RelabelRules(
        RelabelRule(
            **{
                key: tuple(value) if key == "source_labels" else value
                for key, value in one.items()
                if key != "separator" or value
            }
        )
        for one in config["relabel_configs"]
    )
    (kept,) = (
        target
        for service in of_kind("Service", values)
        for target in endpoint_targets(service, made)
        if rules.apply(target)
    )
    kept.setdefault("instance", kept["__address__"])
    return tuple((name, value) for name, value in kept.items() if not name.startswith("__"))


def scrapers(world: str) -> list[Scraper]:
    started = -50_000.0
    if world == "plain":
        labels = dict(service_monitor_labels("10.0.1.7", "node-plain", "gpuledger-only"))
        return [Scraper(labels, STEP, 0, 0, ENDS + 1, started)]
    made = []
    for pod, address, begins, gone, since in (
        ("gpuledger-old", "10.0.0.7", 0, GONE, started),
        ("gpuledger-new", "10.0.0.8", REPLACED, ENDS + 1, REPLACED),
    ):
        labels = dict(service_monitor_labels(address, "node-rollout", pod))
        agent = {"job": "gpus", "instance": labels["instance"], "node": "node-rollout", "pod": pod}
        frozen = REPLACED if gone == GONE else ENDS
        made += [
            Scraper(labels, 30, 0, begins, gone, since, frozen, frozenset({FAILED})),
            Scraper(agent, 60, 15, begins, gone, since, frozen),
        ]
    return made


def input_series(world: str) -> list[dict[str, str]]:
    """All samples. As with `honor_labels: true`, exported labels win, also if they are empty."""
    found = []
    for scraper in scrapers(world):
        for one in exported(world):
            labels = {**scraper.labels, **one.labels}
            text = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if value)
            found.append({"series": f"{one.name}{{{text}}}", "values": " ".join(_notation(scraper, one))})
    return found


def _notation(scraper: Scraper, one: Series) -> Iterator[str]:
    was_there = False
    for sample in scraper.samples(one):
        if sample is None:
            yield "stale" if was_there else "_"
            was_there = False
        elif sample != sample:
            yield "_"
        else:
            was_there = True
            yield repr(sample)


VARIABLES = {
    **FIXED,
    "__range": f"{RANGE}s",
    "__range_s": str(RANGE),
    "__rate_interval": "4m",
    "cluster": ".*",
    "namespace": ".*",
}
# Values of the variables for a node, which its addresses select.
OF_WORLD = {
    "plain": {"gpu": ".*", "node": "10.0.1.7:9400"},
    "rollout": {"gpu": ".*", "node": "10.0.0.[78]:9400"},
}


def query_worlds(
    folder: Path, expressions: Sequence[str], moments: Sequence[int], rules: Sequence[Path]
) -> dict[int, dict[str, list[Mapping[Row, float]]]]:
    """The results of the expressions for both nodes, by moment. Fails if one is an error.

    Rows are without addresses.
    """
    queries = [
        (substituted(expression, {**VARIABLES, **of_world}), at)
        for at in moments
        for of_world in OF_WORLD.values()
        for expression in expressions
    ]
    series = [one for world in OF_WORLD for one in input_series(world)]
    got = iter(query_series(folder, series, queries, rules))
    return {at: {world: [next(got) for _ in expressions] for world in OF_WORLD} for at in moments}


def query_series(
    folder: Path,
    series: Sequence[Mapping[str, str]],
    expressions: Sequence[tuple[str, int]],
    rules: Sequence[Path],
) -> list[Mapping[Row, float]]:
    """The results of expressions at their moments: promtool prints them, because nothing is expected."""
    nothing = [{"labels": "nothing", "value": 1}]
    queries = [{"expr": one, "eval_time": f"{at}s", "exp_samples": nothing} for one, at in expressions]
    test = {"interval": f"{STEP}s", "input_series": series, "promql_expr_test": queries}
    names = [str(file) for file in rules]
    file = folder / "series.json"
    file.write_text(json.dumps({"rule_files": names, "evaluation_interval": f"{STEP}s", "tests": [test]}))
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    failed = [line for line in lines if " err: " in line]
    assert not failed, "\n".join(failed)
    got = [_rows(line.removeprefix("got:")) for line in lines if line.startswith("got:")]
    assert len(got) == len(expressions), done.stdout + done.stderr
    return got


def short_jobs(interval: int) -> Iterator[dict[str, str]]:
    """Energy of jobs of five seconds, of GPU `GPU-INTERVAL`, as a real ledger exports it to such scrapes.

    Jobs begin at all phases of the scrape interval.
    """
    hold = max(LedgerSettings().zero_hold, interval + 10.0)
    counters = ExportedCounters(hold, RETENTION)
    found: dict[tuple[str, ...], list[str]] = {}
    for at in range(ENDS + 1):
        for number in range(SHORT_JOBS):
            if 0 <= at - FIRST_JOB - number * 317 < JOB_SECONDS:
                counters.add((f"GPU-{interval}", f"build-{number}"), JOB_JOULES // JOB_SECONDS, at)
        counters.end(at)
        if at % interval == 0:
            for labels, amount, _ in counters.exported(at):
                found.setdefault(labels, ["_"] * (ENDS // STEP + 1))[at // STEP] = str(amount)
    for (uuid, pod), values in found.items():
        text = (
            f'uuid="{uuid}",account="process",method="measured",owner_kind="pod",namespace="ci",pod="{pod}"'
        )
        yield {"series": f"gpuledger_energy_joules_total{{{text}}}", "values": " ".join(values)}


def _rows(text: str) -> dict[Row, float]:
    rows = {}
    for labels, value in re.findall(r'\{((?:[\w:]+="(?:[^"\\]|\\.)*"(?:, )?)*)\} (\S+?)(?:,|"?$)', text):
        named = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
        row = frozenset(
            (name, value.replace("rollout", "plain")) for name, value in named if name != "instance"
        )
        assert row not in rows, text
        rows[row] = float(value)
    return rows


RECORDING = DEPLOY / "prometheus/rules/recording.yml"
