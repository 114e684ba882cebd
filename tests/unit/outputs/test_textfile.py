"""The textfile: atomic writes by one writer at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.outputs import textfile
from gpuledger.outputs.textfile import Textfile, write_all

NAME = "gpu_processes.prom"


def listing(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_directory_contains_only_the_written_file(tmp_path: Path) -> None:
    with Textfile(tmp_path, NAME) as file:
        file.write(b"gpu_total_processes 1\n")
        file.write(b"gpu_total_processes 2\n")
    assert listing(tmp_path) == {NAME: b"gpu_total_processes 2\n"}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_node_exporter_can_read_the_file_with_any_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with Textfile(tmp_path, NAME) as file:
            file.write(b"a 1\n")
    finally:
        os.umask(before)
    assert (tmp_path / NAME).stat().st_mode & 0o7777 == 0o644


def test_an_empty_body_removes_the_file(tmp_path: Path) -> None:
    with Textfile(tmp_path, NAME) as file:
        file.write(b"a 1\n")
        file.write(b"")
        file.write(b"")
    assert listing(tmp_path) == {}


def test_remove_returns_whether_the_file_existed(tmp_path: Path) -> None:
    with Textfile(tmp_path, NAME) as file:
        file.write(b"a 1\n")
        assert file.remove()
        assert not file.remove()


def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    (tmp_path / NAME).symlink_to(other)
    with Textfile(tmp_path, NAME) as file:
        file.write(b"a 1\n")
    assert listing(tmp_path) == {"other": b"theirs", NAME: b"a 1\n"}
    assert not (tmp_path / NAME).is_symlink()


def test_only_own_temporary_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    ours = tmp_path / f".{NAME}.0123456789ab.tmp"
    theirs = [tmp_path / name for name in (".other.prom.0123456789ab.tmp", f".{NAME}.old.tmp", "x.tmp")]
    for path in (ours, *theirs):
        path.write_bytes(b"half")
    with Textfile(tmp_path, NAME):
        assert not ours.exists()
        assert all(path.exists() for path in theirs)


def test_a_second_writer_is_rejected_until_the_first_has_ended(tmp_path: Path) -> None:
    with Textfile(tmp_path, NAME) as first:
        first.write(b"a 1\n")
        with pytest.raises(
            GpuledgerError, match=r"is in use by another gpuledger collect; stop it, or give"
        ) as refused:
            Textfile(tmp_path, NAME).__enter__()
        assert str(tmp_path / NAME) in str(refused.value)
        first.write(b"a 2\n")
        with pytest.raises(GpuledgerError), Textfile(tmp_path, NAME):
            pass
    with Textfile(tmp_path, NAME) as second:
        second.write(b"a 3\n")
    assert listing(tmp_path) == {NAME: b"a 3\n"}


def test_another_file_in_the_same_directory_can_have_another_writer(tmp_path: Path) -> None:
    with Textfile(tmp_path, NAME) as one, Textfile(tmp_path, "gpu_native.prom") as two:
        one.write(b"a 1\n")
        two.write(b"b 1\n")
    assert listing(tmp_path) == {NAME: b"a 1\n", "gpu_native.prom": b"b 1\n"}


def test_the_lock_file_of_a_killed_writer_does_not_block(tmp_path: Path) -> None:
    (tmp_path / f".{NAME}.lock").touch()
    with Textfile(tmp_path, NAME) as file:
        file.write(b"a 1\n")
    assert listing(tmp_path) == {NAME: b"a 1\n"}


def test_a_lock_file_removed_before_locking_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / f".{NAME}.lock"
    real = textfile.fcntl.flock
    taken = []

    def flock(handle: int, operation: int) -> None:
        if not taken:
            lock.unlink()
        taken.append(handle)
        real(handle, operation)

    monkeypatch.setattr(textfile.fcntl, "flock", flock)
    with Textfile(tmp_path, NAME), pytest.raises(GpuledgerError):
        Textfile(tmp_path, NAME).__enter__()
    assert len(taken) == 3


CAUSES = [
    (errno.ENOSPC, "free some space on it"),
    (errno.EDQUOT, "raise the quota"),
    (errno.EROFS, "mount it writable"),
    (errno.EACCES, "SELinux"),
    (errno.EIO, "check that the directory is writable and its disk works"),
]


@pytest.mark.parametrize("step", ["open", "write", "fsync", "fchmod"])
@pytest.mark.parametrize(("code", "remedy"), CAUSES)
def test_a_failed_write_keeps_the_old_file_and_raises_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int, remedy: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with Textfile(tmp_path, NAME) as file:
        file.write(b"old 1\n")
        with monkeypatch.context() as patched:
            patched.setattr(textfile.os, step, fail)
            with pytest.raises(GpuledgerError) as failed:
                file.write(b"new 1\n")
        assert (tmp_path / NAME).read_bytes() == b"old 1\n"
        assert {path.name for path in tmp_path.iterdir()} == {NAME, f".{NAME}.lock"}
    line = str(failed.value)
    assert str(tmp_path) in line
    assert os.strerror(code) in line
    assert remedy in line
    assert "\n" not in line
    assert failed.value.exit_code == 1


def test_a_directory_that_does_not_support_fsync_is_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112  (a descriptor, not a path)
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr(textfile.os, "fsync", fsync)
    with Textfile(tmp_path, NAME) as file:
        file.write(b"a 1\n")
    assert listing(tmp_path) == {NAME: b"a 1\n"}


def test_data_is_synced_before_the_rename_and_the_directory_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(handle: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().suffix or 'directory'}")
        sync(handle)

    def rename(path: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(path, target)

    monkeypatch.setattr(textfile.os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    with Textfile(tmp_path / ".", NAME) as file:
        file.write(b"a 1\n")
    assert calls == ["sync .tmp", "rename", "sync directory"]


def test_short_writes_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = bytearray()

    def write(_handle: int, body: memoryview) -> int:
        taken.extend(body[:3])
        return min(3, len(body))

    monkeypatch.setattr(textfile.os, "write", write)
    write_all(9, b"0123456789")
    assert taken == b"0123456789"


def missing(path: Path) -> Path:
    return path / "missing"


def no_directory(path: Path) -> Path:
    (path / "file").touch()
    return path / "file"


@pytest.mark.parametrize("place", [missing, no_directory])
def test_an_invalid_directory_is_named_with_the_remedy(tmp_path: Path, place: Callable[[Path], Path]) -> None:
    directory = place(tmp_path)
    with pytest.raises(GpuledgerError, match="--textfile-dir") as failed, Textfile(directory, NAME):
        pass
    assert str(directory) in str(failed.value)
