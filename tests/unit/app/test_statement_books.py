"""A statement of a fleet is compared with its Prometheus."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuledger.app import statement_books
from gpuledger.app.statements import statement_text
from gpuledger.cli.main import main
from gpuledger.ledger.report.statement.changes import compare_reports
from gpuledger.ledger.report.statement.content import EXPORTS, LEDGER, PROMETHEUS
from gpuledger.ledger.report.usage_report import UsageReport
from statement_helpers import PRICED, entries, statement_of
from unit.ledger.report.fleet.support import one_day

BOUND = 100
SCRAPED = one_day().report(prices=PRICED)
REPORT = replace(SCRAPED, lines=[replace(SCRAPED.lines[0], bound=BOUND), *SCRAPED.lines[1:]])
URL = ("--prometheus", "http://prometheus:9090")


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
        (LEDGER, URL, "with --prometheus, because it was made from ledgers: use its ledger or --books DIR"),
        (EXPORTS, URL, "with --prometheus, because it was made from ledgers"),
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
