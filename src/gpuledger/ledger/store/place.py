"""Where the books lie, and that one program writes them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import SourceInfo

SYSTEM = Path("/var/lib/gpuledger")
_AHEAD, _LEVEL = b"ahead\n", b"level\n"
_TAKEN = frozenset({errno.EAGAIN, errno.EACCES})


def state_dir(given: str, environment: Mapping[str, str], system: Path = SYSTEM) -> Path:
    """The directory asked for; else the system's, or the user's own where that one cannot be written.

    Creates what it answers, mode 0700. Raises OSError when it cannot.
    """
    if given:
        return _made(Path(given))
    try:
        return _made(system)
    except OSError:
        return _made(_own(environment))


def usual_dirs(given: str, environment: Mapping[str, str], system: Path = SYSTEM) -> list[Path]:
    """Every directory that `state_dir` may have answered; nothing is made."""
    return [Path(given)] if given else [system, _own(environment)]


def find_dir(environment: Mapping[str, str], system: Path = SYSTEM) -> Path:
    """Where `state_dir` put the books of one who named no directory; nothing is made."""
    own = _own(environment)
    # By access and not by sight: HOME may be another user's, as with `sudo -u`, and closed to us.
    return own if os.access(own, os.F_OK) and not os.access(system, os.W_OK | os.X_OK) else system


def _own(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME") or Path(environment.get("HOME") or "/", ".local", "state")
    return Path(home, "gpuledger")


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


def book_name(source: SourceInfo) -> str:
    """The file's name without suffix: what is made up never mixes with what was measured."""
    if not source.simulated:
        return "gpuledger"
    words = "-".join(word for word in (source.name, source.detail) if word)
    return "".join(char if char.isalnum() or char in "-." else "_" for char in words)[:100]


class Lock:
    """Held on a small file beside the books for as long as they are open; the kernel lets it go with us.

    The file also says whether something was exported that the books do not have ("ahead"). It is written in
    place, so that this can be said even on a full disk. Only a crash of the machine can lose it.
    """

    def __init__(self, file: Path) -> None:
        """Raises GpuledgerError when another program holds it, OSError when it cannot be made."""
        import fcntl

        self._file = file
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            if error.errno in _TAKEN:
                raise GpuledgerError(
                    f"the books in {file.parent} are being written by another gpuledger: stop it, or give "
                    "this one its own --state-dir (or none)"
                ) from None
            raise
        self.was_ahead = os.pread(self._handle, len(_AHEAD), 0) == _AHEAD
        self._ahead = self.was_ahead

    def say(self, *, ahead: bool) -> bool:
        """Whether what is exported is ahead of the books; False when that could not be written."""
        if ahead != self._ahead:
            try:
                os.pwrite(self._handle, _AHEAD if ahead else _LEVEL, 0)
            except OSError:
                return False
            self._ahead = ahead
        return True

    @property
    def stands(self) -> bool:
        """Whether the file is still the one that is held: nobody is kept away by a lock that was moved."""
        return is_at(self._file, os.fstat(self._handle))

    def release(self) -> None:
        """Let another program have the books. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def is_at(file: Path, found: os.stat_result) -> bool:
    """Whether this is what stands at that path, links followed."""
    try:
        return os.path.samestat(file.stat(), found)
    except OSError:
        return False


def set_aside(file: Path, unix: float) -> Path:
    """Rename damaged books, with what belongs to them, to `.corrupt-<unix>`; answers the new name."""
    aside = file.with_name(f"{file.name}.corrupt-{int(unix)}")
    number = 1
    while aside.exists():
        number += 1
        aside = file.with_name(f"{file.name}.corrupt-{int(unix)}-{number}")
    for suffix in ("", "-wal", "-shm"):
        part = file.with_name(file.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside
