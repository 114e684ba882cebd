"""Reservations outlive a restart, and nothing else: clocks, reboots, damaged files and full disks."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from gpuledger.ledger.reservations import CommandProcess, Reservation
from gpuledger.ledger.store.reservation_file import ReservationFile, reservation_path

NOW, BOOT = 1_700_000_000.0, 5000.0
TIMED = Reservation("GPU-0", 1000, 300.0, BOOT + 300.0)
HELD = Reservation("GPU-1", 1001, command=CommandProcess(42, 7000))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = reservation_path(tmp_path / "gpuledger.db")
    ReservationFile(path, "boot-1").save([TIMED, HELD], BOOT, NOW)
    return path


def loaded(path: Path, boot: str = "boot-1", elapsed: float = BOOT, unix: float = NOW) -> list[Reservation]:
    return ReservationFile(path, boot).load(elapsed, unix)


def test_a_restart_changes_nothing(file: Path) -> None:
    assert file.name == "gpuledger.reservations.json"
    assert loaded(file, elapsed=BOOT + 10, unix=NOW + 10) == [TIMED, HELD]


def test_only_its_user_reads_the_file(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_step_of_the_wall_clock_changes_nothing(file: Path) -> None:
    assert loaded(file, elapsed=BOOT + 10, unix=NOW + 1e6) == [TIMED, HELD]
    assert loaded(file, elapsed=BOOT + 10, unix=NOW - 1e6) == [TIMED, HELD]


def test_what_is_over_is_not_loaded(file: Path) -> None:
    assert loaded(file, elapsed=BOOT + 300, unix=NOW + 300) == [HELD]


def test_after_a_reboot_commands_have_ended_and_the_rest_of_the_time_is_left(file: Path) -> None:
    (left,) = loaded(file, "boot-2", elapsed=20.0, unix=NOW + 100)
    assert left == TIMED._replace(ends=20.0 + 200.0)


@pytest.mark.parametrize(("unix", "rest"), [(NOW + 301, None), (NOW - 1e6, 300.0)])
def test_after_a_reboot_a_wrong_clock_never_lengthens_a_reservation(
    file: Path, unix: float, rest: float | None
) -> None:
    found = loaded(file, "boot-2", elapsed=20.0, unix=unix)
    assert [one.ends for one in found] == ([] if rest is None else [20.0 + rest])


def test_without_a_boot_id_each_start_counts_as_a_reboot(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ReservationFile(path, "").save([HELD], BOOT, NOW)
    assert loaded(path, "") == []


DAMAGED = (
    b"",
    b"\xff\xfe",
    b"[]",
    b"{",
    b'{"boot_id": "boot-1"}',
    b'{"boot_id": "boot-1", "reservations": [{}]}',
    b'{"boot_id": "boot-1", "reservations": [{"command": [1], "seconds": 1}]}',
    b'{"boot_id": "boot-1", "reservations": 5}',
    b"[" * 100_000,
)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_has_no_reservations_and_is_named(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(content)
    assert loaded(file) == []
    assert f"{file} is damaged" in caplog.text


def test_no_file_has_no_reservations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert loaded(tmp_path / "none.json") == []
    assert caplog.text == ""


def test_infinite_numbers_are_never_loaded(file: Path) -> None:
    stored = json.loads(file.read_text())
    stored["reservations"][0]["ends"] = float("nan")
    file.write_text(json.dumps(stored))
    assert [one.device for one in loaded(file)] == ["GPU-1"]


def test_a_disk_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = ReservationFile(tmp_path / "gone" / "r.json", "boot-1")
    storage.save([TIMED], BOOT, NOW)
    storage.save([TIMED], BOOT, NOW)
    assert caplog.text.count("reservations will be lost at a restart") == 1
