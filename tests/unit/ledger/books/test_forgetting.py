"""A forgotten person is nowhere in the file; sums and other people do not change."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import pytest

from builders import FakeClock, process
from gpuledger.ledger.books.consistency import check_ledger
from gpuledger.ledger.books.forgetting import _JSON, _TEXTS, _new_pseudonym, forget_person
from gpuledger.ledger.books.person import PersonName, name_forms
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.schema import migrate_schema
from gpuledger.model.devices import Gpu
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import rows
from report_helpers import report_of
from time_books import HOUR, A, B, Node, again

LIMITS = RetentionLimits(detail=7200.0)
KEYS = ("owner", "user", "pod", "command", "gpu", "unit", "job")


def started_by(card: Gpu, pid: int, user: str, uid: int | None, path: str, owner: Workload) -> GpuProcess:
    found = process(card, pid, workload=owner)
    return replace(found, host=replace(found.host, user=user, uid=uid, executable=path))


def processes_of(name: str) -> list[GpuProcess]:
    other = f"{name}a"
    return [
        started_by(A, 7, name, 1234, f"/home/{name}/train.py", Workload("user", user=name)),
        started_by(A, 8, other, 1235, f"/home/{other}/x.py", Workload("user", user=other)),
        started_by(B, 9, name, 1234, "/usr/bin/python", Workload("unit", unit="user-1234.slice", user=name)),
        started_by(
            B,
            10,
            "",
            None,
            f"/data/exp_{name}_2/run",
            Workload(
                "pod",
                "ml",
                f"jupyter-{name}",
                "main",
                pod_uid="u1",
                labels=(("mail", f"{name}@example.com"),),
            ),
        ),
    ]


def run_node(node: Node, name: str, ticks: int) -> Node:
    """Ticks with processes and an allocation of the person and of another one."""
    found = processes_of(name)
    has = [Allocation(B, Workload("slurm", job="99", user=name))]
    for tick in range(ticks):
        node.look(A, B, seconds=55, runs=found[: 2 + tick % 3], has=has if tick % 7 else [])
    return node


def left_words(file: Path, name: str) -> set[str]:
    """The words in the bytes of a file that contain the name, in each encoding that the ledger uses."""
    text = file.read_bytes().decode("utf-8", "replace")
    escaped = json.dumps(name)[1:-1]
    return set(re.findall(rf"{re.escape(name)}\w*|{re.escape(escaped)}[\w\\]*", text))


def sums(file: Path) -> dict[str, object]:
    found = {by: report_of(file, by) for by in KEYS}
    return {
        by: (
            sorted(
                (one.gpu_microseconds, one.millijoules, one.resident, one.sessions) for one in report.lines
            ),
            report.total,
            report.gpus,
            report.unbilled,
        )
        for by, report in found.items()
    }


@pytest.mark.parametrize("name", ["ann", "jörg"])
def test_the_name_is_gone_and_no_sum_changes(tmp_path: Path, name: str) -> None:
    node = run_node(Node(tmp_path, clock=FakeClock(HOUR + 100), limits=LIMITS), name, 220)
    with pytest.raises(GpuledgerError, match="systemctl stop"):
        forget_person(node.file, name)
    node.store.close()
    before = sums(node.file)
    done = forget_person(node.file, name, "former-7")
    other = (f"{name}a", json.dumps(f"{name}a")[1:-1])
    assert all(any(one in word for one in other) for word in left_words(node.file, name))
    assert not rows(node.file, "SELECT 1 FROM sessions WHERE uid = 1234 OR unit LIKE '%1234%'")
    assert rows(node.file, "SELECT 1 FROM sessions WHERE uid = 1235 AND login LIKE '%a'")
    assert sums(node.file) == before
    assert ("former-7",) in {line.key for line in report_of(node.file, "user").lines}
    assert list(check_ledger(node.file)) == []
    assert [one.name for one in tmp_path.iterdir() if one.suffix != ".lock"] == ["gpuledger.db"]
    assert done.left == []
    ((last,),) = rows(node.file, "SELECT max(number) FROM sessions")
    later = run_node(again(node, tmp_path, limits=LIMITS), name, 20)
    assert not rows(later.file, f"SELECT 1 FROM sessions WHERE number <= {last} AND login = '{name}'")
    assert rows(later.file, f"SELECT 1 FROM sessions WHERE number > {last} AND login = '{name}'")
    assert list(check_ledger(later.file)) == []


def test_a_name_that_is_not_there_and_bad_pseudonyms_are_refused(tmp_path: Path) -> None:
    node = run_node(Node(tmp_path), "ann", 5)
    node.store.close()
    with pytest.raises(GpuledgerError, match="does not have the name bob"):
        forget_person(node.file, "bob")
    for pseudonym, text in (("Ann2", "does not have"), ("a b", "letters"), ("anna", "does not have")):
        with pytest.raises(UsageError, match=text):
            forget_person(node.file, "ann", pseudonym)
    with pytest.raises(UsageError, match="has a user of this name"):
        forget_person(node.file, "anna", "ann")


def test_a_person_gets_the_same_pseudonym_again(tmp_path: Path) -> None:
    node = run_node(Node(tmp_path, clock=FakeClock(HOUR)), "ann", 20)
    node.store.close()
    forget_person(node.file, "ann", "former-7")
    later = run_node(again(node, tmp_path), "ann", 20)
    later.store.close()
    before = sums(node.file)
    assert forget_person(node.file, "ann", "former-7").rows
    assert not left_words(node.file, "ann") - left_words(node.file, "anna")
    assert before["gpu"] == sums(node.file)["gpu"]
    users = [line.key for line in report_of(node.file, "user").lines]
    assert users.count(("former-7",)) == 1
    assert list(check_ledger(node.file)) == []


def test_a_file_that_was_not_rebuilt_is_rebuilt_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run_node(Node(tmp_path), "ann", 5)
    node.store.close()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gpuledger.ledger.books.forgetting._rebuild", killed)
        with pytest.raises(KeyboardInterrupt):
            forget_person(node.file, "ann", "former-7")
    done = forget_person(node.file, "ann")
    assert (done.pseudonym, done.rows) == ("former-7", 0)
    with pytest.raises(GpuledgerError, match="does not have the name ann"):
        forget_person(node.file, "ann", "former-7")


def test_a_session_with_only_the_uid_loses_it(tmp_path: Path) -> None:
    node = run_node(Node(tmp_path), "ann", 5)
    node.store.close()
    with closing(sqlite3.connect(node.file)) as books, books:
        books.execute("UPDATE sessions SET uid = 1234 WHERE login = ''")
    forget_person(node.file, "ann")
    assert not rows(node.file, "SELECT 1 FROM sessions WHERE uid = 1234")


@pytest.mark.parametrize("name", ["forgotten", "f", "on", "person"])
def test_a_generated_pseudonym_never_has_the_name(name: str) -> None:
    assert name not in _new_pseudonym(name)


def test_other_files_with_the_letters_are_named(tmp_path: Path) -> None:
    node = run_node(Node(tmp_path), "ann", 5)
    node.store.close()
    (tmp_path / "gpuledger.db.corrupt-1").write_bytes(b"x" * 2_000_000 + b"ann" + b"x" * 10)
    (tmp_path / "other").write_bytes(b"nothing")
    assert forget_person(node.file, "ann").left == [tmp_path / "gpuledger.db.corrupt-1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ann", "P"),
        ("/home/ann/train.py", "/home/P/train.py"),
        ("jupyter-ann-2", "jupyter-P-2"),
        ("train_ann.py --owner=ann", "train_P.py --owner=P"),
        ("ann@example.com", "P@example.com"),
        ("anna joann ann2 Ann", "anna joann ann2 Ann"),
        ("/home/ann.lee/ann", "/home/ann.lee/P"),
        ("user@1000.service user-1000.slice /run/user/1000/x", "user@P.service user-P.slice /run/user/P/x"),
        ("job 1000, user-10001.slice", "job 1000, user-10001.slice"),
    ],
)
def test_whole_words_are_replaced(text: str, expected: str) -> None:
    assert PersonName("ann", "P", ["ann.lee", "anna"], [1000]).replaced(text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ann-lee", r"jupyter-ann\x2dlee.service"),
        ("ann.lee", "jupyter-ann-2elee"),
        ("jörg", r"home-j\xc3\xb6rg.mount"),
        ("jörg", normalize("NFD", "/home/jörg")),
        (normalize("NFD", "jörg"), "/home/jörg"),
        (r"CORP\ann", r"CORP\ann"),
        ("ann+ml", "ann+ml"),
    ],
)
def test_all_forms_of_a_name_are_replaced(name: str, text: str) -> None:
    assert "P" in PersonName(name, "P").replaced(text)
    assert not any(form in PersonName(name, "P").replaced(text) for form in name_forms(name))


def test_values_of_a_fixed_set_are_kept() -> None:
    person = PersonName("user", "P", uids=[1000])
    owner = {"kind": "user", "user": "user", "labels": [["user", "x"]]}
    assert person.replaced_values(owner) == {"kind": "user", "user": "P", "labels": [["P", "x"]]}
    assert person.replaced_values({"user": "1000", "job": "1000"}) == {"user": "P", "job": "1000"}
    assert person.replaced_values([["user", "user"]], skip_first=True) == [["user", "P"]]


def test_each_text_of_the_schema_is_replaced_or_has_no_names() -> None:
    """A new column must be added to one of these."""
    nameless = {
        "meta.key", "devices", "gpus", "epochs", "forgotten", "floors", "hours", "spans", "gpu_parts",
        "time_splits", "time_spans", "hour_gpu_time", "gpu_times.uuid", "gpu_times.basis", "parties.number",
        "time_owners.device", "handovers.device", "xids",
            "device_memory", "usage_quarters", "usage_hours", "usage_periods.device", "usage_periods.start",
        # Deleted.
        "series", "owners",
        *(f"sessions.{one}" for one in ("device", "gpu", "instance", "boot_id", "types", "host_missing",
          "owner_kind", "runtime", "found_by", "missing", "controller_kind")),
    }  # fmt: skip
    known = {f"{table}.{one}" for (table, _), columns in (*_TEXTS.items(), *_JSON.items()) for one in columns}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        migrate_schema(empty)
        tables = [name for (name,) in empty.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        texts = {
            f"{table}.{column}"
            for table in tables
            for _, column, kind, *_ in empty.execute(f"PRAGMA table_info({table})")
            if kind == "TEXT"
        }
    assert not {one for one in texts - known if not {one, one.partition(".")[0]} & nameless}
