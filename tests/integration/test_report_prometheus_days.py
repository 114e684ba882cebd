"""`report --prometheus` over days of a real Prometheus, against the energy that was booked.

Covers joined ranges, owners that come and go under the same name, a program that restarts with another
address, and a node that a second job scrapes for a while.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from running import Prometheus, create_blocks, free_port, gpuledger

# One worker, with one Prometheus for all tests.
pytestmark = pytest.mark.group("days")

DAY, HOUR, SCRAPE = 86_400, 3600, 60
# Seconds between booking and export.
LAG = 30
DAYS = 4
START = int(time.time() // DAY - DAYS - 1) * DAY
SINCE, UNTIL = START + 14 * HOUR, START + 3 * DAY + 7 * HOUR
Labels = tuple[tuple[str, str], ...]


def labels(**pairs: str) -> Labels:
    return tuple(pairs.items())


def pod(uuid: str, name: str) -> Labels:
    owner = {"namespace": "ml", "pod": name, "container": "main", "owner_kind": "pod"}
    return labels(uuid=uuid, account="process", method="measured", **owner)


ADA = labels(uuid="GPU-0", account="process", method="activity", owner_kind="user", user="ada")
IDLE = [labels(uuid=f"GPU-{number}", account="idle", method="measured") for number in (0, 1)]


def watts(series: Labels, at: int) -> float | None:
    """Return the power of a series; None if it is not exported."""
    since = at - START
    if series == ADA:
        # Active for three hours of every eight; the series ends an hour later.
        within = since % (8 * HOUR)
        return 210.0 + within % 70 if within < 3 * HOUR else 0.0 if within < 4 * HOUR else None
    if series == pod("GPU-0", "train-0"):
        return 300.0 if since < 1.5 * DAY else 0.0 if since < 1.6 * DAY else None
    if series == pod("GPU-1", "train-0"):
        return 320.0 if 1.5 * DAY <= since < 3 * DAY else 0.0 if 3 * DAY <= since < 3.1 * DAY else None
    return 60.0


def is_scraped_twice(at: int) -> bool:
    """Return whether a second job scrapes node b: for an hour, around a midnight of the report, and once."""
    since = at - START
    return DAY <= since < DAY + HOUR or abs(since - SINCE + START - DAY) < 2 * HOUR or since == 2 * DAY


GAUGES = ("gpuledger_gpu_seconds_pending", "gpuledger_books_info")
EVERY = (ADA, pod("GPU-0", "train-0"), pod("GPU-1", "train-0"), *IDLE)


class GeneratedDays:
    """The counters of two nodes minute by minute: as OpenMetrics text, and the true energy."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)
        self.true_energy: dict[Labels, float] = defaultdict(float)
        self.true_time: dict[str, float] = defaultdict(float)
        self.time: dict[Labels, float] = {}
        self.watched: dict[str, float] = {}
        exported: dict[Labels, float] = {}
        devices = {"GPU-0": 7e8, "GPU-1": 3e8}
        seconds = 0.0
        for at in range(START, START + DAYS * DAY, SCRAPE):
            # At noon of the third day, node a's program restarts with another address and seconds from 0.
            moved = at >= START + 2.5 * DAY
            seconds = 0.0 if at == START + 2.5 * DAY else seconds
            for series in EVERY:
                power = watts(series, at - LAG)
                if power is None:
                    exported.pop(series, None)
                    continue
                new = series not in exported and at > START
                exported[series] = exported.get(series, 0.0) + power * SCRAPE
                uuid = series[0][1]
                devices[uuid] += power * SCRAPE
                self.add("gpuledger_energy_joules", series, at, 0.0 if new else exported[series], moved=moved)
                if at - LAG - SCRAPE >= SINCE and at - LAG <= UNTIL:
                    self.true_energy[series] += power * SCRAPE
            for uuid, value in devices.items():
                self.add("gpuledger_device_energy_joules", labels(uuid=uuid), at, value, moved=moved)
                self.add("gpuledger_ticks", labels(), at, at, moved=moved, uuid=uuid)
            if at == START + 2.5 * DAY:
                # Its counters of time begin at 0.
                self.time = {
                    series: value for series, value in self.time.items() if dict(series)["uuid"] != "GPU-0"
                }
                del self.watched["GPU-0"]
            for uuid in devices:
                self.add_time(uuid, at, moved=moved)
            self.add("gpuledger_books_info", labels(basis="allocation"), at, 1, moved=moved, uuid="GPU-0")
            if exported.get(pod("GPU-0", "train-0")) is not None or moved:
                seconds += SCRAPE
                owner = labels(uuid="GPU-0", owner_kind="pod", namespace="ml", pod="long", container="c")
                self.add("gpuledger_owner_resident_seconds", owner, at, seconds, moved=moved)

    def add_time(self, uuid: str, at: int, *, moved: bool) -> None:
        """A minute of a Gpu: equally to the owners that use it, exported as 0 at first; else idle."""
        self.watched[uuid] = self.watched.get(uuid, 0.0) + SCRAPE
        self.add("gpuledger_gpu_watched_seconds", labels(uuid=uuid), at, self.watched[uuid], moved=moved)
        power = {one: watts(one, at - LAG) for one in EVERY[:3] if one[0][1] == uuid}
        users = [one for one, value in power.items() if value]
        power[labels(uuid=uuid, account="process", method="idle")] = 0.0
        pending = 0.0
        for one, value in power.items():
            names = {**dict(one), "account": "owner"}
            if names.pop("method") == "idle":
                names = {"uuid": uuid, "account": "idle"}
                part = 0.0 if users else SCRAPE
            else:
                part = SCRAPE / len(users) if value else 0.0
            series = labels(**names)
            if value is None:
                self.time.pop(series, None)
                continue
            new = series not in self.time and at > START
            self.time[series] = self.time.get(series, 0.0) + part
            pending += self.time[series] if new else 0.0
            self.add("gpuledger_gpu_seconds", series, at, 0.0 if new else self.time[series], moved=moved)
            if at - SCRAPE >= SINCE and at <= UNTIL:
                self.true_time[names.get("pod") or names.get("user") or "idle"] += part
        self.add("gpuledger_gpu_seconds_pending", labels(uuid=uuid), at, pending, moved=moved)

    def add(self, family: str, series: Labels, at: int, value: float, *, moved: bool, uuid: str = "") -> None:
        node = "a" if (uuid or dict(series)["uuid"]) == "GPU-0" else "b"
        instance = f"{node}{'-later' if moved and node == 'a' else ''}:9400"
        for job in ("gpuledger", *(["second"] if node == "b" and is_scraped_twice(at) else [])):
            where = (*series, ("node", node), ("instance", instance), ("job", job))
            written = ",".join(f'{name}="{word}"' for name, word in where)
            name = family if family in GAUGES else f"{family}_total"
            self.lines[family].append(f"{name}{{{written}}} {value:.3f} {at}")

    def text(self) -> str:
        families = [
            "\n".join((f"# TYPE {family} {'gauge' if family in GAUGES else 'counter'}", *lines))
            for family, lines in self.lines.items()
        ]
        return "\n".join((*families, "# EOF\n"))


@pytest.fixture(scope="module")
def stored_days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, GeneratedDays]]:
    """A Prometheus with the data of two nodes over four days."""
    folder, days = tmp_path_factory.mktemp("days"), GeneratedDays()
    file = folder / "days.om"
    file.write_text(days.text())
    create_blocks(file, folder / "data")
    real = Prometheus(folder, "global: {}\n", free_port())
    try:
        yield real, days
    finally:
        real.stop()


@cache
def report(real: Prometheus, *arguments: str) -> dict[str, Any]:
    between = [datetime.fromtimestamp(at, UTC).isoformat() for at in (SINCE, UNTIL)]
    flags = ("--since", between[0], "--until", between[1], "--format", "json")
    done = gpuledger("report", "--prometheus", real.url, *flags, *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_each_row_over_days_is_right_within_a_bound_of_minutes(
    stored_days: tuple[Prometheus, GeneratedDays],
) -> None:
    real, days = stored_days
    found = report(real, "--by", "owner")
    reported = {(row["owner"] or row["account"]): row for row in (*found["rows"], *found["own"])}
    truth: dict[str, float] = defaultdict(float)
    for series, joules in days.true_energy.items():
        names = dict(series)
        truth[names.get("pod") or names.get("user") or names["account"]] += joules * 1000
    assert {name for name in reported if reported[name]["millijoules"]} == {"train-0", "ada", "idle"}
    for name, millijoules in truth.items():
        bound = reported[name]["bound_millijoules"]
        assert abs(reported[name]["millijoules"] - millijoules) <= bound, name
        # Minutes at either end, and more for ada, because that series begins several times a day.
        assert bound <= 0.003 * millijoules, name
    total = found["total"]
    assert abs(total["millijoules"] - sum(truth.values())) <= total["bound_millijoules"]
    assert not any("nothing before" in note for note in found["notes"])
    assert any("1 GPU is scraped by several targets: counted once" in note for note in found["notes"])


def test_rows_agree_with_the_counters_of_the_gpus(stored_days: tuple[Prometheus, GeneratedDays]) -> None:
    found = report(stored_days[0], "--by", "gpu")
    gpus = sum(gpu["millijoules"] for gpu in found["gpus"])
    assert found["total"]["millijoules"] == pytest.approx(gpus, abs=found["total"]["bound_millijoules"])
    assert "unseen" not in {row["account"] for row in found["own"]}


def test_gpu_hours_of_each_row_are_right_within_the_bound(
    stored_days: tuple[Prometheus, GeneratedDays],
) -> None:
    """Owners share a GPU, and one program restarts with another address and its counters at 0."""
    real, days = stored_days
    found = report(real, "--by", "owner")
    reported = {(row["owner"] or row["account"]): row for row in (*found["rows"], *found["own"])}
    for name, seconds in days.true_time.items():
        bound = reported[name]["bound_microseconds"]
        assert abs(reported[name]["gpu_microseconds"] - seconds * 1e6) <= bound, name
        # ada's counter begins several times a day, once on another address.
        assert bound <= 0.1 * seconds * 1e6, name
    total = found["total"]
    assert abs(total["gpu_microseconds"] - sum(days.true_time.values()) * 1e6) <= total["bound_microseconds"]


def test_parts_of_the_range_and_changes_of_prices_add_up(
    stored_days: tuple[Prometheus, GeneratedDays],
) -> None:
    """Each hour has the price of its day, for the GPUs of its node."""
    real, days = stored_days
    noon = datetime.fromtimestamp(START + 2.5 * DAY, UTC).strftime("%Y-%m-%dT%H:00")
    prices = [{"node": "a", "until": noon, "price": 2}, {"node": "a", "price": 3}, {"price": 7}]
    flags = ("--by", "node", "--price.gpu-hour", json.dumps(prices), "--report.timezone", "UTC")
    whole = report(real, *flags)
    daily = report(real, *flags, "--every", "day")
    assert len({row["period"] for row in daily["rows"]}) == 4
    for total in (whole["total"], daily["total"]):
        assert (
            abs(total["gpu_microseconds"] - sum(days.true_time.values()) * 1e6) <= total["bound_microseconds"]
        )
    costs = {row["node"]: row["time_cost"] for row in (*whole["rows"], *whole["own"]) if row["time_cost"]}
    hours = {row["node"]: row["gpu_hours"] for row in (*whole["rows"], *whole["own"]) if row["gpu_hours"]}
    assert costs["b"] == pytest.approx(7 * hours["b"], rel=1e-6)
    assert 2 * hours["a"] < costs["a"] < 3 * hours["a"]


def test_resident_hours_continue_after_a_restart_with_another_address(
    stored_days: tuple[Prometheus, GeneratedDays],
) -> None:
    found = report(stored_days[0], "--by", "pod")
    (row,) = (row for row in found["rows"] if row["pod"] == "long")
    # From SINCE to the end of the series, and from the restart to UNTIL, plus or minus a scrape at each end.
    seconds = (START + 1.6 * DAY - SINCE) + (UNTIL - START - 2.5 * DAY)
    assert row["resident_gpu_hours"] * HOUR == pytest.approx(seconds, abs=4 * SCRAPE)
