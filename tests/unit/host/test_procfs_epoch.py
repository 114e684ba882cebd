"""Which life of the machine and of its driver this is, from a procfs written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.host.procfs import NoHost, ProcFs

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


def test_without_a_driver_only_the_boot_is_known(root: Path) -> None:
    assert ProcFs(root).epoch() == (BOOT_ID, "")


def test_the_earliest_thread_of_the_driver_is_its_load(root: Path) -> None:
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
def test_what_does_not_live_as_long_as_the_driver_is_not_its_load(root: Path, comm: str, parent: int) -> None:
    thread(root, 700, "nv_queue", 1200)
    thread(root, 701, comm, 1100, parent)
    assert ProcFs(root).epoch() == (BOOT_ID, "1200")


def test_each_asking_looks_anew(root: Path) -> None:
    host = ProcFs(root)
    thread(root, 700, "nv_queue", 1200)
    assert host.epoch() == (BOOT_ID, "1200")
    (root / "700/stat").unlink()
    thread(root, 900, "nv_queue", 70_000)
    assert host.epoch() == (BOOT_ID, "70000")


def test_outside_the_hosts_pid_namespace_the_drivers_load_is_not_known(root: Path) -> None:
    put(root / "2/comm", "bash\n")
    thread(root, 700, "nv_queue", 1200)
    assert ProcFs(root).epoch() == (BOOT_ID, "")


@pytest.mark.parametrize(
    "broken", ["", "700 (nv_queue", "700 (nv_queue) S 2 1", "700 (nv_queue) S 2" + " x" * 30]
)
def test_a_thread_that_cannot_be_read_is_none(root: Path, broken: str) -> None:
    put(root / "700/stat", broken)
    thread(root, 800, "nv_queue", 1300)
    assert ProcFs(root).epoch() == (BOOT_ID, "1300")


def test_a_procfs_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert ProcFs(tmp_path / "none", pids="trust").epoch() == ("", "")


def test_of_another_machine_nothing_is_known() -> None:
    assert NoHost().epoch() == ("", "")
