"""The series of a large fleet, made from one page of a simulated node: what a Prometheus would have scraped.

Families are those that dashboards and reports read, with the names and labels of the page, and the counters
that the rules of `gpuledger-counters` record. Each GPU has two pods a day, of ten hours, and is idle for two
hours after each. Counters are whole joules and seconds, so a report of the fleet can be checked exactly.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from dashboards import DASHBOARDS, panel_queries  # noqa: E402  (after the path is set)
from running import get, serving, wait_until  # noqa: E402  (as above)

STEP, HOUR, DAY = 300, 3600, 86_400
# Seconds from one pod to the next on a GPU, and of a pod.
TURN, BUSY = 12 * HOUR, 10 * HOUR
# One profile per hour of a turn: when the pods of a GPU begin, and how much they draw.
PROFILES = TURN // HOUR
IDLE_WATTS, NAMESPACES = 70, 20
# Seconds of each hour in which a pod does not use its GPU.
HELD = 360
RULES = ROOT / "deploy/prometheus/rules/recording.yml"
QUERIES = sorted((ROOT / "src/gpuledger/app").glob("*queries.py"))
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Counters of a GPU's books, as functions of profile and time: see `Clock`.
_OWNER_SECONDS = frozenset(
    f"gpuledger_owner_{word}_seconds_total" for word in ("resident", "allocated", "held")
)
# Facts that one panel reads as they are now, 61 of each GPU: imported only for the last hours.
_FACTS, FACTS_KEPT = "gpuledger_field_supported", 2 * HOUR
_TICKS = ("gpuledger_gpu_watched_seconds_total", "gpuledger_ticks_total")


@dataclass(frozen=True)
class Series:
    """A line of the page. `kind` says of what there is one: a node, a GPU or a session."""

    kind: str
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Recorded:
    """A rule of a counter: the name of the record, and the labels that it keeps."""

    name: str
    labels: frozenset[str]


def read_records() -> dict[str, Recorded]:
    """The rules that record one counter without the labels of targets, by the counter's name."""
    group = yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]
    found = {}
    for rule in group["rules"]:
        labels = re.search(r"by \(([^)]*)\)", rule["expr"])
        name = re.search(r"\(?(gpuledger_\w+)", rule["expr"])
        assert labels and name, rule["expr"]
        found[name[1]] = Recorded(rule["record"], frozenset(re.split(r"\s*,\s*", labels[1])))
    return found


def read_families() -> set[str]:
    """Names of the exported series that the dashboards of nodes, their rules and reports read."""
    texts = [query.expression for uid in DASHBOARDS for query in panel_queries(uid)]
    texts += [file.read_text("utf-8") for file in QUERIES]
    return {name for text in texts for name in re.findall(r"\bgpuledger_\w+", text)} | read_records().keys()


def read_page() -> str:
    """A page of a simulated node with prices, when its first GPU has energy of a pod."""
    flags = ("--source", "simulator", "--state-dir", "none", "--price.gpu-hour", "2.40")

    def page() -> str | None:
        text = get(f"{server.url}/metrics/native").text
        return text if "gpuledger_energy_joules_total{" in text and 'account="process"' in text else None

    with serving(*flags) as server:
        return wait_until(page, "energy of a pod")


class Template:
    """The series of one GPU of a page, of its owner, and of the node."""

    def __init__(self, page: str) -> None:
        families = read_families()
        lines = [match for line in page.splitlines() if (match := _LINE.match(line)) and match[1] in families]
        parsed = [
            (name, dict(_LABEL.findall(inside or "")), float(value))
            for name, inside, value in (line.groups() for line in lines)
        ]
        mine = next(
            labels
            for name, labels, _ in parsed
            if name == "gpuledger_energy_joules_total" and labels["account"] == "process" and labels["pod"]
        )
        self.series = [
            Series(kind, name, labels, value)
            for name, labels, value in parsed
            if (kind := _kind(labels, mine["uuid"], mine["pod"]))
        ]
        self.series += [
            Series("gpu", one.name, {**one.labels, **_NOBODY, "account": "idle"}, 0.0)
            for one in self.series
            if one.kind == "session" and "account" in one.labels
        ]

    def count(self, kind: str) -> int:
        """The number of series that each node, GPU or session has."""
        return sum(one.kind == kind for one in self.series)


_NOBODY = dict.fromkeys(("owner_kind", "namespace", "pod", "container", "user", "slurm_job"), "")


def _kind(labels: Mapping[str, str], uuid: str, pod: str) -> str:
    if labels.get("uuid", uuid) != uuid or labels.get("mig_instance"):
        return ""
    if labels.get("pod") or labels.get("pid"):
        return "session" if "uuid" in labels or labels.get("pod") == pod else ""
    # The GPU of the page is never idle: `Template` adds that account.
    return "" if "account" in labels else "gpu" if "uuid" in labels else "node"


@dataclass(frozen=True)
class Clock:
    """What the counters of a GPU are at a time, in seconds since the begin; `profile` is one of PROFILES."""

    profile: int

    @property
    def watts(self) -> int:
        """Power in use."""
        return 300 + 25 * self.profile

    def busy(self, at: int) -> int:
        """Seconds in use until this time."""
        turns, rest = divmod(at - self.profile * HOUR + TURN, TURN)
        before = min(max(TURN - self.profile * HOUR, 0), BUSY)
        return turns * BUSY + min(rest, BUSY) - before

    def sessions(self, until: int) -> Iterator[tuple[int, int]]:
        """First and last time of each session, also of one that runs when the fleet begins or ends."""
        for begin in range(self.profile * HOUR - TURN, until, TURN):
            first, last = max(begin, 0), min(begin + BUSY, until)
            if first < last:
                yield first, last

    def joules(self, at: int) -> int:
        """Energy of the GPU until this time."""
        return self.busy(at) * self.watts + (at - self.busy(at)) * IDLE_WATTS

    def value(self, one: Series, at: int, since: int) -> float:
        """The value of a series at this time; `since` is when its session began."""
        used, idle = self.busy(at) - self.busy(since), at - self.busy(at)
        if one.name == "gpuledger_device_energy_joules_total":
            return self.joules(at)
        if one.name == "gpuledger_energy_joules_total":
            return idle * IDLE_WATTS if one.kind == "gpu" else used * self.watts
        if one.name == "gpuledger_gpu_seconds_total":
            return idle if one.kind == "gpu" else used
        if one.name in _OWNER_SECONDS:
            return used // HOUR * HELD if "held" in one.name else used
        if one.name in _TICKS:
            return at
        return _other(one, at)


def _other(one: Series, at: int) -> float:
    """A value that varies as readings do: counters rise, flags and facts stay."""
    if one.value in (0.0, 1.0) or one.name.endswith(("_info", "_seconds", "_price", "_pending")):
        return one.value
    if one.name.endswith(("_total", "_bucket")):
        return one.value + at
    # Scattered over 0.9 to 1.1: quicker than a random generator, and the same in each run.
    return round(one.value * (0.9 + at // STEP * 7919 % 1000 / 5000), 3)


class Fleet:
    """All series of a fleet, as lines for VictoriaMetrics's /api/v1/import.

    Nodes of a kind have the same series but for `texts`.
    """

    def __init__(self, template: Template, nodes: int, gpus: int, begins: int, seconds: int) -> None:
        self.nodes, self.gpus, self.begins, self.seconds = nodes, gpus, begins, seconds
        self._template = template
        self._records = read_records()
        self._written: dict[tuple[int, int, int, int], str] = {}

    @property
    def kinds(self) -> int:
        """The number of different nodes, which follow in turn."""
        return PROFILES // gcd(self.gpus, PROFILES)

    def texts(self, node: int) -> tuple[str, str, str, str]:
        """What only its labels have: its name, the first parts of its uuids and pods, and its namespace."""
        return f"gpu-{node:04}", f"GPU-{node:08x}-", f"train-{node:04}-", f"team-{node % NAMESPACES:02}"

    def counts(self) -> dict[str, int]:
        """Series and samples, without what rules record."""
        kinds = {kind: self._template.count(kind) for kind in ("node", "gpu", "session")}
        samples = self.seconds // STEP + 1
        sessions = [
            (last - first) // STEP + 1
            for number in range(self.nodes * self.gpus)
            for first, last in self._clocks[number % PROFILES].sessions(self.seconds)
        ]
        whole = self.nodes * (kinds["node"] + self.gpus * kinds["gpu"])
        facts = self.nodes * self.gpus * sum(one.name == _FACTS for one in self._template.series)
        left_out = facts * self._first(_FACTS) // STEP
        return {
            "sessions": len(sessions),
            "series": whole + len(sessions) * kinds["session"],
            "samples": whole * samples + sum(sessions) * kinds["session"] - left_out,
        }

    @cached_property
    def _clocks(self) -> list[Clock]:
        return [Clock(profile) for profile in range(PROFILES)]

    def truth(self, since: int, until: int) -> tuple[int, int]:
        """Millijoules, and microseconds of GPU time, of the whole fleet between two times."""
        first, last = since - self.begins, until - self.begins
        joules = sum(
            clock.joules(last) - clock.joules(first)
            for number in range(self.nodes * self.gpus)
            for clock in (self._clocks[number % PROFILES],)
        )
        return 1000 * joules, 1_000_000 * (last - first) * self.nodes * self.gpus

    def lines(self, node: int) -> Iterator[str]:
        """The series of a node, one JSON document each, with the records."""
        name, cards, pods, namespace = self.texts(node)
        target = {"job": "gpuledger", "instance": f"{name}:9400", "node": name}
        for number in range(self.gpus):
            clock = self._clocks[(node * self.gpus + number) % PROFILES]
            uuid = {"uuid": f"{cards}{number:04x}"}
            for place, one in enumerate(self._template.series):
                if one.kind == "gpu" or (one.kind == "node" and not number):
                    given = dict(uuid, gpu=str(number)) if one.kind == "gpu" else {}
                    first = self._first(one.name)
                    yield from self._series(place, one, clock, {**target, **given}, first, self.seconds)
            for turn, (first, last) in enumerate(clock.sessions(self.seconds)):
                owner = {"namespace": namespace, "pod": f"{pods}{number}-{turn}", "pid": str(1000 + turn)}
                for place, one in enumerate(self._template.series):
                    if one.kind == "session":
                        yield from self._series(place, one, clock, {**target, **owner, **uuid}, first, last)

    def _first(self, name: str) -> int:
        """The first time for which a series of a GPU or node is imported."""
        return max(self.seconds - FACTS_KEPT, 0) if name == _FACTS else 0

    def _series(
        self, place: int, one: Series, clock: Clock, given: Mapping[str, str], first: int, last: int
    ) -> Iterator[str]:
        targets = ("job", "instance", "node")
        labels = dict(one.labels) | {
            name: value for name, value in given.items() if name in one.labels or name in targets
        }
        samples = self._samples(place, one, clock, first, last)
        yield _document(one.name, labels, samples)
        if record := self._records.get(one.name):
            own = {name: value for name, value in labels.items() if name in record.labels}
            yield _document(record.name, own, samples)

    def _samples(self, place: int, one: Series, clock: Clock, first: int, last: int) -> str:
        """Values and times as JSON. All GPUs of a profile share them."""
        key = (place, clock.profile, first, last)
        if key not in self._written:
            times = range(first, last + 1, STEP)
            values = [clock.value(one, at, first) for at in times]
            stamps = [(self.begins + at) * 1000 for at in times]
            self._written[key] = f'"values":{json.dumps(values)},"timestamps":{json.dumps(stamps)}'
        return self._written[key]


def _document(name: str, labels: Mapping[str, str], samples: str) -> str:
    # Empty labels are no labels.
    metric = {"__name__": name} | {key: value for key, value in labels.items() if value}
    return f'{{"metric":{json.dumps(metric)},{samples}}}\n'
