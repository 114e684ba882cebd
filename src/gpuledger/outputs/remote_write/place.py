"""Where the queues lie, and that one program has them."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from gpuledger.model.errors import GpuledgerError

_TAKEN: Final = frozenset({errno.EAGAIN, errno.EACCES})
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_OURS: Final = re.compile(r"\d{12}\.blocks|position")


class Lock:
    """Held for as long as the queues are open; the kernel lets it go with us."""

    def __init__(self, directory: Path) -> None:
        """Raises GpuledgerError when the directory cannot be used, or another program uses it."""
        import fcntl

        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise GpuledgerError(
                f"the remote write queues cannot be kept in {directory}: {error.strerror}; name a directory "
                f"that user {os.geteuid()} can write to"
            ) from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            why = "another gpuledger" if error.errno in _TAKEN else error.strerror
            raise GpuledgerError(
                f"the remote write queues in {directory} are in use ({why}): stop it, or name another "
                "directory"
            ) from None

    def release(self) -> None:
        """Let another program have them. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def folder_of(directory: Path, name: str) -> Path:
    """The folder of the receiver of that name, whatever characters are in it."""
    if _PLAIN.fullmatch(name) and name != "lock":
        return directory / name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40]
    return directory / f"{plain or 'receiver'}-{sha256(name.encode()).hexdigest()[:12]}"


def left_behind(directory: Path, used: set[Path]) -> dict[Path, tuple[int, float]]:
    """Queues of receivers that are no longer there: their bytes, and the unix time of the last change."""
    found = {}
    for folder in directory.iterdir():
        if folder in used or not folder.is_dir():
            continue
        with suppress(OSError):
            stats = [file.stat() for file in folder.iterdir() if _OURS.fullmatch(file.name)]
            if stats:
                found[folder] = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
    return found


def remove(folder: Path) -> None:
    """Take a queue away, and nothing that is none of ours. Raises OSError."""
    for file in folder.iterdir():
        if _OURS.fullmatch(file.name):
            file.unlink()
    folder.rmdir()
