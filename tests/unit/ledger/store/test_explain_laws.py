"""Laws: explanations and receipts sum to the row of the report, whatever prices, basis, range and age."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from builders import FakeClock, gpu, instance, process
from gpuledger.ledger.report.explain import Explanation
from gpuledger.ledger.report.formats import row_as_json
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.ranges import ReportRange
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.report_keys import GROUPINGS
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.report.usage_report import ReportLine, UsageReport
from gpuledger.ledger.store.explain_query import ExplainScope, explain_usage
from gpuledger.ledger.store.explain_target import ExplainTarget
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_query import ReceiptScope, read_receipt
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import Run
from money_helpers import prices
from report_helpers import build_reports_of_rows_once, exact_energy_cost, exact_time_cost, folded

ZONE = ZoneInfo("Asia/Kolkata")
# 2023-11-14 10:00 UTC, 15:30 in the zone: a full hour there begins half an hour later.
BEGIN = 1_699_956_000.0
FIRST = int(BEGIN) // QUARTER
A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA A100", sm_count=108)
PART = instance(B, 2, 0, profile="3g.40gb", sm_count=42)
TEAMS = parse_teams([{"team": "vision", "namespace": "v*"}, {"team": "nlp", "slurm_account": "nlp"}])
TRAIN = Workload(
    "pod", "vision", "train-0", "main", labels=(("app", "train"),), controller_kind="Job", controller="train"
)
SIDE = Workload("pod", "vision", "train-0", "side", labels=(("app", "train"),))
WEB = Workload("pod", "web", "web-0", "main")
JOB = Workload("slurm", job="17", user="dan", slurm_account="nlp", partition="gpu")
DAN = Workload("user", user="dan")
HELD = Workload("pod", "vision", "forgotten", "main")
KINDS = (*GROUPINGS, "label:app", "team", "node")
MANY_ROWS = ("owner", "command", "gpu")


def record(folder: Path) -> Path:
    """Four hours in two runs: shared GPUs, MIG, allocations with and without processes, a stop."""
    clock = FakeClock(BEGIN)
    run = Run(folder, clock=clock)
    energy = {A: 0, B: 0}
    for minute in range(241):
        if minute == 130:
            run.kill()
            clock.advance(1000.0)
            run = Run(folder, clock=clock, boot="boot-2")
        here = [process(A, 10, workload=TRAIN, name="python3", ticks=1)] if 20 <= minute < 200 else []
        if 60 <= minute < 90:
            here.append(process(A, 11, workload=WEB, name="serve", ticks=2))
        if minute % 40 > 20:
            here.append(process(A, 100 + minute // 40, workload=DAN, name="julia", ticks=minute // 40))
        if 100 <= minute < 160:
            here.append(process(PART, 12, workload=JOB, name="python3", sm=None, ticks=3))
        allocations = [Allocation(A, TRAIN, "pod_resources"), Allocation(A, SIDE, "pod_resources")]
        if minute < 150:
            allocations.append(Allocation(PART, HELD, "pod_resources"))
        energy = {A: energy[A] + 10_007 * (1 + minute % 7), B: energy[B] + 3001}
        run.tick({**energy, PART: 0}, here, seconds=59.3, allocations=tuple(allocations))
    run.store.close()
    return run.store.file


def older(file: Path, target: Path, quarter: int) -> Path:
    """A copy of the ledger in which the time before a quarter is only known as an earlier version kept it."""
    with closing(sqlite3.connect(file)) as books, closing(sqlite3.connect(target)) as copy:
        books.backup(copy)
        copy.execute("DELETE FROM time_spans WHERE quarter < ?", (quarter,))
        copy.execute("UPDATE meta SET value = ? WHERE key = 'time_from'", (quarter,))
        copy.commit()
    return target


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("laws")
    file = record(folder)
    return {
        "in detail": file,
        "partly folded": folded(file, BEGIN + 7000, folder / "partly.db", ZONE),
        "wholly folded": folded(file, BEGIN + 10**6, folder / "wholly.db", ZONE),
        "of two versions": older(file, folder / "older.db", FIRST + 8),
    }


@pytest.fixture(scope="module")
def histories(files: dict[str, Path]) -> Iterator[list[History]]:
    """The files, open: what several tests need of them is read once."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(History(file))) for file in files.values()]


LIST = [
    {"gpu": "*H100*", "until": "2023-11-14T17:00", "price": 2.4},
    {"mig": "3g.*", "price": 0.9, "per": "instance"},
    {"gpu": "*H100*", "from": "2023-11-14T18:00", "price": 3.1},
    {"gpu": "*A100*", "price": 1.7},
]
KWH = [{"until": "2023-11-14T17:00", "price": 0.31}, {"price": 0.29}]
PUE = [{"until": "2023-11-14T18:00", "value": 1.4}]
SCOPES = {
    "numbers": (prices(gpu_hour=2, kwh=0.3, co2=400), (FIRST, FIRST + 17)),
    "residence": (prices(gpu_hour=2, kwh=0.3, basis="residence"), (FIRST, FIRST + 17)),
    "lists": (prices(gpu_hour=LIST, kwh=KWH, pue=PUE), (FIRST, FIRST + 17)),
    "a part": (prices(gpu_hour=LIST, kwh=KWH, basis="residence"), (FIRST + 2, FIRST + 10)),
    "spread": (prices(gpu_hour=LIST, kwh=KWH, pue=PUE, idle="spread"), (FIRST, FIRST + 17)),
    "no price": (Prices(), (FIRST, FIRST + 17)),
}


def report_and_scope(history: History, by: str, name: str) -> tuple[UsageReport, ExplainScope]:
    given, (begins, ends) = SCOPES[name]
    until = history.last if ends * QUARTER > history.last else float(ends * QUARTER)
    scope = ExplainScope(ReportRange(begins, ends, until, ZONE), given, TEAMS, "node-1")
    grouping = find_grouping(by, history.devices, teams=TEAMS, node_of=lambda _: "node-1")
    return build_report(history, grouping, given, scope.within, node="node-1"), scope


def assert_sums_to_row(found: Explanation, line: ReportLine, values: object) -> None:
    assert found.row is not None
    assert found.row.line == line
    assert row_as_json(*found.row) == values
    assert found.millijoules == line.millijoules
    if found.unbilled is None:
        assert found.microseconds == line.gpu_microseconds
    assert exact_time_cost(found) == (line.time_cost or 0)
    assert exact_energy_cost(found) == (line.energy_cost or 0)
    assert not any("SUM" in note for note in found.notes)


CASES = [*((by, "numbers") for by in KINDS), *((by, name) for by in MANY_ROWS for name in SCOPES)]


@pytest.mark.parametrize(("by", "name"), dict.fromkeys(CASES))
def test_every_row_is_the_sum_of_its_intervals(
    histories: list[History], by: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_reports_of_rows_once(monkeypatch)
    for history in histories:
        report, scope = report_and_scope(history, by, name)
        assert report.lines
        texts = [(ExplainTarget(by, line.key).prefixed(), line) for line in report.lines]
        if by == "owner":
            texts += [(line.account, line) for line in report.gpu_accounts]
        for text, line in texts:
            assert_sums_to_row(explain_usage(history, text, scope), line, row_as_json(report, line))


def test_own_accounts_that_are_not_billed_sum_to_the_time_below_the_total(files: dict[str, Path]) -> None:
    for file in files.values():
        with closing(History(file)) as history:
            report, scope = report_and_scope(history, "owner", "numbers")
            for one in report.unbilled:
                if one.account != "unwatched":
                    found = explain_usage(history, one.account, scope)
                    assert (found.microseconds, found.unbilled) == (one.microseconds, one)


@pytest.mark.parametrize("text", ["namespace:vision", "idle"])
def test_an_interval_names_all_who_had_its_gpu_in_the_watched_time(files: dict[str, Path], text: str) -> None:
    exact: dict[str, set[bool]] = {}
    for name, file in files.items():
        with closing(History(file)) as history:
            _, scope = report_and_scope(history, "owner", "numbers")
            found = list(explain_usage(history, text, scope).time_intervals)
        exact[name] = {one.exact for one in found}
        # The target can have several parts of a GPU at a time.
        own = Counter[tuple[float, str]]()
        for one in found:
            own[one.begins, one.gpu] += one.microseconds
        for one in found:
            others = sum(other.microseconds for other in one.others)
            assert own[one.begins, one.gpu] + others == one.watched, (name, one)
    assert exact == {
        "in detail": {True},
        "partly folded": {True, False},
        "wholly folded": {False},
        "of two versions": {True, False},
    }


PIDS = (10, 11, 12, *range(100, 106))


@pytest.mark.parametrize("name", ["numbers", "residence", "lists", "spread"])
def test_processes_and_rows_without_one_sum_to_the_report(files: dict[str, Path], name: str) -> None:
    with closing(History(files["in detail"])) as history:
        report, scope = report_and_scope(history, "command", name)
        found: Sequence[Explanation] = [explain_usage(history, f"pid:{pid}", scope) for pid in PIDS]
        for one in found:
            assert one.row is not None
            assert_sums_to_row(one, one.row.line, row_as_json(*one.row))
        rows = [one.row.line for one in found if one.row]
        rows += [line for line in report.lines if line.key == ("(none running)",)]
        for amount in ("gpu_microseconds", "millijoules", "time_cost", "energy_cost"):
            total = sum(getattr(line, amount) or 0 for line in report.lines)
            assert sum(getattr(line, amount) or 0 for line in rows) == total, amount


def test_a_process_has_its_own_seconds(files: dict[str, Path]) -> None:
    with closing(History(files["in detail"])) as history:
        _, scope = report_and_scope(history, "owner", "residence")
        found = explain_usage(history, "pid:12", scope)
        assert found.row is not None
        job = explain_usage(history, "job:17", scope)
        assert job.row is not None
        amounts = ("gpu_microseconds", "millijoules", "resident", "held", "active", "sessions", "time_cost")
        for amount in amounts:
            assert getattr(found.row.line, amount) == getattr(job.row.line, amount), amount


def test_a_process_in_folded_hours_is_known_only_as_a_sum_of_energy(files: dict[str, Path]) -> None:
    with closing(History(files["wholly folded"])) as history:
        _, scope = report_and_scope(history, "owner", "numbers")
        found = explain_usage(history, "pid:12", scope)
    with closing(History(files["in detail"])) as history:
        before = explain_usage(history, "pid:12", scope)
    assert found.lost.millijoules == before.millijoules > 0
    assert not found.time_intervals.count


def test_the_whole_report_is_read_once(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = History.energy
    monkeypatch.setattr(History, "energy", lambda self, *between: reads.append("") or read(self, *between))
    with closing(History(files["partly folded"])) as history:
        _, scope = report_and_scope(history, "owner", "numbers")
        reads.clear()
        explain_usage(history, "namespace:vision", scope)
    assert len(reads) == 1


def test_idle_time_that_is_spread_has_lines_of_its_own(files: dict[str, Path]) -> None:
    with closing(History(files["in detail"])) as history:
        _, scope = report_and_scope(history, "owner", "spread")
        user, idle = (explain_usage(history, who, scope) for who in ("namespace:vision", "idle"))
        assert sum(one.amount for one in user.spread if one.is_time) > 0
        assert sum(one.amount for one in idle.spread if one.is_time) < 0
        plain = replace(scope, prices=replace(scope.prices, idle="row"))
        assert not explain_usage(history, "namespace:vision", plain).spread.count


RECEIPT_COLUMNS = {
    "gpu_microseconds": "gpu_microseconds",
    "estimated_microseconds": "estimated_microseconds",
    "millijoules": "millijoules",
    "high_millijoules": "high_millijoules",
    "unpriced_microseconds": "unpriced_microseconds",
    "sessions": "sessions",
}
ADDITIVE = ("gpu_microseconds", "estimated_microseconds", "unpriced_microseconds")


RECEIPTS = (
    *((file, "owner", "lists") for file in ("partly folded", "wholly folded", "of two versions")),
    *(("partly folded", by, "lists") for by in ("pod", "gpu", "team")),
    *(("in detail", "owner", name) for name in SCOPES),
)


@pytest.mark.parametrize(("file", "by", "name"), RECEIPTS)
def test_a_receipt_has_the_amounts_of_its_row_and_its_gpus_add_up(
    files: dict[str, Path], file: str, by: str, name: str
) -> None:
    with closing(History(files[file])) as history:
        report, scope = report_and_scope(history, by, name)
        for line in report.lines:
            values = row_as_json(report, line)
            target = ExplainTarget(by, line.key)
            wanted = ReceiptScope(scope.within, scope.prices, TEAMS, "node-1")
            receipt = read_receipt(history, target.prefixed(), wanted)
            total = receipt["total"]
            assert {one: total[one] for one in RECEIPT_COLUMNS} == {  # type: ignore[literal-required]
                one: values[column] for one, column in RECEIPT_COLUMNS.items()
            }
            assert {
                one: total[one] for one in ("time_cost", "energy_cost", "cost") if total[one]
            } == values.get(  # type: ignore[literal-required]
                "decimals", {}
            )
            for column in ("resident", "allocated", "held", "active"):
                seconds = total[f"{column}_seconds"]  # type: ignore[literal-required]
                hours = values[f"{column}_gpu_hours"]
                assert (seconds is None) == (hours is None)
                assert seconds is None or abs(seconds / 3600 - hours) < 1e-6
            assert_gpus_add_up(receipt)
            assert_bars_add_up(receipt)


def assert_gpus_add_up(receipt: ReceiptJson) -> None:
    """The rows of the GPUs sum to the total: exactly, and money to its last digit."""
    gpus, total = receipt["gpus"], receipt["total"]
    for name in ADDITIVE:
        assert sum(gpu[name] or 0 for gpu in gpus) == (total[name] or 0)  # type: ignore[literal-required]
    if total["millijoules"] is not None:
        assert sum(gpu["millijoules"] or 0 for gpu in gpus) == total["millijoules"]
        assert sum(gpu["measured_millijoules"] or 0 for gpu in gpus) == total["measured_millijoules"]
    for name in ("time_cost", "energy_cost", "cost"):
        if total[name] is not None:  # type: ignore[literal-required]
            costs = [Decimal(gpu[name] or 0) for gpu in gpus]  # type: ignore[literal-required]
            assert sum(costs, Decimal(0)) == Decimal(total[name])  # type: ignore[literal-required]


def assert_bars_add_up(receipt: ReceiptJson) -> None:
    """The seconds of the bars are those of which the report counts the hours."""
    for one in receipt["gpus"]:
        bars, idle = one["bars"], (one["wait_seconds"], one["gap_seconds"], one["tail_seconds"])
        for name in ("active", "unknown"):
            seconds = one[f"{name}_seconds"]  # type: ignore[literal-required]
            if seconds is not None:
                assert sum(bars[name]) * one["sm_share"] == pytest.approx(seconds, abs=0.01)  # type: ignore[literal-required]
        assert sum(bars["present"]) == one["present_seconds"]
        if receipt["owner"] is not None:
            assert sum(bars["active"]) + sum(part or 0 for part in idle) <= one["present_seconds"]
