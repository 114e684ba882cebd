"""A statement of a fleet is compared with its Prometheus, or with the ledgers of its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuledger.app import node_ledgers, statement_books
from gpuledger.app.statements import statement_text
from gpuledger.cli.main import main
from gpuledger.ledger.report.statement.changes import compare_reports
from gpuledger.ledger.report.statement.content import EXPORTS, LEDGER, PROMETHEUS
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import GpuledgerError
from statement_helpers import PRICED, entries, statement_of
from unit.ledger.report.fleet.support import one_day

BOUND = 100
SCRAPED = one_day().report(prices=PRICED)
REPORT = replace(SCRAPED, lines=[replace(SCRAPED.lines[0], bound=BOUND), *SCRAPED.lines[1:]])
URL = ("--prometheus", "http://prometheus:9090")
FLEET = ("--fleet", "http://lab:9410")
BOOKED = entries().report(PRICED)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "fleet.json"
    found.write_text(statement_text(statement_of(REPORT, source=PROMETHEUS)))
    return found


def prometheus(monkeypatch: pytest.MonkeyPatch, report: UsageReport) -> list[Any]:
    """A Prometheus with this report; returns the calls."""
    calls: list[Any] = []

    def report_from_prometheus(*values: Any, **more: Any) -> UsageReport:
        calls.append((values, more))
        return report

    monkeypatch.setattr(statement_books, "report_from_prometheus", report_from_prometheus)
    return calls


def later_by(millijoules: int) -> UsageReport:
    """The report of other scrapes, which differ by this energy in the first row."""
    first, *others = REPORT.lines
    methods = {method: amount + millijoules for method, amount in first.methods.items()}
    return replace(REPORT, lines=[replace(first, methods=methods), *others])


def test_the_same_range_and_terms_are_queried(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = prometheus(monkeypatch, REPORT)
    assert main(["report", "--verify", str(file), *URL]) == 0
    assert "equal: the same amounts follow from Prometheus prometheus" in capsys.readouterr().out
    (((_, by, prices, requested, *_), more),) = calls
    assert (by, prices, more["every"]) == (REPORT.grouping.name, PRICED, "")
    assert (requested.since, requested.until) == (REPORT.period.since, REPORT.period.until)


def test_amounts_within_both_bounds_are_equal(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus(monkeypatch, later_by(2 * BOUND))
    assert main(["report", "--verify", str(file), *URL]) == 0


def test_amounts_beyond_both_bounds_are_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prometheus(monkeypatch, later_by(2 * BOUND + 1))
    assert main(["report", "--verify", str(file), *URL]) == 1
    assert "    ml/t: kWh " in capsys.readouterr().out


@pytest.mark.parametrize("difference", [-21, -20, 20, 21])
def test_time_is_compared_by_its_own_bounds(difference: int) -> None:
    line = replace(REPORT.lines[0], gpu_microseconds=1000, time_bound=10)
    then = statement_of(replace(REPORT, lines=[line]), source=PROMETHEUS)
    now = replace(REPORT, lines=[replace(line, gpu_microseconds=1000 + difference)])
    assert bool(compare_reports(then, now).rows) == (abs(difference) > 20)


def test_without_a_url_only_the_file_is_verified(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--verify", str(file)]) == 0
    assert "only the file was verified: it was made from a Prometheus: add --prometheus URL" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("source", "words", "text"),
    [
        (PROMETHEUS, ("--books", "/nowhere"), "with --books, because it was made from a Prometheus"),
        (
            LEDGER,
            URL,
            "with --prometheus, because it was made from one ledger: use its ledger or --books DIR",
        ),
        (LEDGER, FLEET, "with --fleet, because it was made from one ledger: use its ledger or --books DIR"),
        (PROMETHEUS, FLEET, "with --fleet, because it was made from a Prometheus: use --prometheus URL"),
        (EXPORTS, URL, "with --prometheus, because it was made from ledgers: use --books DIR or --fleet URL"),
    ],
)
def test_what_is_named_for_another_source_is_never_ignored(
    source: str, words: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "statement.json"
    report = REPORT if source == PROMETHEUS else entries().report(PRICED)
    file.write_text(statement_text(statement_of(report, source=source)))
    assert main(["report", "--verify", str(file), *words]) == 2
    assert text in capsys.readouterr().err


def nodes(monkeypatch: pytest.MonkeyPatch, report: UsageReport) -> list[Any]:
    """A fleet of which the nodes have this report; returns the calls."""
    calls: list[Any] = []

    def report_from_nodes(_: Any, *values: Any) -> UsageReport:
        calls.append(values)
        return report

    monkeypatch.setattr(node_ledgers, "report_from_nodes", report_from_nodes)
    return calls


@pytest.fixture
def of_nodes(tmp_path: Path) -> Path:
    found = tmp_path / "nodes.json"
    found.write_text(statement_text(statement_of(BOOKED, source=EXPORTS)))
    return found


def test_a_statement_of_several_ledgers_is_compared_with_the_nodes_of_a_fleet(
    of_nodes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = nodes(monkeypatch, BOOKED)
    assert main(["report", "--verify", str(of_nodes), *FLEET]) == 0
    assert "equal: the same amounts follow from the nodes of http://lab:9410" in capsys.readouterr().out
    ((terms, requested, _),) = calls
    assert (terms.by, terms.prices) == (BOOKED.grouping.name, PRICED)
    assert (requested.since, requested.until) == (BOOKED.period.since, BOOKED.period.until)


def test_a_millijoule_that_the_nodes_do_not_have_is_named(
    of_nodes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = BOOKED.lines
    methods = {method: amount + 1 for method, amount in first.methods.items()}
    nodes(monkeypatch, replace(BOOKED, lines=[replace(first, methods=methods), *others]))
    assert main(["report", "--verify", str(of_nodes), *FLEET]) == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_a_fleet_that_is_gone_is_an_error_and_no_difference(
    of_nodes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> UsageReport:
        raise GpuledgerError("http://lab:9410 cannot be reached")

    monkeypatch.setattr(node_ledgers, "report_from_nodes", fail)
    assert main(["report", "--verify", str(of_nodes), *FLEET]) == 2
    assert "the statement cannot be compared: http://lab:9410 cannot be reached" in capsys.readouterr().err


def test_without_a_source_only_the_file_is_verified(
    of_nodes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--verify", str(of_nodes)]) == 0
    assert "add --books DIR or --fleet URL" in capsys.readouterr().out
