"""The doctor check of the ledger directory."""

from __future__ import annotations

import os
import pwd
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders import gpu, reading
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.checks import ledger_checks
from gpuledger.ledger.store.schema import APPLICATION_ID, MIGRATIONS
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.snapshot import Snapshot, SourceInfo, XidEvent
from ledger_helpers import UNIX, Run


def finding(given: str, system: Path, home: Path, *, made_up: bool = False) -> Finding:
    environment = {"XDG_STATE_HOME": str(home)}
    (check,) = ledger_checks(StoreSettings(given), environment, made_up=made_up, system=system)
    (found,) = check.run()
    return found


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A path below a file: nothing can be created there, even by root."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "below"


def test_a_missing_directory_is_reported_but_not_created(tmp_path: Path, nowhere: Path) -> None:
    found = finding("", tmp_path / "lib" / "gpuledger", nowhere)
    assert (found.verdict, found.why.partition(" will")[0]) == (
        Verdict.WORKS,
        str(tmp_path / "lib" / "gpuledger"),
    )
    assert not (tmp_path / "lib").exists()


def test_without_the_system_directory_the_users_own_is_checked(tmp_path: Path, nowhere: Path) -> None:
    found = finding("", nowhere, tmp_path)
    assert found.why.startswith(f"{tmp_path}/gpuledger will be created")


def test_without_any_directory_the_finding_names_the_loss_and_the_remedy(nowhere: Path) -> None:
    found = finding("", nowhere, nowhere)
    assert found.verdict is Verdict.WARNING
    assert "kept in memory and lost" in found.why
    assert found.remedy.startswith(f"`install -d -m 700 -o {os.geteuid()} {nowhere}`")
    assert finding(str(nowhere), nowhere, nowhere).verdict is Verdict.FAILS


def test_on_a_read_only_file_system_the_remedy_is_a_mount(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    found = finding("", nowhere, nowhere)
    assert found.verdict is Verdict.WARNING
    assert f"mount a directory that uid {os.geteuid()} can write at {nowhere}" in found.remedy
    assert "install -d" not in found.remedy


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [(0o700, Verdict.WORKS), (0o755, Verdict.WORKS), (0o770, Verdict.WARNING), (0o777, Verdict.WARNING)],
)
def test_a_directory_writable_by_others_is_a_warning(mode: int, verdict: Verdict, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    found = finding(str(tmp_path), tmp_path, tmp_path)
    assert found.verdict is verdict
    assert found.remedy == (f"`chmod go-w {tmp_path}`" if verdict is Verdict.WARNING else "")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
@pytest.mark.parametrize(
    ("user", "verdict"), [("ada", Verdict.WARNING), ("", Verdict.WARNING), ("gpuledger", Verdict.WORKS)]
)
def test_a_directory_of_another_user_than_the_service_is_a_warning(
    user: str, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {65533: user} if user else {}
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=users[uid]))
    os.chown(tmp_path, 65533, -1)
    found = finding(str(tmp_path), tmp_path, tmp_path)
    remedy = f"`chown 0 {tmp_path}`" if verdict is Verdict.WARNING else ""
    assert (found.verdict, found.remedy) == (verdict, remedy)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_ledger_of_root_in_the_directory_of_the_service_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="gpuledger"))
    os.chown(tmp_path, 65533, -1)
    (tmp_path / "gpuledger.lock").touch()
    found = finding(str(tmp_path), tmp_path, tmp_path)
    assert (found.verdict, found.remedy) == (Verdict.WARNING, f"`chown -h 65533 {tmp_path}/gpuledger.*`")
    os.chown(tmp_path / "gpuledger.lock", 65533, -1)
    assert finding(str(tmp_path), tmp_path, tmp_path).verdict is Verdict.WORKS


@pytest.mark.parametrize(("given", "made_up"), [("none", False), ("none", True), ("", True)])
def test_a_ledger_in_memory_is_skipped(given: str, made_up: bool, tmp_path: Path) -> None:
    assert finding(given, tmp_path, tmp_path, made_up=made_up).verdict is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("interval", "verdicts"), [(1.0, []), (59.9, []), (60.0, [Verdict.WARNING]), (300.0, [Verdict.WARNING])]
)
def test_an_interval_that_watches_nothing_is_a_warning(interval: float, verdicts: list[Verdict]) -> None:
    checks = ledger_checks(StoreSettings("none"), {}, made_up=False, interval=interval)
    found = [one for check in checks[1:] for one in check.run()]
    assert [one.verdict for one in found] == verdicts
    assert all(f"--interval {interval:g}s" in one.why for one in found)


def test_an_interval_of_simulated_time_that_watches_nothing_is_a_warning() -> None:
    _, check = ledger_checks(StoreSettings("none"), {}, made_up=True, interval=0.5, speed=200.0)
    (found,) = check.run()
    assert "--interval 0.5s and --speed 200" in found.why
    assert "--interval to 0.15s or less or a lower --speed" in found.remedy
    assert len(ledger_checks(StoreSettings("none"), {}, made_up=True, interval=0.5, speed=100.0)) == 1


@pytest.mark.parametrize(("hold", "warned"), [(30.0, True), (70.0, False)])
def test_a_hold_that_is_too_short_for_the_last_run_is_a_warning(
    hold: float, warned: bool, tmp_path: Path
) -> None:
    run = Run(tmp_path, settings=LedgerSettings(zero_hold=70.0))
    run.tick({gpu(0): 0})
    run.store.close()
    (check,) = ledger_checks(StoreSettings(state_dir=str(tmp_path)), {}, made_up=False, hold=hold)
    _, *more = check.run()
    assert [one.check for one in more] == ["books.zero_hold"] * warned
    assert [one.remedy for one in more] == ["set energy.zero_hold to 70s"] * warned


def test_the_xids_of_the_last_day_are_listed_with_their_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    card = gpu(3)
    events = tuple(XidEvent(card, xid, UNIX) for xid in (31, 79, 43))
    run.ledger.post(Snapshot(UNIX, run.clock.elapsed(), SourceInfo("nvml"), (reading(card),), xids=events))
    run.store.close()
    monkeypatch.setattr("time.time", lambda: UNIX + 600)
    (check,) = ledger_checks(StoreSettings(state_dir=str(tmp_path)), {}, made_up=False)
    _, *found = check.run()
    assert [(one.check, one.what, one.verdict) for one in found] == [
        ("gpu.health", "GPU 3", Verdict.FAILS),
        ("gpu.health", "GPU 3", Verdict.WORKS),
    ]
    assert "Xid 79" in found[0].why and "power-cycle" in found[0].remedy
    monkeypatch.setattr("time.time", lambda: UNIX + 90_000)
    assert len(list(check.run())) == 1


def _made_by(script: str) -> Callable[[Path], None]:
    def make(file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(script)

    return make


def _text(file: Path) -> None:
    file.write_text("not a database, but long enough for its header" * 9)


def _damaged(file: Path) -> None:
    """A ledger with one table that cannot be read."""
    Run(file.parent).store.close()
    with closing(sqlite3.connect(file)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'xids'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with file.open("r+b") as stream:
        stream.seek((page - 1) * size)
        stream.write(b"damage" * 9)


_NEWER = f"PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={len(MIGRATIONS) + 1}"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_text, "is no ledger (file is not a database): `gpuledger serve` renames it"),
        (
            _made_by("CREATE TABLE t (x)"),
            "is no ledger (another program wrote it): `gpuledger serve` renames",
        ),
        (_damaged, "is no ledger (database disk image is malformed): `gpuledger serve` renames"),
        (_made_by(_NEWER), f"was written by a newer gpuledger (schema {len(MIGRATIONS) + 1})"),
    ],
)
def test_a_file_that_serve_cannot_continue_fails(
    make: Callable[[Path], None], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "gpuledger.db")
    opened: list[object] = []
    connect = sqlite3.connect
    monkeypatch.setattr("sqlite3.connect", lambda *of, **how: (opened.append(of), connect(*of, **how))[1])
    (check,) = ledger_checks(StoreSettings(state_dir=str(tmp_path)), {}, made_up=False, hold=30.0)
    (found,) = check.run()
    assert (found.verdict, found.check) == (Verdict.FAILS, "books.directory")
    assert why in found.why
    assert len(opened) == 1


@pytest.mark.parametrize(
    "script", ["", MIGRATIONS[0] + f";{_NEWER[: _NEWER.index(';')]};PRAGMA user_version=1"]
)
def test_an_empty_or_older_ledger_works(script: str, tmp_path: Path) -> None:
    _made_by(script)(tmp_path / "gpuledger.db")
    assert finding(str(tmp_path), tmp_path, tmp_path).verdict is Verdict.WORKS
