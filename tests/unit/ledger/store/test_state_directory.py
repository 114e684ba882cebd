"""Where the ledger is stored, and who can read it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders import FakeClock
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.state_directory import create_state_dir, ledger_name
from gpuledger.ledger.store.store_factory import open_store
from gpuledger.model.snapshot import SourceInfo
from ledger_helpers import UNIX, Run, post_training


def test_simulated_data_is_stored_only_on_request_and_in_a_separate_file(tmp_path: Path) -> None:
    simulated = SourceInfo("simulator", simulated=True, detail="k8s node/1")
    clock = FakeClock(UNIX)
    assert open_store(StoreSettings(), simulated, "boot", clock, {}, tmp_path) is None
    stored = open_store(StoreSettings(str(tmp_path / "a")), simulated, "boot", clock, {})
    assert stored is not None
    assert stored.file == tmp_path / "a" / "simulator-k8s_node_1.db"
    assert ledger_name(SourceInfo("nvml")) == "gpuledger"
    stored.close()


def test_state_dir_none_keeps_the_ledger_in_memory(tmp_path: Path) -> None:
    assert open_store(StoreSettings("none"), SourceInfo("nvml"), "b", FakeClock(), {}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_is_readable_only_by_its_user(tmp_path: Path) -> None:
    folder = create_state_dir(str(tmp_path / "new" / "books"), {})
    run = Run(folder)
    post_training(run, 2)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    run.store.close()


def test_without_the_system_directory_the_users_own_is_used(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    home = {"HOME": str(tmp_path / "home")}
    assert create_state_dir("", home, blocked / "x") == tmp_path / "home" / ".local" / "state" / "gpuledger"
    home["XDG_STATE_HOME"] = str(tmp_path / "state")
    assert create_state_dir("", home, blocked / "x") == tmp_path / "state" / "gpuledger"
    assert create_state_dir("", home, tmp_path / "system") == tmp_path / "system"


def test_a_file_system_that_is_mounted_read_only_is_named_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: Path, *_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(os, "open", refuse)
    stored = open_store(StoreSettings(str(tmp_path)), SourceInfo("nvml"), "boot", FakeClock(UNIX), {})
    monkeypatch.undo()
    assert stored is not None
    why = "Read-only file system"
    assert caplog.messages == [
        f"no writable directory for the ledger: {tmp_path}: {why}; set --state-dir",
        f"{tmp_path}/gpuledger.lock: {why}; the ledger is kept in memory until the next start",
    ]
    stored.close()
