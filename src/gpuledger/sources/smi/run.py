"""Run a command without a shell, within a time and a size, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import IO

# An 8-GPU `-q -x` is below 1 MiB; what writes more than this is not nvidia-smi.
LONGEST_OUTPUT = 16 * 1024 * 1024
_STDERR_TAIL = 2048
_CHUNK = 64 * 1024
_LOOK_AGAIN = 0.2
# How long a killed command may take to be gone.
_GRACE = 1.0
STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command that started.

    `code` is its exit status, negative for the signal that ended it. `stdout` is what came before the end
    or the limit; `stderr` is the tail. `timed_out` is true when the command was killed at its time limit,
    `overran` when it was killed for writing too much.
    """

    stdout: bytes
    stderr: bytes = b""
    code: int = 0
    timed_out: bool = False
    overran: bool = False


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The command could not be started: the operating system's reason (`FileNotFoundError`) and its text."""

    reason: str
    detail: str = ""


Outcome = Ran | NotStarted
Runner = Callable[[tuple[str, ...], float], Outcome]


class CommandRunner:
    """Runs one command at a time in the C locale; raises nothing.

    The command gets a process group of its own, and the whole group is killed at the limit: a wrapper
    script must not leave a hanging nvidia-smi behind. One that hangs in the driver cannot be killed: it is
    left alone, and until it ends no other is started, or they would pile up.
    """

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[bytes] | None = None

    def __call__(self, words: tuple[str, ...], timeout: float) -> Outcome:
        """Run `words` for at most `timeout` seconds."""
        if self._stuck is not None:
            if self._stuck.poll() is None:
                return NotStarted(STUCK, f"pid {self._stuck.pid} was killed and has not ended")
            self._stuck = None
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # ValueError: a word with a NUL in it.
            return NotStarted(type(error).__name__, str(error))
        return self._collect(process, monotonic() + timeout)

    def _collect(self, process: subprocess.Popen[bytes], deadline: float) -> Ran:
        assert process.stdout is not None and process.stderr is not None
        out, err = bytearray(), bytearray()
        with process.stdout, process.stderr:
            timed_out = _drain(process, process.stdout, process.stderr, out, err, deadline)
        overran = len(out) > LONGEST_OUTPUT
        if not (timed_out or overran):
            timed_out = not _ends(process, deadline - monotonic())
        if timed_out or overran:
            _kill_group(process)
            if not _ends(process, _GRACE):
                self._stuck = process
        code = -signal.SIGKILL if process.returncode is None else process.returncode
        return Ran(bytes(out[:LONGEST_OUTPUT]), bytes(err), code, timed_out, overran)


def _ends(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(max(0.0, within))
    except subprocess.TimeoutExpired:
        return False
    return True


def _drain(
    process: subprocess.Popen[bytes],
    stdout: IO[bytes],
    stderr: IO[bytes],
    out: bytearray,
    err: bytearray,
    deadline: float,
) -> bool:
    """Read both pipes to their ends; True when the deadline came first. Stops when `out` is too long."""
    with DefaultSelector() as selector:
        selector.register(stdout, EVENT_READ, out)
        selector.register(stderr, EVENT_READ, err)
        while selector.get_map():
            left = deadline - monotonic()
            if left <= 0:
                return True
            ready = selector.select(min(left, _LOOK_AGAIN))
            # A child that outlives the command (ssh with ControlPersist) may hold a pipe open for hours.
            if not ready and process.poll() is not None:
                return False
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            del err[:-_STDERR_TAIL]
            if len(out) > LONGEST_OUTPUT:
                return False
    return False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    except PermissionError:
        # The leader changed its user (sudo): only what may be signalled is.
        process.kill()
