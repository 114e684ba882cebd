"""Each benchmark's own code runs, with the smallest numbers: `make bench` must not fail after an hour."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpuledger.cli.main import main
from nvml.library import load

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
# Lines of `make bench` and `make prove`: program and document. The page of finance has many tables.
WRITTEN = [
    (name, document)
    for name, document in re.findall(r"/python benchmarks/(\w+)\.py.* --write (\S+)", MAKEFILE)
    if name != "finance_month"
]

Benchmark = Callable[[str], Any]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module


@pytest.mark.parametrize(("name", "document"), WRITTEN)
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
