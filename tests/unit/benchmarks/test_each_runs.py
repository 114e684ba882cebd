"""Each benchmark's own code runs, with the smallest numbers: `make bench` must not fail after an hour."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gpuledger.cli.main import main
from nvml.library import load

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def _variables() -> dict[str, str]:
    return dict(re.findall(r"^(\w+) *:= (.*)$", MAKEFILE, re.MULTILINE))


def _written() -> list[tuple[str, str]]:
    """Program and page of each part of `make prove`. The page of finance has many tables."""
    made = _variables()
    names = f"{made['PROOFS']} {made['TIMED']}".replace("$(TIMED)", "").split()
    pages = {name: f"docs/{made.get(f'PAGE_{name}', 'performance')}.md" for name in names}
    return [(name, page) for name, page in pages.items() if name not in ("finance_month", "fuzz")]


Benchmark = Callable[[str], Any]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module


@pytest.mark.parametrize(("name", "document"), _written())
def test_a_table_has_its_place_in_the_document(benchmark: Benchmark, name: str, document: str) -> None:
    begin, end = benchmark(name).MARKS
    text = (ROOT / document).read_text("utf-8")
    assert text.count(begin) == text.count(end) == 1 and text.index(begin) < text.index(end)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_a_program_can_be_imported(benchmark: Benchmark, name: str) -> None:
    assert benchmark(name).__doc__


def test_a_node_on_the_driver_has_its_calls(
    benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    state = benchmark("node").nvml_state(tmp_path, 2, 4)
    monkeypatch.setenv("TEST_NVML_STATE", str(state.path))
    values = {"source": "nvml", "state_dir": "none", "kubernetes.enabled": "false", "slurm.enabled": "false"}
    tick, render, calls = benchmark("one_node").measure_node(values, 1, 0.0)
    assert tick > 0 and render > 0 and calls > 2 * 10


def test_a_simulated_node_has_a_row_without_calls(benchmark: Benchmark, tmp_path: Path) -> None:
    node = benchmark("node")
    file = node.scenario(tmp_path, 2, 3)
    values = {"source": f"simulator:{file}", "state_dir": "none"}
    tick, render, calls = benchmark("one_node").measure_node(values, 1, 0.0)
    row = node.Figures("simulator", 2, 3, tick, render, calls, 1.0, 1.0, 30.0)
    assert node.table([row])[-1].startswith("| simulator | 2 | 3 | ") and calls is None


def test_ways_to_split_time_are_compared_with_the_script(
    benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = benchmark("split_error")
    monkeypatch.setattr(splits, "HOUR", 240.0)
    script = splits.Truth(
        splits.CARD,
        [splits.Has(splits.pod("a"), splits.Fraction(1, 4), -1.0, 120.0)],
        [splits.Runs(splits.user("guest"), 60.0)],
    )
    assert splits.true_time(script) == {"a": 30.0, "guest": 45.0 + 120.0}
    billed = {name: bill(script, splits.random.Random(1)) for name, bill in splits.METHODS.items()}
    assert billed["gpuledger"] == {"a": 30.0, "guest": 165.0, "idle": 45.0}
    # Seen in two minutes, of which the first and the last are a minute apart.
    assert billed["OpenCost"] == {"a": 15.0}
    assert billed["DCGM label"] == {"a": 120.0}


def test_the_owner_lookup_has_four_figures(
    benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = benchmark("identity")
    monkeypatch.setattr(identity, "TICKS", 2)
    monkeypatch.setattr(identity, "CHURN", 3)
    monkeypatch.setattr("sys.argv", ["identity.py"])
    identity.main()
    written = capsys.readouterr()
    assert len(re.findall(r"^\| .* \| \d+\.\d\d \|$", written.out, re.MULTILINE)) == 3
    assert "3 pods came and went, 1 process is cached" in written.out


def test_postings_are_measured_with_and_without_history(
    benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = benchmark("ledger")
    monkeypatch.setattr(ledger, "YEAR_HOURS", 2)
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    ledger.add_a_year(tmp_path / "old")
    subjects = [
        ledger.Subject(name, folder and tmp_path / folder)
        for name, folder in (("a", None), ("b", "new"), ("c", "old"))
    ]
    for tick in range(2):
        for subject in subjects:
            subject.tick(ledger.snapshot(tick))
    assert len(ledger.table([subject.figures() for subject in subjects])) == 7


def test_reports_read_the_ledger_that_they_are_measured_on(
    benchmark: Benchmark,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = benchmark("report")
    monkeypatch.setattr(report, "HOURS", 27)
    monkeypatch.setattr(report, "DETAIL_DAYS", 1)
    monkeypatch.setattr(report, "GPUS", 1)
    report.write_ledger(tmp_path)
    assert main([*report.COMMANDS["report, the last week"], "--state-dir", str(tmp_path)]) == 0
    assert "/pod-0-" in capsys.readouterr().out


def test_every_budget_has_a_row(benchmark: Benchmark) -> None:
    lines = (ROOT / "docs" / "performance.md").read_text("utf-8").partition("budgets: begin -->")[2]
    budgets = [line.split(" | ")[0] for line in benchmark("budgets").table()]
    assert len(budgets) > 10
    assert budgets == [line.split(" | ")[0] for line in lines.partition("<!--")[0].strip().splitlines()]


def test_agents_get_the_same_targets(benchmark: Benchmark, tmp_path: Path) -> None:
    agent = benchmark("agent")
    assert len(agent.pages(16)) == len(set(agent.pages(16)))
    for name in agent.AGENTS:
        command = agent.command(name, tmp_path, ["127.1.0.1:9"], 5, "http://127.0.0.1:8/write")
        assert any(str(tmp_path) in word for word in command)


def test_the_other_programs_count_their_smallest_work(benchmark: Benchmark) -> None:
    assert benchmark("scrapers").churn(70).startswith("70 process starts and exits")
    remote_write = benchmark("remote_write")
    assert len(remote_write.scrapes()) == remote_write.TARGETS
    counts = {work: [1e6] for work in benchmark("instructions").WORKS}
    assert len(list(benchmark("instructions").table(counts))) == 2 + len(counts)


_OWNER = 'owner_kind="pod",namespace="ml",pod="a",container="main",user="",slurm_job=""'
_NODE_PAGE = f"""\
gpuledger_ticks_total 7
gpuledger_device_power_watts{{uuid="GPU-0",mig_instance=""}} 412.5
gpuledger_device_energy_joules_total{{uuid="GPU-0"}} 9
gpuledger_energy_joules_total{{uuid="GPU-0",account="process",method="measured",{_OWNER}}} 0
gpuledger_energy_joules_total{{uuid="GPU-1",account="process",method="measured",{_OWNER}}} 0
gpuledger_gpu_seconds_total{{uuid="GPU-0",mig_instance="",account="owner",{_OWNER}}} 0
gpuledger_gpu_seconds_total{{uuid="GPU-0",mig_instance="",account="idle"}} 0
"""


def test_the_series_of_a_large_fleet_balance(benchmark: Benchmark) -> None:
    series = benchmark("fleet_series")
    hours, nodes, gpus = 26, 2, 7
    begins = 1_000_000 * series.HOUR
    fleet = series.Fleet(series.Template(_NODE_PAGE), nodes, gpus, begins, hours * series.HOUR)
    rises: dict[tuple[str, str], int] = {}
    samples = 0
    for line in chain.from_iterable(map(fleet.lines, range(nodes))):
        one = json.loads(line)
        name, is_recorded = one["metric"]["__name__"], ":" in one["metric"]["__name__"]
        assert is_recorded is ("instance" not in one["metric"])
        key = name, one["metric"].get("uuid", "")
        rises[key] = rises.get(key, 0) + one["values"][-1] - one["values"][0]
        assert len(one["values"]) == len(one["timestamps"])
        samples += 0 if is_recorded else len(one["values"])
    energy = sum(rise for (name, _), rise in rises.items() if name == "gpuledger_energy_joules_total")
    time = sum(rise for (name, _), rise in rises.items() if name == "gpuledger:gpu_seconds:max")
    for uuid in {uuid for _, uuid in rises if uuid}:
        assert (
            rises["gpuledger_energy_joules_total", uuid]
            == rises["gpuledger_device_energy_joules_total", uuid]
        )
        assert rises["gpuledger_gpu_seconds_total", uuid] == hours * series.HOUR
    assert fleet.truth(begins, begins + hours * series.HOUR) == (1000 * energy, 1_000_000 * time)
    assert fleet.counts()["samples"] == samples


def test_nodes_of_a_kind_differ_by_their_texts_only(benchmark: Benchmark) -> None:
    series = benchmark("fleet_series")
    fleet = series.Fleet(series.Template(_NODE_PAGE), 40, 8, 0, 26 * series.HOUR)
    assert fleet.kinds == 3
    for node in (4, 39):
        lines = "".join(fleet.lines(node % fleet.kinds))
        for old, new in zip(fleet.texts(node % fleet.kinds), fleet.texts(node), strict=True):
            lines = lines.replace(old, new)
        assert lines == "".join(fleet.lines(node))
    assert "".join(fleet.lines(0)).replace(*fleet.texts(0)[:1], *fleet.texts(1)[:1]) != "".join(
        fleet.lines(1)
    )


def test_a_copy_of_a_node_has_other_labels_and_the_same_samples(benchmark: Benchmark) -> None:
    copies = benchmark("fleet_copies")
    blocks = [(b"a\x01node\x01n1\x01", b"n1 is a sample"), (b"b\x01uuid\x01c1-0\x01", b"")]

    def exported(blocks: list[tuple[bytes, bytes]]) -> bytes:
        parts = (len(part).to_bytes(4, "big") + part for block in blocks for part in block)
        return b"from 0 to 7 days" + b"".join(parts)

    renamed = [(b"a\x01node\x01n1000\x01", b"n1 is a sample"), (b"b\x01uuid\x01c1000-0\x01", b"")]
    node = copies.NodeBlocks(exported(blocks), ["n1", "c1-"])
    assert node.copy(["n1000", "c1000-"]) == exported(renamed)


def test_the_table_of_a_large_fleet_says_whether_a_total_is_exact(
    benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, scale = benchmark("fleet_series"), benchmark("fleet_scale")
    fleet = series.Fleet(series.Template(_NODE_PAGE), 1, 2, 0, 26 * series.HOUR)
    ranges: list[tuple[str, int, bool]] = []

    def measure(url: str, server: object, uid: str, until: int, seconds: int, *, recorded: bool) -> object:
        ranges.append((uid, seconds, recorded))
        return scale.Measured([(1.0, "a"), (2.0, "b")], {"b": "too many series"}, 3, 4.0)

    day = fleet.truth(series.HOUR, 25 * series.HOUR)
    totals = iter((day, (day[0] + 1, day[1]), day))
    monkeypatch.setattr(scale, "measure_dashboard", measure)
    used = benchmark("command_usage").CommandUsage(0, 1.0, 2.0, 3.0, "")
    monkeypatch.setattr(scale, "measure_report", lambda *given: scale.Report(used, 4.0, 5.0, 6, next(totals)))
    lines = list(scale.table(fleet, "http://nowhere", None))
    assert {recorded for _, _, recorded in ranges} == {True, False}
    assert {seconds for _, seconds, _ in ranges} == {6 * series.HOUR, series.DAY}
    assert "| fleet | 24 h | exported | b | too many series |" in lines
    assert [line.split(" | ")[-1] for line in lines[-3:]] == [
        "exact |",
        f"off: {(day[0] + 1, day[1])} |",
        "exact |",
    ]


def test_memory_of_a_command_is_not_that_of_the_program_that_starts_it(benchmark: Benchmark) -> None:
    command_usage = benchmark("command_usage")
    command = [sys.executable, "-c", "print('done'); raise SystemExit(3)"]
    before = command_usage.run_command(command)
    ballast = bytes(100 << 20)[:-1] + b"1"
    after = command_usage.run_command(command)
    assert (before.status, before.output) == (3, "done\n") and before.memory > 1
    assert after.memory < before.memory + len(ballast) / 2 / (1 << 20)


def test_a_dashboard_can_be_measured_without_recording_rules(benchmark: Benchmark) -> None:
    changed = benchmark("fleet_scale").exported('increase(gpuledger:energy_joules:max{uuid="a"}[1h])')
    assert changed == 'increase(gpuledger_energy_joules_total{uuid="a"}[1h])'
