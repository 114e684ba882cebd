"""The control socket (a unix socket) of a running gpuledger: its paths, its server side, its client side."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
import time
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


# Modes of the socket file: its user and root can connect, or all users of the machine.
PRIVATE_MODE: Final = 0o600
SHARED_MODE: Final = 0o666


class ControlSocket:
    """A listening unix socket that those can connect to whom its mode admits. Closing it removes its file.

    Raises GpuledgerError when another program listens there or the path cannot be bound.
    """

    def __init__(self, path: Path, mode: int = PRIVATE_MODE) -> None:
        self.path = path
        self.socket = _bind(path)
        if mode != PRIVATE_MODE:
            # The mode of `bind` is reduced by the umask.
            path.chmod(mode)
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
    mode: int = PRIVATE_MODE,
) -> ControlSocket | None:
    """Open the configured control socket; by default, the first usable default path if a driver is read.

    `state_dir` is the directory of the ledger, None without one. `mode` is that of the socket. Raises
    GpuledgerError when a configured socket cannot be opened; for a default path this is only logged.
    """
    if settings.socket == NO_SOCKET or (source.simulated and not settings.socket):
        if mode == SHARED_MODE:
            log.warning(
                "users cannot read their own rows over a control socket: there is none; set --control.socket"
                " (a simulator or a recording has none by default)"
            )
        return None
    if settings.socket:
        return _open(Path(settings.socket), mode)
    for path in default_socket_paths(environment, state_dir, system):
        if _usable(path.parent, mode):
            try:
                return _open(path, mode)
            except GpuledgerError as error:
                log.warning("gpuledger pause will not work: %s", error)
                return None
    log.warning("gpuledger pause will not work: no directory for the control socket; set --control.socket")
    return None


def _open(path: Path, mode: int) -> ControlSocket:
    opened = ControlSocket(path, mode)
    if mode == SHARED_MODE and not path.parent.stat().st_mode & stat.S_IXOTH:
        log.warning(
            "users cannot reach %s: its directory admits only its owner; set --control.socket to a file in a"
            " directory with mode 0755, such as /run/gpuledger",
            path,
        )
    return opened


def default_socket_paths(
    environment: Mapping[str, str], state_dir: Path | None, system: Path = RUN_DIR
) -> list[Path]:
    """Default paths of the control socket of a running gpuledger, the most likely first."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    folders = (system, Path(runtime, "gpuledger") if runtime else None, state_dir)
    return [folder / SOCKET_NAME for folder in folders if folder is not None]


def _usable(folder: Path, mode: int) -> bool:
    try:
        folder.mkdir(mode=0o700)
        if mode == SHARED_MODE:
            # The mode of `mkdir` is reduced by the umask.
            folder.chmod(0o755)
    except FileExistsError:
        pass
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


# Clients that wait for being accepted: more are refused at once, as AF_UNIX does not make them wait.
_BACKLOG: Final = 128


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
        made.listen(_BACKLOG)
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
# Seconds in which a busy server is tried again, and between two tries.
_BUSY_PATIENCE: Final = 10.0
_BUSY_PAUSE: Final = 0.05
# Bytes of an answer.
_LONGEST_ANSWER: Final = 64 << 20


class NoServeRunning(GpuledgerError):
    """No gpuledger listens on any of the control sockets."""


class SocketForbidden(GpuledgerError):
    """A gpuledger listens, but this user may not connect to its control socket."""


def send_request(values: Mapping[str, Any], request: Mapping[str, object]) -> str:
    """Send a request to the running gpuledger and return its answer, a text for people.

    Raises GpuledgerError when none runs here, when it cannot be reached, or when the request failed.
    """
    return send_request_to(control_socket_paths(values), request)


def send_request_to(
    paths: Iterable[Path], request: Mapping[str, object], timeout: float = _RESPONSE_TIMEOUT
) -> str:
    """Like `send_request`, on the first of these sockets that accepts a connection."""
    answer = exchange_with(paths, request, timeout)
    if "ok" not in answer:
        raise GpuledgerError("malformed answer: the running gpuledger is another version, or another program")
    return str(answer["ok"])


def control_socket_paths(values: Mapping[str, Any]) -> list[Path]:
    """The paths at which a gpuledger with these settings listens. Raises UsageError if it has no socket."""
    settings = build_settings(ControlSettings, values)
    if settings.socket == NO_SOCKET:
        raise UsageError(
            "--control.socket none: gpuledger has no control socket; name the socket of the running gpuledger"
        )
    if settings.socket:
        return [Path(settings.socket)]
    state_dir = build_settings(StoreSettings, values).state_dir
    state_dirs = [None] if state_dir == MEMORY_ONLY else candidate_dirs(state_dir, environ)
    paths = [path for folder in state_dirs for path in default_socket_paths(environ, folder)]
    return list(dict.fromkeys(paths))


def exchange(values: Mapping[str, Any], request: Mapping[str, object]) -> Mapping[str, Any]:
    """Send a request to the running gpuledger and return its answer, a JSON object.

    Raises NoServeRunning when none runs here, SocketForbidden when this user may not connect, and
    GpuledgerError when the request failed.
    """
    return exchange_with(control_socket_paths(values), request)


def exchange_with(
    paths: Iterable[Path], request: Mapping[str, object], timeout: float = _RESPONSE_TIMEOUT
) -> Mapping[str, Any]:
    """Like `exchange`, on the first of these sockets that accepts a connection."""
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
        raise SocketForbidden(
            f"no permission to connect to {forbidden[0]}: run this as root, or as the user of gpuledger serve"
        )
    raise NoServeRunning(
        f"no gpuledger is running here: nothing listens on {' or '.join(map(str, paths))}; run this where"
        " `gpuledger serve` runs (on that node, in its container: kubectl exec POD -- gpuledger ..., as its"
        " user), with the same --control.socket or --config"
    )


def _exchange(path: Path, request: Mapping[str, object], timeout: float) -> bytes:
    """The answer; a busy server is tried again for some seconds. Raises OSError."""
    until = time.monotonic() + min(_BUSY_PATIENCE, timeout)
    while True:
        is_last = time.monotonic() >= until
        try:
            received = _exchange_once(path, request, timeout)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            # Too many clients wait to be accepted, or for their answers.
            if is_last:
                raise
        else:
            if is_last or not received.endswith(BUSY_MARK):
                return received
        time.sleep(_BUSY_PAUSE)


def _exchange_once(path: Path, request: Mapping[str, object], timeout: float) -> bytes:
    until = time.monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(timeout)
        connected.connect(str(path))
        connected.sendall(json.dumps(dict(request)).encode() + b"\n")
        received = bytearray()
        while more := connected.recv(65_536):
            received += more
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            connected.settimeout(left)
            if len(received) > _LONGEST_ANSWER:
                raise OSError(errno.EMSGSIZE, "its answer is too long")
        return bytes(received)


# How the answer of a busy server ends.
BUSY_MARK: Final = b'"busy": true}\n'


def _result_of(received: bytes, path: Path) -> Mapping[str, Any]:
    try:
        answer = json.loads(received)
        if not isinstance(answer, dict):
            raise TypeError
        if "error" not in answer:
            return answer
        error = str(answer["error"])
    except (ValueError, TypeError, RecursionError):
        raise GpuledgerError(
            f"malformed answer on {path}: the listening program is not gpuledger, or it has just exited"
        ) from None
    raise GpuledgerError(error)
