"""The epoch (boot and driver load) from a procfs, on directory trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.host.procfs import ProcFs, RemoteHost

BOOT_ID = "1c5a9a4e-6f5a-4f0c-9d6e-0a1b2c3d4e5f"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "sys/kernel/random/boot_id", BOOT_ID + "\n")
    put(tmp_path / "2/comm", "kthreadd\n")
    put(tmp_path / "version", "Linux\n")
    thread(tmp_path, 2, "kthreadd", 1, parent=0)
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def thread(root: Path, pid: int, comm: str, ticks: int, parent: int = 2) -> None:
    middle = " ".join(["0"] * 17)
    put(root / f"{pid}/stat", f"{pid} ({comm}) S {parent} {middle} {ticks} 0 0\n")


def test_without_a_driver_the_epoch_is_the_boot_id(root: Path) -> None:
    assert ProcFs(root).epoch() == (BOOT_ID, "")


def test_the_earliest_thread_of_the_driver_is_its_load_time(root: Path) -> None:
    thread(root, 700, "nv_queue", 1201)
    thread(root, 800, "nv_queue", 1200)
    thread(root, 600, "nv_queue", 99_000)
    assert ProcFs(root).epoch() == (BOOT_ID, "1200")


@pytest.mark.parametrize(
    ("comm", "parent"),
    [
        ("nv_queue", 1),
        ("nv_queue2", 2),
        ("a) nv_queue", 2),
        ("nvidia", 2),
        ("irq/131-nvidia", 2),
        ("nvidia-modeset/", 2),
        ("UVM global queue", 2),
    ],
)
def test_other_threads_do_not_determine_the_load_time(root: Path, comm: str, parent: int) -> None:
    thread(root, 700, "nv_queue", 1200)
    thread(root, 701, comm, 1100, parent)
    assert ProcFs(root).epoch() == (BOOT_ID, "1200")


def test_the_epoch_is_read_on_each_call(root: Path) -> None:
    host = ProcFs(root)
    thread(root, 700, "nv_queue", 1200)
    assert host.epoch() == (BOOT_ID, "1200")
    (root / "700/stat").unlink()
    thread(root, 900, "nv_queue", 70_000)
    assert host.epoch() == (BOOT_ID, "70000")


def test_the_load_time_is_unknown_outside_the_pid_namespace_of_the_host(root: Path) -> None:
    put(root / "2/comm", "bash\n")
    thread(root, 700, "nv_queue", 1200)
    assert ProcFs(root).epoch() == (BOOT_ID, "")


@pytest.mark.parametrize(
    "broken", ["", "700 (nv_queue", "700 (nv_queue) S 2 1", "700 (nv_queue) S 2" + " x" * 30]
)
def test_an_unreadable_thread_is_ignored(root: Path, broken: str) -> None:
    put(root / "700/stat", broken)
    thread(root, 800, "nv_queue", 1300)
    assert ProcFs(root).epoch() == (BOOT_ID, "1300")


def test_a_missing_procfs_has_an_empty_epoch(tmp_path: Path) -> None:
    assert ProcFs(tmp_path / "none", pids="trust").epoch() == ("", "")


def test_a_remote_host_has_an_empty_epoch() -> None:
    assert RemoteHost().epoch() == ("", "")
