"""The control socket (a unix socket) of a running gpuledger: its paths, its server side, its client side."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
from collections.abc import Iterable, Mapping
from os import environ
from pathlib import Path
from typing import Any, Final

from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.state_directory import candidate_dirs
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import SourceInfo
from gpuledger.node.settings import NO_SOCKET, ControlSettings

log = logging.getLogger("gpuledger.control")

SOCKET_NAME = "control.sock"
RUN_DIR = Path("/run/gpuledger")


class ControlSocket:
    """A listening unix socket that only its user and root can connect to. Closing it removes its file.

    Raises GpuledgerError when another program listens there or the path cannot be bound.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = _bind(path)
        self._mine = _identity(path)

    def close(self) -> None:
        """Stop listening and remove the file. Idempotent."""
        self.socket.close()
        try:
            if _identity(self.path) == self._mine:
                self.path.unlink()
        except OSError:
            # The file or its directory has already been removed.
            pass


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    # The modification time too: the kernel reuses inode numbers immediately.
    return (found.st_dev, found.st_ino, found.st_mtime_ns)


def open_control_socket(
    settings: ControlSettings,
    source: SourceInfo,
    state_dir: Path | None,
    environment: Mapping[str, str],
    system: Path = RUN_DIR,
) -> ControlSocket | None:
    """Open the configured control socket; by default, the first usable default path if a driver is read.

    `state_dir` is the directory of the ledger, None without one. Raises GpuledgerError when a configured
    socket cannot be opened; for a default path this is only logged.
    """
    if settings.socket == NO_SOCKET or (source.simulated and not settings.socket):
        return None
    if settings.socket:
        return ControlSocket(Path(settings.socket))
    for path in default_socket_paths(environment, state_dir, system):
        if _usable(path.parent):
            try:
                return ControlSocket(path)
            except GpuledgerError as error:
                log.warning("gpuledger pause will not work: %s", error)
                return None
    log.warning("gpuledger pause will not work: no directory for the control socket; set --control.socket")
    return None


def default_socket_paths(
    environment: Mapping[str, str], state_dir: Path | None, system: Path = RUN_DIR
) -> list[Path]:
    """Default paths of the control socket of a running gpuledger, the most likely first."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    folders = (system, Path(runtime, "gpuledger") if runtime else None, state_dir)
    return [folder / SOCKET_NAME for folder in folders if folder is not None]


def _usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _bind(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before bind creates the file, so that other users can connect at no moment.
        os.fchmod(made.fileno(), 0o600)
        try:
            made.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale_socket(path)
            made.bind(str(path))
        made.listen(8)
    except (OSError, GpuledgerError) as error:
        made.close()
        if isinstance(error, GpuledgerError):
            raise
        reason = error.strerror or str(error)
        raise GpuledgerError(f"cannot listen on {path}: {reason}; see --control.socket") from None
    return made


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket file of a gpuledger that was killed; raises GpuledgerError for any other file."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise GpuledgerError(f"{path} exists and is not a socket: choose another --control.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise GpuledgerError(
        f"another gpuledger listens on {path}: stop it, or give this one its own --control.socket (or none)"
    )


# Seconds. The server waits up to 30 s for a reading in progress and, after a resume, for the next reading.
_RESPONSE_TIMEOUT: Final = 90.0


def send_request(values: Mapping[str, Any], request: Mapping[str, object]) -> str:
    """Send a request to the running gpuledger and return its answer, a text for people.

    Raises GpuledgerError when none runs here, when it cannot be reached, or when the request failed.
    """
    settings = build_settings(ControlSettings, values)
    if settings.socket == NO_SOCKET:
        raise UsageError(
            "--control.socket none: gpuledger has no control socket; name the socket of the running gpuledger"
        )
    if settings.socket:
        return send_request_to([Path(settings.socket)], request)
    state_dir = build_settings(StoreSettings, values).state_dir
    state_dirs = [None] if state_dir == MEMORY_ONLY else candidate_dirs(state_dir, environ)
    paths = [path for folder in state_dirs for path in default_socket_paths(environ, folder)]
    return send_request_to(dict.fromkeys(paths), request)


def send_request_to(
    paths: Iterable[Path], request: Mapping[str, object], timeout: float = _RESPONSE_TIMEOUT
) -> str:
    """Like `send_request`, on the first of these sockets that accepts a connection."""
    paths, forbidden = list(paths), []
    for path in paths:
        try:
            return _result_of(_exchange(path, request, timeout), path)
        except TimeoutError:
            raise GpuledgerError(
                f"no answer on {path} within {timeout:g} s: check `/health` and the log of gpuledger"
            ) from None
        except PermissionError:
            forbidden.append(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            continue
        except OSError as error:
            raise GpuledgerError(f"cannot connect to {path}: {error.strerror or error}") from None
    if forbidden:
        raise GpuledgerError(
            f"no permission to connect to {forbidden[0]}: run this as root, or as the user of gpuledger serve"
        )
    raise GpuledgerError(
        f"no gpuledger is running here: nothing listens on {' or '.join(map(str, paths))}; run this where"
        " `gpuledger serve` runs (on that node, in its container: kubectl exec POD -- gpuledger ..., as its"
        " user), with the same --control.socket or --config"
    )


def _exchange(path: Path, request: Mapping[str, object], timeout: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(timeout)
        connected.connect(str(path))
        connected.sendall(json.dumps(dict(request)).encode() + b"\n")
        received = b""
        while more := connected.recv(4096):
            received += more
    return received


def _result_of(received: bytes, path: Path) -> str:
    try:
        answer = json.loads(received)
        if "ok" in answer:
            return str(answer["ok"])
        error = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        raise GpuledgerError(
            f"malformed answer on {path}: the listening program is not gpuledger, or it has just exited"
        ) from None
    raise GpuledgerError(error)
