"""A user reads own rows, with the numbers that an administrator sees, and nothing of anybody else."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.app.ledger_commands import write_explanation
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.ranges import UTC_DAY
from gpuledger.ledger.report.report_keys import GROUPINGS
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.explain_query import ExplainScope, explain_usage
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.listing import SessionQuery, query_sessions
from gpuledger.ledger.store.present_keys import present_keys
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.schema import MIGRATIONS
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.errors import GpuledgerError
from ledger_helpers import UNIX
from money_helpers import prices
from people_books import DAN, OF_DAN, OTHERS, SECRET, assert_no_secret, record_people
from report_helpers import HOUR, folded, quarters

KINDS = (*GROUPINGS, "label:team", "team", "user,gpu", "gpu,command")
TEAMS = parse_teams([{"team": "blue", "user": "dan"}, {"team": "secretteam", "user": "annsecret"}])
PRICES = prices(gpu_hour=2, kwh=0.3, co2=400, currency="EUR")
SPREAD_PRICES = replace(PRICES, idle=SPREAD)
WITHIN = quarters(0, int(UNIX) // HOUR * HOUR + 24 * HOUR)
SCOPE = ExplainScope(WITHIN, PRICES, TEAMS, "node-1")


def record_and_fold(folder: Path, *, alone: bool) -> dict[str, Path]:
    file = record_people(folder, alone=alone)
    return {
        "in detail": file,
        "partly folded": folded(file, UNIX + 4000, folder / "partly.db"),
        "wholly folded": folded(file, UNIX + 10**6, folder / "wholly.db"),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return record_and_fold(tmp_path_factory.mktemp("people"), alone=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The ledger of a machine that dan has alone."""
    return record_and_fold(tmp_path_factory.mktemp("alone"), alone=True)


@contextmanager
def opened(file: Path, reader: Reader = DAN) -> Iterator[History]:
    with closing(History(file)) as history:
        history.restrict(reader)
        yield history


_kept: dict[tuple[Path, Reader], History] = {}


@pytest.fixture(scope="module", autouse=True)
def _close_kept() -> Iterator[None]:
    yield
    for history in _kept.values():
        history.close()
    _kept.clear()


def history_for(file: Path, reader: Reader) -> History:
    """The file, open: what several reports of a reader need is read once."""
    if (file, reader) not in _kept:
        _kept[file, reader] = History(file)
        _kept[file, reader].restrict(reader)
    return _kept[file, reader]


def report_for(file: Path, reader: Reader, by: str, given: Prices = PRICES, every: str = "") -> UsageReport:
    history = history_for(file, reader)
    grouping = find_grouping(by, history.devices, teams=TEAMS, node_of=lambda _: "node-1")
    return build_report(history, grouping, given, WITHIN, every=every, node="node-1")


def test_the_ledger_has_the_secrets(files: dict[str, Path]) -> None:
    """What the other tests search for is there, for those who read everything."""
    with opened(files["in detail"], EVERYTHING) as history:
        dump = "\n".join(history.connection.iterdump())
    assert set(SECRET.findall(dump)) >= {"secret", "771001", "771003", "771009", "771100"}


@pytest.mark.parametrize("age", ["in detail", "partly folded", "wholly folded"])
def test_no_query_finds_a_name_of_others(files: dict[str, Path], age: str) -> None:
    with opened(files[age]) as history:
        connection = history.connection
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        seen = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}
    assert_no_secret(repr({name: rows for name, rows in seen.items() if name not in ("spans", "shares")}))
    assert any(row for name, row in seen.items() if name in ("sessions", "parties"))


def test_a_query_of_the_tables_themselves_is_refused(files: dict[str, Path]) -> None:
    with opened(files["in detail"]) as history:
        for table in ("sessions", "usage", "parties", "handovers", "time_owners"):
            for query in ("SELECT * FROM main.{}", "SELECT rowid FROM main.{}"):
                with pytest.raises(sqlite3.DatabaseError, match=r"prohibited|not authorized"):
                    history.connection.execute(query.format(table))


def test_a_table_of_a_later_version_is_empty(files: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "later.db"
    with closing(sqlite3.connect(files["in detail"])) as books, closing(sqlite3.connect(file)) as copy:
        books.backup(copy)
        copy.execute("CREATE TABLE diaries (number INTEGER PRIMARY KEY, words TEXT)")
        copy.execute("INSERT INTO diaries VALUES (1, 'annsecret')")
        copy.commit()
    with opened(file, EVERYTHING) as history:
        assert history.connection.execute("SELECT words FROM diaries").fetchall() == [("annsecret",)]
    with opened(file) as history:
        assert history.connection.execute("SELECT words FROM diaries").fetchall() == []


# Without prices, the same rows are read: the keys make no difference.
@pytest.mark.parametrize(("by", "given"), [*((by, PRICES) for by in KINDS), ("user,gpu", Prices())])
def test_each_row_equals_that_of_an_administrator(files: dict[str, Path], by: str, given: Prices) -> None:
    """For keys that no other owner shares, in every exact amount, however old the rows are."""
    for file in files.values():
        mine = report_for(file, DAN, by, given)
        # The administrator's rows of the same owners: grouped by what names an owner, then by the key.
        keys = ",".join(dict.fromkeys(("owner", "user", *by.split(","))))
        full = {line.key: line for line in report_for(file, EVERYTHING, keys, given).lines}
        own = {line.key: line for line in report_for(file, DAN, keys, given).lines}
        assert own
        assert own == {key: full[key] for key in own}
        assert sum(line.millijoules for line in mine.lines) == sum(line.millijoules for line in own.values())
        assert sum(line.gpu_microseconds or 0 for line in mine.lines) == sum(
            line.gpu_microseconds or 0 for line in own.values()
        )
        assert mine.total.millijoules == sum(line.millijoules for line in mine.lines)
        assert mine.total.gpu_microseconds == sum(line.gpu_microseconds or 0 for line in mine.lines)


def test_idle_time_is_spread_over_own_rows_as_over_those_of_an_administrator(files: dict[str, Path]) -> None:
    """But for the rounding of each hour, which goes by the names of all."""
    for file in files.values():
        full = {line.key: line for line in report_for(file, EVERYTHING, "owner,gpu", SPREAD_PRICES).lines}
        own = {line.key: line for line in report_for(file, DAN, "owner,gpu", SPREAD_PRICES).lines}
        plain = {line.key: line for line in report_for(file, DAN, "owner,gpu", PRICES).lines}
        hours = 4
        for key, line in own.items():
            assert line.gpu_microseconds == full[key].gpu_microseconds
            assert line.methods == full[key].methods
            for name in ("time_charges", "energy_charges"):
                mine, theirs = (sum(getattr(one, name).values()) for one in (line, full[key]))
                assert abs(mine - theirs) <= hours
        assert sum(line.cost or 0 for line in own.values()) > sum(line.cost or 0 for line in plain.values())


def test_the_rows_are_exactly_those_of_the_user(files: dict[str, Path]) -> None:
    for file in files.values():
        found = {line.key for line in report_for(file, DAN, "owner").lines}
        assert found == {
            ("user", "", "dan"),
            ("user", "", "1001"),
            ("slurm", "", "4711"),
            ("slurm", "", "4712"),
            ("job", "", "12.pbs"),
        }


@pytest.mark.parametrize("every", ["", "hour"])
@pytest.mark.parametrize("by", KINDS)
def test_no_format_of_a_report_has_a_name_of_others(files: dict[str, Path], by: str, every: str) -> None:
    for file in files.values():
        found = report_for(file, DAN, by, every=every)
        assert found.lines
        assert_no_secret(as_csv(found) + repr(as_json(found)) + report_table(found, 0, plain=False))


def test_focus_has_own_rows_only(files: dict[str, Path]) -> None:
    for file in files.values():
        found = report_for(file, DAN, "user,namespace,gpu", every=UTC_DAY)
        assert_no_secret(as_focus(found, "lab", "1.2"))


def test_amounts_of_whole_gpus_are_not_reported(files: dict[str, Path]) -> None:
    found = report_for(files["in detail"], DAN, "gpu")
    assert not found.gpu_accounts
    assert not found.unbilled
    assert found.occupied is None
    assert {(gpu.millijoules, gpu.observed, gpu.watched, gpu.unwatched) for gpu in found.gpus} == {
        (None, None, 0, 0)
    }
    assert not any("BALANCE" in note for note in found.notes)


def test_a_user_without_rows_gets_an_empty_report(files: dict[str, Path]) -> None:
    for file in files.values():
        found = report_for(file, Reader("eve", frozenset({"eve", "1003"}), 1003), "owner")
        assert not found.lines
        assert found.total.millijoules == 0
        assert_no_secret(as_csv(found) + repr(as_json(found)) + report_table(found, 0, plain=False))


# Kinds and names to guess.
GUESSES = (
    *("user:annsecret", "annsecret", "secretpod", "pod:secretspace/secretpod", "namespace:secretspace"),
    *("job:771001", "771001", "pid:771100", "771100", "container:secretbox", "unit:secretd.service"),
    *(
        "user:771009",
        "command:secretcmd0",
        "team:secretteam",
        "label:team=secretteam",
        "slurm_account:secretlab",
    ),
    *("owner:unknown", "owner:slurm//771001", "job:771003", "job_name:secretrun"),
)


def explanation_of(file: Path, text: str) -> str:
    out = io.StringIO()
    with opened(file) as history:
        found = explain_usage(history, text, SCOPE)
        for form in ("text", "csv", "json"):
            write_explanation(found, form, out)
    return out.getvalue()


def refusal_of(file: Path, text: str) -> str:
    with pytest.raises(GpuledgerError) as refused:
        explanation_of(file, text)
    return str(refused.value)


@pytest.mark.parametrize("age", ["in detail", "wholly folded"])
@pytest.mark.parametrize("guess", GUESSES)
def test_what_is_not_yours_is_as_if_absent(
    files: dict[str, Path], alone: dict[str, Path], guess: str, age: str
) -> None:
    """The message is that of a ledger without the others."""
    file = files[age]
    if age == "in detail":
        assert explain_usage(history_for(file, EVERYTHING), guess, SCOPE)
    said = refusal_of(file, guess)
    assert said.replace(str(file), "FILE") == refusal_of(alone[age], guess).replace(str(alone[age]), "FILE")
    assert_no_secret(said.replace(guess, "X"))


@pytest.mark.parametrize("account", ["idle", "unattributed", "unobserved", "down", "account:idle"])
def test_accounts_of_whole_gpus_are_not_explained(files: dict[str, Path], account: str) -> None:
    assert f"'{account}' is not in" in refusal_of(files["in detail"], account)


def test_suggestions_are_own_names_only(files: dict[str, Path]) -> None:
    assert "annsecret" not in refusal_of(files["in detail"], "user:annsecreT")
    assert "dan" in refusal_of(files["in detail"], "user:dam")


@pytest.mark.parametrize("age", ["in detail", "partly folded", "wholly folded"])
@pytest.mark.parametrize(
    "text", ["user:dan", "job:4711", "pid:4000", "unit:jupyter.service", "gpu:0", "namespace:-", "job:4712"]
)
def test_an_explanation_names_no_others_and_sums_to_the_row(
    files: dict[str, Path], text: str, age: str
) -> None:
    if age == "wholly folded" and text.startswith("pid:"):
        pytest.skip("sessions of folded hours remain, without intervals")
    said = explanation_of(files[age], text)
    assert "SUM" not in said
    assert_no_secret(said)


def test_sharing_is_explained_without_names(files: dict[str, Path]) -> None:
    assert "others" in explanation_of(files["in detail"], "user:dan")


def test_lists_of_sessions_have_own_ones_only(files: dict[str, Path]) -> None:
    with opened(files["in detail"]) as history:
        query = SessionQuery(0.0, 2e9)
        found = list(query_sessions(history.connection, history.devices, query, 1000))
    assert {one.row.process.pid for one in found} == {4000 + place for place in range(len(OF_DAN))}


def test_the_keys_to_choose_from_have_own_names_only(files: dict[str, Path]) -> None:
    for file in files.values():
        with opened(file) as history:
            names = {key.by: key.names for key in present_keys(history, *quarter_range(history))}
        assert names["user"] == 2
        assert names["job"] == 3
        assert "namespace" not in names
        assert "container" not in names


def quarter_range(history: History) -> tuple[int, int]:
    return history.first_quarter or 0, history.end_quarter


def test_a_name_that_another_account_had_before_shows_only_its_own_processes(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """An account was deleted, and another person got the same name: rows known by name can be of either."""
    file = tmp_path / "again.db"
    with closing(sqlite3.connect(files["in detail"])) as books, closing(sqlite3.connect(file)) as copy:
        books.backup(copy)
        copy.execute("UPDATE sessions SET uid = 900 WHERE pid = 4000")
        copy.commit()
    with opened(file) as history:
        pids = {pid for (pid,) in history.connection.execute("SELECT pid FROM sessions")}
        assert history.connection.execute("SELECT count(*) FROM handovers").fetchone() == (0,)
    assert pids == {4001, 4002, 4003, 4004}


NAMES = st.sampled_from(
    ["dan", "1001", "771009", "annsecret", "", "root", "DAN", "dan ", "'; --", "%", "da_"]
)


@given(users=st.sets(NAMES), uid=st.none() | st.integers(0, 2000))
def test_readers_see_the_rows_of_their_names_and_no_others(users: set[str], uid: int | None) -> None:
    reader = Reader("x", frozenset(users), uid)
    permitted = {one for one in (*OF_DAN, *OTHERS) if reader.permits(one)}
    assert permitted == {
        one for one in (*OF_DAN, *OTHERS) if one.kind in ("user", "slurm", "job") and one.user in users - {""}
    }


def test_each_table_of_the_schema_is_known(files: dict[str, Path]) -> None:
    """A new table of the ledger needs a decision: rows with names, or amounts."""
    with opened(files["in detail"], EVERYTHING) as history:
        tables = {
            name
            for (name,) in history.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite")
        }
    assert tables == DECIDED, f"decide in own_rows.py and here; the schema is {len(MIGRATIONS)}"


DECIDED = {
    # Amounts by number, hardware and state: whole.
    *("meta", "devices", "device_memory", "gpus", "gpu_parts", "epochs", "forgotten", "floors"),
    *("spans", "shares", "hours", "hour_shares", "hour_times", "time_spans", "time_splits", "hour_gpu_time"),
    *("held", "unknown", "unused", "unread"),
    # By owner, or by what refers to one.
    *("sessions", "usage", "stays", "handovers", "parties", "time_owners", "xids"),
    *("usage_periods", "usage_quarters", "usage_hours", "host_periods"),
    # State of the program, with names: empty, and without the column of names.
    *("series", "told", "owners", "gpu_times"),
}
