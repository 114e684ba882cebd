"""`report --prometheus` over days that a real Prometheus holds, against what truly was booked.

Joined ranges, owners that come and go under the same name, a program that restarts under another address,
one that a second job scrapes for a while.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from running import Prometheus, free_port, gpuledger

# One set of nodes and one Prometheus for all of it.
pytestmark = pytest.mark.xdist_group("days")

DAY, HOUR, SCRAPE = 86_400, 3600, 60
# Booked so long before it is told.
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
    """What it draws; None where it is not told at all."""
    since = at - START
    if series == ADA:
        # Three hours of every eight; gone from the pages an hour later.
        within = since % (8 * HOUR)
        return 210.0 + within % 70 if within < 3 * HOUR else 0.0 if within < 4 * HOUR else None
    if series == pod("GPU-0", "train-0"):
        return 300.0 if since < 1.5 * DAY else 0.0 if since < 1.6 * DAY else None
    if series == pod("GPU-1", "train-0"):
        return 320.0 if 1.5 * DAY <= since < 3 * DAY else 0.0 if 3 * DAY <= since < 3.1 * DAY else None
    return 60.0


def is_told_twice(at: int) -> bool:
    """Whether a second job scrapes node b: for an hour, over a report's midnight, and once."""
    since = at - START
    return DAY <= since < DAY + HOUR or abs(since - SINCE + START - DAY) < 2 * HOUR or since == 2 * DAY


EVERY = (ADA, pod("GPU-0", "train-0"), pod("GPU-1", "train-0"), *IDLE)


class Made:
    """Two nodes' counters, minute by minute, as pages and as the truth."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = defaultdict(list)
        self.truth: dict[Labels, float] = defaultdict(float)
        told: dict[Labels, float] = {}
        devices = {"GPU-0": 7e8, "GPU-1": 3e8}
        seconds = 0.0
        for at in range(START, START + DAYS * DAY, SCRAPE):
            # Node a's program is another one, elsewhere, from noon of the third day: its seconds begin at 0.
            moved = at >= START + 2.5 * DAY
            seconds = 0.0 if at == START + 2.5 * DAY else seconds
            for series in EVERY:
                power = watts(series, at - LAG)
                if power is None:
                    told.pop(series, None)
                    continue
                new = series not in told and at > START
                told[series] = told.get(series, 0.0) + power * SCRAPE
                uuid = series[0][1]
                devices[uuid] += power * SCRAPE
                self.add("gpuledger_energy_joules", series, at, 0.0 if new else told[series], moved=moved)
                if at - LAG - SCRAPE >= SINCE and at - LAG <= UNTIL:
                    self.truth[series] += power * SCRAPE
            for uuid, value in devices.items():
                self.add("gpuledger_device_energy_joules", labels(uuid=uuid), at, value, moved=moved)
                self.add("gpuledger_ticks", labels(), at, at, moved=moved, uuid=uuid)
            if told.get(pod("GPU-0", "train-0")) is not None or moved:
                seconds += SCRAPE
                owner = labels(uuid="GPU-0", owner_kind="pod", namespace="ml", pod="long", container="c")
                self.add("gpuledger_owner_resident_seconds", owner, at, seconds, moved=moved)

    def add(self, family: str, series: Labels, at: int, value: float, *, moved: bool, uuid: str = "") -> None:
        node = "a" if (uuid or dict(series)["uuid"]) == "GPU-0" else "b"
        instance = f"{node}{'-later' if moved and node == 'a' else ''}:9400"
        for job in ("gpuledger", *(["second"] if node == "b" and is_told_twice(at) else [])):
            where = (*series, ("node", node), ("instance", instance), ("job", job))
            written = ",".join(f'{name}="{word}"' for name, word in where)
            self.lines[family].append(f"{family}_total{{{written}}} {value:.3f} {at}")

    def text(self) -> str:
        families = ["\n".join((f"# TYPE {family} counter", *lines)) for family, lines in self.lines.items()]
        return "\n".join((*families, "# EOF\n"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Made]]:
    """A Prometheus that has scraped two nodes for four days."""
    folder, made = tmp_path_factory.mktemp("days"), Made()
    file = folder / "days.om"
    Path(file).write_text(made.text())
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    real = Prometheus(folder, "global: {}\n", free_port())
    try:
        yield real, made
    finally:
        real.stop()


def report(real: Prometheus, *arguments: str) -> dict[str, Any]:
    between = [datetime.fromtimestamp(at, UTC).isoformat() for at in (SINCE, UNTIL)]
    flags = ("--since", between[0], "--until", between[1], "--format", "json")
    done = gpuledger("report", "--prometheus", real.url, *flags, *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_over_days_every_row_is_true_within_a_bound_of_minutes(kept: tuple[Prometheus, Made]) -> None:
    real, made = kept
    found = report(real, "--by", "owner")
    told = {(row["owner"] or row["account"]): row for row in (*found["rows"], *found["own"])}
    truth: dict[str, float] = defaultdict(float)
    for series, joules in made.truth.items():
        names = dict(series)
        truth[names.get("pod") or names.get("user") or names["account"]] += joules * 1000
    assert {name for name in told if told[name]["millijoules"]} == {"train-0", "ada", "idle"}
    for name, millijoules in truth.items():
        bound = told[name]["bound_millijoules"]
        assert abs(told[name]["millijoules"] - millijoules) <= bound, name
        # Minutes at either end, and some more for ada, whose series began anew several times a day.
        assert bound <= 0.003 * millijoules, name
    total = found["total"]
    assert abs(total["millijoules"] - sum(truth.values())) <= total["bound_millijoules"]
    assert not any("nothing before" in note for note in found["notes"])
    assert any("1 GPU is scraped by several targets: counted once" in note for note in found["notes"])


def test_rows_and_the_gpus_counters_agree(kept: tuple[Prometheus, Made]) -> None:
    found = report(kept[0], "--by", "gpu")
    gpus = sum(gpu["millijoules"] for gpu in found["gpus"])
    assert found["total"]["millijoules"] == pytest.approx(gpus, abs=found["total"]["bound_millijoules"])
    assert "unseen" not in {row["account"] for row in found["own"]}


def test_hours_outlast_a_restart_under_another_address(kept: tuple[Prometheus, Made]) -> None:
    found = report(kept[0], "--by", "pod")
    (row,) = (row for row in found["rows"] if row["pod"] == "long")
    # From SINCE until its series ended, and from the restart on; a scrape more or less at each end.
    seconds = (START + 1.6 * DAY - SINCE) + (UNTIL - START - 2.5 * DAY)
    assert row["gpu_hours"] * HOUR == pytest.approx(seconds, abs=4 * SCRAPE)
