"""Modes of all files that programs create, whatever the umask, and commands that need to write nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from prepared import MODULE, run_prepared
from receipt_books import write_books
from running import PATIENCE, Program, serving_prepared, wait_until
from unprivileged import UID, environment, run_unprivileged, unprivileged_command

# One worker, which writes the ledger once.
pytestmark = pytest.mark.group("security")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
UMASKS = (0o000, 0o077)


@pytest.fixture(scope="module")
def books() -> Iterator[Path]:
    """A closed ledger, which all users can read and only its owner can write."""
    with TemporaryDirectory(prefix="gpuledger-") as made:
        folder = Path(made, "books")
        folder.mkdir()
        write_books(folder, hours=0.5)
        open_for_reading(Path(made))
        yield folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory outside of pytest's own, which other users cannot read."""
    with TemporaryDirectory(prefix="gpuledger-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def open_for_reading(folder: Path) -> None:
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)


def nowhere(**more: str) -> dict[str, str]:
    """Variables without a directory that can be written to."""
    return {**environment(Path("/nonexistent")), "TMPDIR": "/nonexistent", "GPULEDGER_STATE_DIR": "", **more}


def with_umask(umask: int, words: list[str]) -> list[str]:
    return ["sh", "-c", f'umask {umask:04o}; exec "$@"', "sh", *words]


def modes(folder: Path) -> dict[str, int]:
    """The modes of everything below, by its name."""
    return {
        str(place.relative_to(folder)): stat.S_IMODE(place.lstat().st_mode) for place in folder.rglob("*")
    }


def written_files(program: Program) -> set[str]:
    """Regular files that a program has open for writing."""
    found = set()
    folder = Path("/proc", str(program.process.pid))
    for link in (folder / "fd").iterdir():
        try:
            flags = int((folder / "fdinfo" / link.name).read_text().split("flags:")[1].split()[0], 8)
            if flags & (os.O_WRONLY | os.O_RDWR) and stat.S_ISREG(link.stat().st_mode):
                found.add(str(link.readlink()))
        except FileNotFoundError:
            continue
    return found


# Commands that read, and their exit codes.
READERS = {
    "report --state-dir BOOKS --since 30d": 0,
    "report --state-dir BOOKS --since 30d --format csv": 0,
    "explain --state-dir BOOKS jobs/busy --since 30d": 0,
    "receipt --state-dir BOOKS pod:jobs/busy --since 30d": 0,
    "idle --state-dir BOOKS": 0,
    "books check --state-dir BOOKS": 0,
    "top --source simulator:workstation --once": 0,
    "free --source simulator:workstation": 1,
    "metrics": 0,
    "version": 0,
}


@AS_ROOT
@pytest.mark.parametrize("command", READERS)
def test_a_command_that_reads_needs_to_write_nothing(command: str, books: Path) -> None:
    before = modes(books.parent)
    words = command.replace("BOOKS", str(books)).split()
    done = run_unprivileged(nowhere(), *words)
    assert (done.returncode, "ermission" in done.stderr) == (READERS[command], False), done.stderr
    assert modes(books.parent) == before


@AS_ROOT
def test_the_ledger_of_a_running_node_is_read_without_writing(tmp_path: Path) -> None:
    """Its write-ahead log and shared memory are files of another user."""
    folder = tmp_path / "books"
    with serving_prepared("--source", "simulator", "--state-dir", str(folder)) as node:
        node.wait_ticks()
        wait_until(lambda: list(folder.glob("*.db-wal")), "the write-ahead log")
        open_for_reading(tmp_path)

        def report() -> subprocess.CompletedProcess[str] | None:
            done = run_unprivileged(nowhere(), "report", "--state-dir", str(folder))
            return None if "no watched time yet" in done.stderr else done

        done = wait_until(report, "two stored readings")
    assert done.returncode == 0, done.stderr
    assert "total" in done.stdout


@contextmanager
def program(words: list[str], env: dict[str, str], line: str) -> Iterator[Program]:
    """A program that has logged this line."""
    started = Program(words, env)
    try:
        started.wait_line(line)
        yield started
    finally:
        assert started.stop() == 0


def private_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, UID, UID)
    return folder


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_a_node_writes_private_files_and_only_to_its_state_directory(tmp_path: Path, umask: int) -> None:
    home = private_folder(tmp_path / "home")
    state, control = home / "books", home / "control.sock"
    words = ("serve", "--source", "simulator", "--listen-address", "127.0.0.1:0")
    env = nowhere(GPULEDGER_STATE_DIR=str(state), GPULEDGER_CONTROL_SOCKET=str(control))
    command = with_umask(umask, unprivileged_command(*words))
    with program(command, env, "listening on") as node:
        wait_until(lambda: list(state.glob("*.db-wal")), "the ledger")
        assert {Path(name).parent for name in written_files(node)} == {state}
        found = modes(home)
        assert found.pop("books") == 0o700
        assert {Path(name).suffix for name in found} >= {".sock", ".db", ".db-wal", ".lock"}
        assert set(found.values()) == {0o600}
        assert {place.lstat().st_uid for place in home.rglob("*")} == {home.stat().st_uid}


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_a_fleet_writes_nothing(tmp_path: Path, umask: int) -> None:
    home = private_folder(tmp_path / "home")
    with serving_prepared("--source", "simulator") as node:
        words = ("fleet", "--node", f"127.0.0.1:{node.port}", "--listen-address", "127.0.0.1:0")
        command = with_umask(umask, unprivileged_command(*words))
        with program(command, nowhere(HOME=str(home)), "listening on") as fleet:
            assert written_files(fleet) == set()
    assert modes(home) == {}


# Commands that write what a user wants to pass on, and the files: those have the modes that the umask allows.
SHARED = {
    "books export OUT --since 30d": 4,
    "report --since 30d --statement OUT/statement.json": 1,
    "record OUT/recording --source simulator --every 1s --for 1s": 1,
}
# Those that copy what is private, or write it for another program.
FIXED = {"books backup OUT/copy.db": 0o600, "collect --source simulator --textfile-dir OUT": 0o644}


def run_into(command: str, umask: int, books: Path, out: Path) -> None:
    out.mkdir(mode=0o777)
    copied = shutil.copytree(books, out.parent / "ledger")
    words = command.replace("OUT", str(out)).split()
    env = {**os.environ, "GPULEDGER_STATE_DIR": str(copied), "GPULEDGER_CONTROL_SOCKET": "none"}
    done = run_prepared([*MODULE, *words], env, PATIENCE, umask=umask)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
@pytest.mark.parametrize("command", SHARED)
def test_what_a_user_passes_on_has_the_modes_of_the_umask(
    command: str, umask: int, books: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_into(command, umask, books, out)
    files = [place for place in out.rglob("*") if place.is_file()]
    assert len(files) >= SHARED[command]
    for place in out.rglob("*"):
        assert stat.S_IMODE(place.stat().st_mode) == (0o777 if place.is_dir() else 0o666) & ~umask, place


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
@pytest.mark.parametrize("command", FIXED)
def test_other_files_have_the_same_mode_with_every_umask(
    command: str, umask: int, books: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run_into(command, umask, books, out)
    assert set(modes(out).values()) == {FIXED[command]}
