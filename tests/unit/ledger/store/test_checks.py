"""What doctor says of where the books are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.checks import books_checks
from gpuledger.model.checks import Finding, Verdict


def finding(given: str, system: Path, home: Path, *, made_up: bool = False) -> Finding:
    environment = {"XDG_STATE_HOME": str(home)}
    (check,) = books_checks(StoreSettings(given), environment, made_up=made_up, system=system)
    (found,) = check.look()
    return found


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """Below a file nothing can be made, by root neither."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "below"


def test_a_directory_is_said_to_be_made_and_is_not_yet(tmp_path: Path, nowhere: Path) -> None:
    found = finding("", tmp_path / "lib" / "gpuledger", nowhere)
    assert (found.verdict, found.why.partition(" will")[0]) == (
        Verdict.WORKS,
        str(tmp_path / "lib" / "gpuledger"),
    )
    assert not (tmp_path / "lib").exists()


def test_without_the_machines_directory_it_is_the_users_own(tmp_path: Path, nowhere: Path) -> None:
    found = finding("", nowhere, tmp_path)
    assert found.why.startswith(f"{tmp_path}/gpuledger will be made")


def test_without_any_it_says_what_is_lost_and_what_to_do(nowhere: Path) -> None:
    found = finding("", nowhere, nowhere)
    assert found.verdict is Verdict.WARNING
    assert "in memory alone" in found.why
    assert found.remedy.startswith(f"`install -d -m 700 -o {os.geteuid()} {nowhere}`")
    assert finding(str(nowhere), nowhere, nowhere).verdict is Verdict.FAILS


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [(0o700, Verdict.WORKS), (0o755, Verdict.WORKS), (0o770, Verdict.WARNING), (0o777, Verdict.WARNING)],
)
def test_a_directory_that_others_may_write_is_no_place_for_books(
    mode: int, verdict: Verdict, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    found = finding(str(tmp_path), tmp_path, tmp_path)
    assert found.verdict is verdict
    assert found.remedy == (f"`chmod go-w {tmp_path}`" if verdict is Verdict.WARNING else "")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_directory_of_another_user_is_no_place_for_books(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, -1)
    found = finding(str(tmp_path), tmp_path, tmp_path)
    assert (found.verdict, found.remedy) == (Verdict.WARNING, f"`chown 0 {tmp_path}`")


@pytest.mark.parametrize(("given", "made_up"), [("none", False), ("none", True), ("", True)])
def test_books_in_memory_are_not_looked_at(given: str, made_up: bool, tmp_path: Path) -> None:
    assert finding(given, tmp_path, tmp_path, made_up=made_up).verdict is Verdict.SKIPPED
