"""The unix socket on which a running gpuledger is told to pause: where it lies, and how it is opened."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from os import environ
from pathlib import Path
from typing import Any, Final

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.place import usual_dirs
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build
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


# The other side waits up to half a minute for a reading that is under way, and after a pause for the next.
_PATIENCE: Final = 90.0
_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})


def ask(values: Mapping[str, Any], request: Mapping[str, object]) -> str:
    """What the running gpuledger answers, in words for a person.

    Raises GpuledgerError when none runs here, it cannot be reached, or it could not do it.
    """
    settings = build(ControlSettings, values)
    if settings.socket == NO_SOCKET:
        raise UsageError(
            "--control.socket none: so gpuledger hears nobody; name the socket of the running one"
        )
    asked_for = [Path(settings.socket)] if settings.socket else _usual(build(StoreSettings, values))
    return ask_at(asked_for, request)


def ask_at(places: Iterable[Path], request: Mapping[str, object], patience: float = _PATIENCE) -> str:
    """As `ask`, of the first of these sockets on which somebody hears."""
    places, forbidden = list(places), []
    for place in places:
        try:
            return _told(_exchange(place, request, patience), place)
        except TimeoutError:
            raise GpuledgerError(
                f"no answer on {place} for {patience:g} s: see what `/health` of gpuledger and its log say"
            ) from None
        except OSError as error:
            if error.errno in _FORBIDDEN:
                forbidden.append(place)
            elif error.errno not in _NOBODY:
                raise GpuledgerError(f"cannot reach {place}: {error.strerror or error}") from None
    if forbidden:
        raise GpuledgerError(
            f"no permission for {forbidden[0]}: run this as root, or as the user that gpuledger runs as"
        )
    raise GpuledgerError(
        f"no gpuledger runs here: nobody hears on {' or '.join(map(str, places))}; run this where `gpuledger"
        " serve` runs (on that node, in its container: kubectl exec POD -- gpuledger ..., as its user), with"
        " the --control.socket or --config that it was given"
    )


def _usual(store: StoreSettings) -> list[Path]:
    beside = [None] if store.state_dir == MEMORY_ONLY else usual_dirs(store.state_dir, environ)
    return list(dict.fromkeys(place for folder in beside for place in usual_places(environ, folder)))


def _exchange(place: Path, request: Mapping[str, object], patience: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(patience)
        door.connect(str(place))
        door.sendall(json.dumps(dict(request)).encode() + b"\n")
        said = b""
        while more := door.recv(4096):
            said += more
    return said


def _told(said: bytes, place: Path) -> str:
    try:
        answer = json.loads(said)
        if "ok" in answer:
            return str(answer["ok"])
        error = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        raise GpuledgerError(f"what hears on {place} is no gpuledger, or it has just ended") from None
    raise GpuledgerError(error)
