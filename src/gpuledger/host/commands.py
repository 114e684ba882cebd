"""Runs external commands: without a shell, with limits of time and output, and killed with their children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import IO, Final

# `-q -x` of nvidia-smi is 1 MiB for 16 GPUs, 9 MB more with 2,000 processes on each, and 17 MB more with full
# accounting buffers (4,000 ended processes of each GPU). A command that writes more does not end, or is
# another one.
MAX_OUTPUT_BYTES: Final = 32 * 1024 * 1024
# Real output has more bytes a line on average. Parsers need time for each line.
SHORTEST_LINE: Final = 32
_STDERR_TAIL = 2048
_CHUNK = 64 * 1024
_POLL_SECONDS = 0.2
# How long to wait for a killed command to end.
_KILL_WAIT_SECONDS = 1.0
STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command.

    `exit_code` is negative for the signal that ended it. `stdout` is the output; `stderr` is its tail.
    `timed_out` is true when the command was killed at its time limit, `overran` when it was killed because it
    wrote too much: its output is then dropped, because parsing it would take minutes and many times its size.
    For a command that could not be started, `not_started` is STUCK or the exception's name
    (`FileNotFoundError`), `detail` is the reason in words and `exit_code` is -1.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    timed_out: bool = False
    overran: bool = False
    not_started: str = ""
    detail: str = ""


RunCommand = Callable[[tuple[str, ...], float], CommandResult]


class CommandRunner:
    """Runs one command at a time in the C locale; never raises.

    Each command gets a separate process group, and the whole group is killed at the limit, so that a wrapper
    script leaves no hanging nvidia-smi behind. A process that hangs in the driver cannot be killed: no other
    command is started until it ends, so that hanging processes do not accumulate.
    """

    def __init__(
        self, most_bytes: int = MAX_OUTPUT_BYTES, environment: Mapping[str, str] | None = None
    ) -> None:
        """`most_bytes` limits the output. `environment` has variables beside those of this process."""
        self._most_bytes, self._most_lines = most_bytes, most_bytes // SHORTEST_LINE
        self._environment = environment or {}
        self._stuck: subprocess.Popen[bytes] | None = None

    def __call__(self, words: tuple[str, ...], timeout: float) -> CommandResult:
        """Run `words` for at most `timeout` seconds."""
        if self._stuck is not None:
            if self._stuck.poll() is None:
                detail = f"pid {self._stuck.pid} was killed and has not ended"
                return CommandResult(exit_code=-1, not_started=STUCK, detail=detail)
            self._stuck = None
        try:
            process = start_command(words, subprocess.PIPE, self._environment)
        except (OSError, ValueError) as error:
            # ValueError: a word with a NUL in it.
            return CommandResult(exit_code=-1, not_started=type(error).__name__, detail=str(error))
        return self._collect(process, monotonic() + timeout)

    def _collect(self, process: subprocess.Popen[bytes], deadline: float) -> CommandResult:
        assert process.stdout is not None and process.stderr is not None
        out, err = bytearray(), bytearray()
        with process.stdout, process.stderr:
            timed_out, overran = self._drain(process, process.stdout, process.stderr, out, err, deadline)
        if not (timed_out or overran):
            timed_out = not _wait_for_end(process, deadline - monotonic())
        if timed_out or overran:
            kill_group(process)
            if not _wait_for_end(process, _KILL_WAIT_SECONDS):
                self._stuck = process
        code = -signal.SIGKILL if process.returncode is None else process.returncode
        return CommandResult(b"" if overran else bytes(out), bytes(err), code, timed_out, overran)

    def _drain(
        self,
        process: subprocess.Popen[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
        out: bytearray,
        err: bytearray,
        deadline: float,
    ) -> tuple[bool, bool]:
        """Read both pipes to their ends, the deadline or the limit; return which of the two came first."""
        lines = 0
        with DefaultSelector() as selector:
            selector.register(stdout, EVENT_READ, out)
            selector.register(stderr, EVENT_READ, err)
            while selector.get_map():
                left = deadline - monotonic()
                if left <= 0:
                    return True, False
                ready = selector.select(min(left, _POLL_SECONDS))
                # A child that outlives the command (ssh with ControlPersist) may keep a pipe open for hours.
                if not ready and process.poll() is not None:
                    return False, False
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK)
                    key.data.extend(chunk)
                    if key.data is out:
                        lines += chunk.count(b"\n")
                    if not chunk:
                        selector.unregister(key.fileobj)
                del err[:-_STDERR_TAIL]
                if len(out) > self._most_bytes or lines > self._most_lines:
                    return False, True
        return False, False


def start_command(
    words: Sequence[str], stderr: int, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, in English. Raises OSError and ValueError."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
        start_new_session=True,
    )


def _wait_for_end(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, and the group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    except PermissionError:
        # The group leader runs as another user (sudo): signal what we are allowed to.
        process.kill()
