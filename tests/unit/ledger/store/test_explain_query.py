"""Explanations equal the rows of reports in every exact amount, for every kind of row."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from builders import FakeClock, gpu, instance, process
from gpuledger.ledger.report.explain import Explanation
from gpuledger.ledger.report.explain_text import explanation_text
from gpuledger.ledger.report.formats import row_as_json
from gpuledger.ledger.report.report_keys import GROUPINGS
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import ReportLine
from gpuledger.ledger.store.explain_query import ExplainLists, ExplainScope, explain_usage
from gpuledger.ledger.store.explain_target import ExplainTarget
from gpuledger.ledger.store.history import History
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import escape_to_one_line
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run, rows
from report_helpers import (
    EVER,
    HOUR,
    build_reports_of_rows_once,
    exact_energy_cost,
    exact_time_cost,
    folded,
    quarters,
    report_of,
)

A, B = gpu(0, name="NVIDIA H100", sm_count=132), gpu(1, name="NVIDIA H100", sm_count=132)
PART = instance(B, 2, 0, profile="3g.40gb", sm_count=60)
J = 1000
PRICES = Prices(kwh=Decimal("0.32"), gpu_hour=Decimal(2), currency="EUR", pue=Decimal("1.3"))
KINDS = (*GROUPINGS, "label:team")
OWNERS = [
    Workload("pod", "ml", "train-0", "main", labels=(("team", "blue"),)),
    Workload("pod", "ml", "train-0", "side", labels=(("team", "blue"),)),
    Workload("pod", "web", "train-0", "main", controller_kind="Job", controller="night"),
    Workload("slurm", job="1700", user="dan"),
    Workload("user", user="dan"),
    Workload("unit", unit="dan.service"),
    Workload("container", container="dan"),
    Workload(),
]
# The lists are kept: the file is closed before they are read.
MANY = 1_000_000
HOURS = (int(UNIX) // HOUR, int(UNIX) // HOUR + 4)


def record(folder: Path) -> Path:
    """Three hours of every kind of owner: alone, shared, under MIG, only allocated, idle and unobserved."""
    run = Run(folder)
    held = Allocation(A, Workload("pod", "ml", "forgotten", "main"), "pod_resources")
    for minute in range(180):
        first = [process(A, 10 + n, workload=OWNERS[n], name=f"run-{n % 2}") for n in range(minute // 20)]
        second = [process(PART, 30, workload=OWNERS[3], sm=None)] if minute > 30 else []
        if minute == 100:
            run.ledger.interrupt()
        counters = {A: minute * 1000 * J + minute, B: minute * 170 * J, PART: 0}
        run.tick(counters, [*first, *second], seconds=59.5, allocations=(held,) if minute < 90 else ())
    run.store.close()
    return run.store.file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The ledger in detail, with half of its hours folded, and with all of them folded."""
    folder = tmp_path_factory.mktemp("explain")
    file = record(folder)
    partly = folded(file, UNIX + 1.5 * HOUR, folder / "partly.db")
    return file, partly, folded(file, UNIX + 86_400 * 30, folder / "wholly.db")


def explain(file: Path, text: str, hours: tuple[int, int] = HOURS, prices: Prices = PRICES) -> Explanation:
    within = quarters(hours[0] * HOUR, hours[1] * HOUR)
    with closing(History(file)) as history:
        return explain_usage(history, text, ExplainScope(within, prices), ExplainLists(limit=MANY))


def error_of(file: Path, text: str, hours: tuple[int, int] = HOURS) -> str:
    with pytest.raises(GpuledgerError) as refused:
        explain(file, text, hours)
    return str(refused.value)


@cache
def explained_accounts(file: Path, hours: tuple[int, int]) -> list[tuple[ReportLine, object, Explanation]]:
    """The rows of the GPUs' own accounts, the same for every key, with the explanations of their sums."""
    found = report_of(file, "owner", (hours[0] * HOUR, hours[1] * HOUR), PRICES)
    return [
        (line, row_as_json(found, line), explain(file, line.account, hours)) for line in found.gpu_accounts
    ]


def assert_equals_row(found: Explanation, line: ReportLine, values: object) -> None:
    """Assert that the explanation has this row, and that its intervals sum to every exact amount of it."""
    assert found.row is not None
    assert found.row.line == line
    assert row_as_json(*found.row) == values
    assert (found.millijoules, found.measured, found.high) == (line.millijoules, line.low, line.high)
    # The bounds of the intervals are those of the row, too.
    if line.high is not None:
        assert sum(one.high or 0 for one in found.intervals) == line.high
    if line.account == "unobserved":
        assert found.unbilled is not None
        assert found.microseconds == found.unbilled.microseconds
    else:
        assert found.microseconds == line.gpu_microseconds
        assert sum(one.estimated for one in found.time_intervals) == line.estimated_microseconds
    if line.time_cost is not None:
        assert exact_time_cost(found) == line.time_cost
    if line.energy_cost is not None:
        assert exact_energy_cost(found) == line.energy_cost
    assert not any("SUM" in note for note in found.notes)


@pytest.mark.parametrize(
    ("by", "hours"), [*((by, HOURS) for by in KINDS), ("owner", (HOURS[0] + 1, HOURS[0] + 2))]
)
def test_an_explanation_equals_the_row_in_every_exact_amount(
    files: tuple[Path, ...], by: str, hours: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_reports_of_rows_once(monkeypatch)
    for file in files:
        report = report_of(file, by, (hours[0] * HOUR, hours[1] * HOUR), PRICES)
        # The text names only this row.
        found = [
            (line, row_as_json(report, line), explain(file, ExplainTarget(by, line.key).prefixed(), hours))
            for line in report.lines
        ]
        found += explained_accounts(file, hours)
        assert len(found) > 3
        for line, values, one in found:
            assert_equals_row(one, line, values)
        assert_sums_to_total([one for _, _, one in found], report.total)


def assert_sums_to_total(found: Sequence[Explanation], total: ReportLine) -> None:
    assert sum(one.millijoules for one in found) == total.millijoules
    billed = [one for one in found if one.unbilled is None]
    assert sum(one.microseconds for one in billed) == total.gpu_microseconds
    assert sum(one.row.line.cost or 0 for one in found if one.row) == total.cost


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("ml", "namespace ml"),
        ("ml/train-0", "pod ml/train-0"),
        ("pod:web/train-0", "pod web/train-0"),
        ("user:dan", "user dan"),
        ("unit:dan.service", "unit dan.service"),
        ("dan.service", "unit dan.service"),
        ("container:dan", "container dan"),
        ("1700", "job 1700"),
        ("job:web/night", "job web/night"),
        ("night", "job web/night"),
        ("11", "pid 11"),
        ("pod/ml/train-0", "owner pod/ml/train-0"),
        ("owner:slurm/1700", "owner slurm/1700"),
        ("owner:-", "owner (without a name)"),
        ("owner:unknown", "owner (without a name)"),
        ("namespace:-", "namespace (without a name)"),
        ("label:team=blue", "label team=blue"),
        ("label:team=-", "label team=(without a name)"),
        ("command:run-1", "command run-1"),
        ("gpu:1", "gpu 1 GPU-1"),
        ("GPU-1", "gpu 1 GPU-1"),
        ("container:ml/train-0/side", "container ml/train-0/side"),
        ("train-0/side", "container ml/train-0/side"),
        ("namespace:w*", "namespace web"),
        ("forgotten", "pod ml/forgotten"),
        ("idle", "account idle"),
        ("account:unobserved", "account unobserved"),
    ],
)
def test_every_form_of_a_name_is_understood(files: tuple[Path, ...], text: str, who: str) -> None:
    assert {explain(file, text).who for file in files} == {who}


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("train-0", "pod:ml/train-0 or pod:web/train-0"),
        ("pod:train-0", "pod:ml/train-0 or pod:web/train-0"),
        ("namespace:*", "namespace:ml or namespace:web"),
        ("gpu:GPU-*", "gpu:GPU-0 or gpu:GPU-1"),
        ("owner:dan", "owner:container//dan or owner:user//dan"),
    ],
)
def test_a_name_of_several_rows_lists_their_forms(files: tuple[Path, ...], text: str, forms: str) -> None:
    line = error_of(files[0], text)
    assert line.endswith(f"'{text}' matches several rows: use {forms}")
    for form in forms.split(" or "):
        assert explain(files[0], form).row


def test_a_name_of_a_user_and_a_pod_needs_its_kind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    owners = (Workload("pod", "ml", "dan", "main"), Workload("user", user="dan"))
    for minute in range(5):
        run.tick(
            {A: minute * 1000 * J},
            [process(A, n, workload=one) for n, one in enumerate(owners, 1)],
            seconds=60.0,
        )
    run.store.close()
    assert "use pod:dan or user:dan" in error_of(run.store.file, "dan")
    assert explain(run.store.file, "user:dan").who == "user dan"


@pytest.mark.parametrize(
    "name", ["two\nlines", "\u202etxt.exe", "\x1b[31mred", "a\tb", "back\\slash", "日本 é"]
)
def test_a_name_as_reports_print_it_names_its_row(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path)
    # The second user has the printed name of the first, and keeps it.
    users = (name, escape_to_one_line(name)) if name == "a\tb" else (name,)
    for minute in range(5):
        owners = [process(A, n, workload=Workload("user", user=user)) for n, user in enumerate(users, 1)]
        run.tick({A: minute * 1000 * J}, owners, seconds=60.0)
    run.store.close()
    printed = f"user:{escape_to_one_line(name)}"
    for text in (f"user:{name}", printed, *([printed[5:]] if len(users) == 1 else [])):
        expected = users[-1] if text == printed else name
        assert explain(run.store.file, text).who == f"user {expected}"


@pytest.mark.parametrize(
    "text",
    ["", "nobody", "user:nobody", "namespace:m", "pid:x", "account:x", "label:", "job:", "/", "gpu:9", "*y"],
)
def test_a_name_that_no_row_has_is_refused(files: tuple[Path, ...], text: str) -> None:
    assert f"'{text}' is not in {files[0]}: " in error_of(files[0], text)


def test_a_similar_name_is_suggested(files: tuple[Path, ...]) -> None:
    assert "did you mean 'user:dan'?" in error_of(files[0], "usr:dan")
    assert "did you mean 'user:dan'?" in error_of(files[0], "user:dann")
    assert "expected KIND:NAME" in error_of(files[0], "qqqqqqqqqq")
    # Another person is no suggestion because both are users.
    assert "did you mean" not in error_of(files[0], "user:rot")


@pytest.mark.parametrize("text", ["pod:web/train-0", "pid:12"])
def test_a_row_without_anything_in_the_range_is_no_bill_of_zero(files: tuple[Path, ...], text: str) -> None:
    line = error_of(files[0], text, (HOURS[0], HOURS[0] + 1))
    assert f"{explain(files[0], text).who} is in {files[0]}, but not from" in line


def test_energy_of_lost_sessions_is_explained_with_the_row_without_a_name(tmp_path: Path) -> None:
    file = record(tmp_path)
    with closing(sqlite3.connect(file)) as books:
        books.execute("DELETE FROM sessions WHERE number = 1")
        books.execute("DELETE FROM usage WHERE number = 1")
        books.commit()
    assert rows(file, "SELECT count(*) FROM shares WHERE session = 1") != [(0,)]
    for by in ("owner", "namespace"):
        (line,) = (
            one
            for one in report_of(file, by, EVER).lines
            if not any(one.key[1:]) and one.key[0] in ("", "unknown")
        )
        assert explain(file, f"{by}:-").millijoules == line.millijoules > 0


def test_processes_that_only_serve_others_have_no_row(tmp_path: Path) -> None:
    run = Run(tmp_path)
    server = process(A, 1, workload=Workload("unit", unit="mps.service"), name="nvidia-cuda-mps-server")
    client = process(A, 2, workload=OWNERS[0], types="M+C")
    for minute in range(5):
        run.tick({A: minute * 1000 * J}, [server, client], seconds=60.0)
    run.store.close()
    found = explain(run.store.file, "unit:mps.service")
    assert (found.by, found.row, found.millijoules) == ("unit", None, 0)
    assert [one.pid for one in found.sessions] == [1]


def test_times_have_their_offset_if_the_clocks_change_within_the_range(tmp_path: Path) -> None:
    """At 01:00 UTC the clocks of Berlin went from 03:00 back to 02:00."""
    begins, zone = int(datetime(2026, 10, 25, tzinfo=UTC).timestamp()), ZoneInfo("Europe/Berlin")
    run = Run(tmp_path, clock=FakeClock(float(begins)))
    for minute in range(121):
        run.tick({A: minute * 1000 * J}, [process(A, 10, workload=OWNERS[0])], seconds=60.0)
    run.store.close()
    with closing(History(run.store.file)) as history:
        for seconds, has_offset in ((1800, False), (2 * HOUR, True)):
            within = replace(quarters(begins, begins + seconds), zone=zone)
            scope, lists = ExplainScope(within, PRICES), ExplainLists(limit=MANY)
            found = list(explanation_text(explain_usage(history, "pod:ml/train-0", scope, lists)))
            shown = [line for line in found if re.search(r"\d\d:\d\d:\d\d", line)]
            assert len(shown) > 2
            offsets = [re.findall(r"\d\d:\d\d:\d\d( \+0[12]00)", line) for line in shown]
            assert all(len(one) == (2 if has_offset else 0) for one in offsets), shown
