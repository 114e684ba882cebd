"""Reading files named by users, of any kind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Thread

import pytest

from gpuledger.host.files import read_at_most, replace_file


@pytest.mark.parametrize("content", [b"", b"four", b"\x00\xff\n\r\n"], ids=["empty", "full", "binary"])
def test_a_file_is_read_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert read_at_most(tmp_path / "file", 5) == content


def test_a_pipe_of_a_shell_is_read_to_the_end() -> None:
    reader, writer = os.pipe()
    thread = Thread(target=lambda: (os.write(writer, b"a: "), os.write(writer, b"1"), os.close(writer)))
    thread.start()
    assert read_at_most(Path(f"/dev/fd/{reader}"), 99) == b"a: 1"
    thread.join()
    os.close(reader)


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda path: Path("/dev/zero"), errno.EFBIG),
        (_pipe, errno.EPIPE),
        (lambda path: path.parent, errno.EISDIR),
        (lambda path: path, errno.ENOENT),
    ],
    ids=["endless", "a pipe without a writer", "a directory", "gone"],
)
def test_an_unreadable_file_raises_without_blocking(tmp_path: Path, made, reason: int) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError) as caught:
        read_at_most(made(tmp_path / "file"), 1 << 20)
    assert caught.value.errno == reason
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_replaced_file_has_the_new_content_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    for content in (b"long content", b"new"):
        replace_file(file, content)
        assert file.read_bytes() == content
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
