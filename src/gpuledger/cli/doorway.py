"""The unix socket on which a running gpuledger is told to pause: where it lies, and how it is opened."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.snapshot import SourceInfo
from gpuledger.node.settings import NO_SOCKET, ControlSettings

log = logging.getLogger("gpuledger.control")

NAME = "control.sock"
SYSTEM = Path("/run/gpuledger")


class Doorway:
    """A listening socket that only its owner (and root) can reach; its file goes with it.

    Raises GpuledgerError when another program hears there or nobody can.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = _bound(path)
        self._mine = _identity(path)

    def close(self) -> None:
        """Hear nobody any more. Idempotent."""
        self.socket.close()
        try:
            if _identity(self.path) == self._mine:
                self.path.unlink()
        except OSError:
            # Somebody has cleared it away, or its directory.
            pass


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    # An inode's number is used again at once.
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def open_doorway(
    settings: ControlSettings,
    source: SourceInfo,
    beside: Path | None,
    environment: Mapping[str, str],
    system: Path = SYSTEM,
) -> Doorway | None:
    """The socket that is asked for; without a word, the usual one where a driver is read.

    `beside` is the directory of the books, None without. Raises GpuledgerError when the one that is asked for
    cannot be had; of the usual one that is a line in the log.
    """
    if settings.socket == NO_SOCKET or (source.simulated and not settings.socket):
        return None
    if settings.socket:
        return Doorway(Path(settings.socket))
    for folder in _folders(environment, beside, system):
        if _usable(folder):
            try:
                return Doorway(folder / NAME)
            except GpuledgerError as error:
                log.warning("gpuledger pause will not be heard: %s", error)
                return None
    log.warning("gpuledger pause will not be heard: no directory for its socket; see --control.socket")
    return None


def usual_places(environment: Mapping[str, str], beside: Path | None, system: Path = SYSTEM) -> list[Path]:
    """Where a running gpuledger may be heard of, the likeliest first."""
    return [folder / NAME for folder in _folders(environment, beside, system)]


def _folders(environment: Mapping[str, str], beside: Path | None, system: Path) -> Iterator[Path]:
    yield system
    if environment.get("XDG_RUNTIME_DIR"):
        yield Path(environment["XDG_RUNTIME_DIR"], "gpuledger")
    if beside is not None:
        yield beside


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before it has a name: there is no moment at which others could reach it.
        os.fchmod(made.fileno(), 0o600)
        try:
            made.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _clear(path)
            made.bind(str(path))
        made.listen(8)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise GpuledgerError(f"cannot listen on {path}: {reason}; see --control.socket") from None
    except GpuledgerError:
        made.close()
        raise
    return made


def _clear(path: Path) -> None:
    """Take away what a gpuledger that was killed left behind; raises GpuledgerError for anything else."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise GpuledgerError(f"{path} is there and is no socket: give another --control.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise GpuledgerError(
        f"another gpuledger hears on {path}: stop it, or give this one its own --control.socket (or none)"
    )
