"""`report --books`: the exact sum of the reports of all nodes, with the same laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC
from fractions import Fraction
from pathlib import Path

import pytest

from builders import gpu
from exported_ledgers import SINCE, UNTIL, write_export, write_node
from gpuledger.app.exported_reports import load_exports, report_from_exports
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.price_entries import GPU_HOUR, price_parser
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.errors import GpuledgerError, UsageError
from time_books import A, B

NODES = ("node-1", "node-2", "node-3")
gpu_hours = price_parser(GPU_HOUR)
PRICES = Prices(
    kwh=Fraction(3, 10),
    gpu_hour=gpu_hours('[{"node": "node-2", "price": 7}, {"gpu": "*H100*", "price": 2.4}, {"price": 1.1}]'),
    currency="EUR",
)
TEAMS = parse_teams([{"team": "one", "node": "node-1", "pod": "train-0"}, {"team": "rest", "namespace": "*"}])
WITHIN = RequestedRange(float(SINCE), float(UNTIL), "--since", "--until", UTC)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three nodes, each with different GPUs and times; the exports are in `out`."""
    place = tmp_path_factory.mktemp("nodes")
    found = {}
    for number, node in enumerate(NODES):
        cards = [gpu(2 * number + one, name=card.name) for one, card in enumerate((A, B))]
        found[node] = write_node(place / node, *cards, ticks=180 - 40 * number, begins=SINCE + 100.0 * number)
        write_export(found[node], place / "out", node)
    return found


def exported(ledgers: dict[str, Path], by: str, every: str = "", prices: Prices = PRICES) -> UsageReport:
    exports = load_exports(str(ledgers["node-1"].parent.parent / "out"))
    return report_from_exports(exports, by, prices, WITHIN, lambda _, __: None, every=every, teams=TEAMS)


def test_each_gpu_is_of_its_own_node(ledgers: dict[str, Path]) -> None:
    found = exported(ledgers, "gpu")
    nodes = [found.grouping.node_of(one.uuid) for one in sorted(found.gpus, key=lambda one: one.index)]
    assert nodes == [node for node in NODES for _ in range(2)]


def single(
    ledgers: dict[str, Path], by: str, every: str = "", requested: RequestedRange = WITHIN
) -> Iterator[UsageReport]:
    for node, file in ledgers.items():
        with closing(History(file)) as history:
            grouping = find_grouping(by, history.devices, teams=TEAMS, node_of=lambda _, name=node: name)
            within = resolve_watched_range(history, requested)
            yield build_report(history, grouping, PRICES, within, every=every, node=node)


def named_sums(found: Sequence[UsageReport]) -> Counter[tuple[object, ...]]:
    """Every additive amount by period, account and key."""
    sums: Counter[tuple[object, ...]] = Counter()
    for report in found:
        for line in (*report.lines, *report.gpu_accounts):
            name = (report.periods[line.period].name, line.account, line.key)
            for what, amount in additive(line).items():
                sums[*name, what] += amount  # type: ignore[assignment]
        for time in report.unbilled:
            sums[report.periods[time.period].name, time.account, time.key, "unbilled"] += time.microseconds
    return +sums


def additive(line: ReportLine) -> dict[str, Fraction]:
    names = (
        "gpu_microseconds",
        "millijoules",
        "time_cost",
        "energy_cost",
        "resident",
        "allocated",
        "sessions",
    )
    return {name: Fraction(getattr(line, name) or 0) for name in names}


@pytest.mark.parametrize("by", ["owner", "pod", "node", "node,team", "team", "gpu", "model", "command"])
@pytest.mark.parametrize("every", ["", "hour"])
def test_three_exports_are_the_sum_of_three_reports(ledgers: dict[str, Path], by: str, every: str) -> None:
    found, reports = exported(ledgers, by, every), list(single(ledgers, by, every))
    assert named_sums([found]) == named_sums(reports)
    assert found.total.cost == sum((one.total.cost or Fraction(0) for one in reports), Fraction(0))
    assert found.watched == sum(one.watched for one in reports)
    assert found.occupied == sum((one.occupied or Fraction(0) for one in reports), Fraction(0))


def test_totals_do_not_depend_on_the_keys(ledgers: dict[str, Path]) -> None:
    totals = {
        (found.total.gpu_microseconds, found.total.cost)
        for found in (exported(ledgers, by) for by in ("owner", "node", "team", "gpu"))
    }
    assert len(totals) == 1


def test_entries_of_teams_and_prices_that_match_on_one_node_are_not_noted(ledgers: dict[str, Path]) -> None:
    assert not [note for note in exported(ledgers, "team").notes if "entry" in note or "matches" in note]
    prices = Prices(gpu_hour=gpu_hours('[{"node": "node-9", "price": 7}, {"price": 1}]'), currency="EUR")
    (note,) = [note for note in exported(ledgers, "owner", prices=prices).notes if "node-9" in note]
    assert "price.gpu_hour" in note


def test_a_node_that_ended_early_is_named_and_counts(ledgers: dict[str, Path]) -> None:
    notes = "\n".join(exported(ledgers, "node").notes)
    assert "node-3: The range ends at" in notes


# node-3 ends at 86:40, after its last cut at 75 minutes.
@pytest.mark.parametrize("minutes", [82, 86.5, 87, 89])
def test_a_node_that_ended_within_the_quarter_of_the_begin_costs_no_other(
    ledgers: dict[str, Path], minutes: float
) -> None:
    exports = load_exports(str(ledgers["node-1"].parent.parent / "out"))
    within = replace(WITHIN, since=SINCE + minutes * 60)
    found = report_from_exports(exports, "owner", PRICES, within, lambda _, __: None)
    others = {node: ledgers[node] for node in NODES[:2]}
    assert named_sums([found]) == named_sums(list(single(others, "owner", requested=within)))
    assert [note for note in found.notes if note.startswith("Nothing of node-3 is in this report: --since")]
    only = [export for export in exports if export.manifest.node == "node-3"]
    with pytest.raises(UsageError, match="--since"):
        report_from_exports(only, "owner", PRICES, within, lambda _, __: None)


def test_a_gpu_that_moved_is_one_and_its_time_is_divided_by_node(tmp_path: Path) -> None:
    write_export(write_node(tmp_path / "a", ticks=70), tmp_path / "out", "old")
    later = write_node(tmp_path / "b", ticks=70, begins=float(SINCE + 7200))
    write_export(later, tmp_path / "out", "new")
    found = report_from_exports(
        load_exports(str(tmp_path / "out")), "node", PRICES, WITHIN, lambda _, __: None
    )
    assert [one.uuid for one in found.gpus] == [A.uuid, B.uuid]
    assert {line.key[0] for line in found.lines} == {"old", "new"}
    assert sum(one.microseconds for one in found.unbilled if one.account == "unwatched") == 0


def test_a_gap_between_exports_is_no_unwatched_time(tmp_path: Path) -> None:
    file = write_node(tmp_path / "a")
    write_export(file, tmp_path / "out", "a", (SINCE, SINCE + 3600))
    write_export(file, tmp_path / "out", "a", (SINCE + 7200, UNTIL))
    found = report_from_exports(
        load_exports(str(tmp_path / "out")), "node", PRICES, WITHIN, lambda _, __: None
    )
    assert sum(one.microseconds for one in found.unbilled if one.account == "unwatched") == 0
    assert any("has no export of" in note for note in found.notes)


def test_what_cannot_be_reported_is_one_line(ledgers: dict[str, Path]) -> None:
    exports = load_exports(str(ledgers["node-1"].parent.parent / "out"))

    def report(within: RequestedRange = WITHIN, by: str = "owner", prices: Prices = PRICES) -> UsageReport:
        return report_from_exports(exports, by, prices, within, lambda _, __: None)

    with pytest.raises(UsageError, match="spread"):
        report(prices=Prices(idle="spread"))
    with pytest.raises(UsageError, match="unknown --by 'pdo'"):
        report(by="pdo")
    with pytest.raises(GpuledgerError, match="nothing was watched in --since"):
        report(RequestedRange(0.0, 3600.0, "--since", "--until", UTC))
