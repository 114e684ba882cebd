"""The user's nvidia-smi command: split into words as a shell would, run without a shell."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import IO

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.settings import text
from gpuledger.model.text import clean_name, decode_utf8

# `-q -x` of 8 GPUs is below 1 MiB; a command that writes more than this is not nvidia-smi.
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
_STDERR_TAIL = 2048
_CHUNK = 64 * 1024
_POLL_SECONDS = 0.2
# How long to wait for a killed command to end.
_KILL_WAIT_SECONDS = 1.0
STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command.

    `exit_code` is negative for the signal that ended it. `stdout` is the output up to the end or the limit;
    `stderr` is the tail. `timed_out` is true when the command was killed at its time limit, `overran` when it
    was killed because it wrote too much. For a command that could not be started, `not_started` is STUCK or
    the exception's name (`FileNotFoundError`), `detail` is the reason in words and `exit_code` is -1.
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

    def __init__(self) -> None:
        self._stuck: subprocess.Popen[bytes] | None = None

    def __call__(self, words: tuple[str, ...], timeout: float) -> CommandResult:
        """Run `words` for at most `timeout` seconds."""
        if self._stuck is not None:
            if self._stuck.poll() is None:
                detail = f"pid {self._stuck.pid} was killed and has not ended"
                return CommandResult(exit_code=-1, not_started=STUCK, detail=detail)
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
            return CommandResult(exit_code=-1, not_started=type(error).__name__, detail=str(error))
        return self._collect(process, monotonic() + timeout)

    def _collect(self, process: subprocess.Popen[bytes], deadline: float) -> CommandResult:
        assert process.stdout is not None and process.stderr is not None
        out, err = bytearray(), bytearray()
        with process.stdout, process.stderr:
            timed_out = _drain(process, process.stdout, process.stderr, out, err, deadline)
        overran = len(out) > MAX_OUTPUT_BYTES
        if not (timed_out or overran):
            timed_out = not _wait_for_end(process, deadline - monotonic())
        if timed_out or overran:
            _kill_group(process)
            if not _wait_for_end(process, _KILL_WAIT_SECONDS):
                self._stuck = process
        code = -signal.SIGKILL if process.returncode is None else process.returncode
        return CommandResult(bytes(out[:MAX_OUTPUT_BYTES]), bytes(err), code, timed_out, overran)


def _wait_for_end(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(max(0.0, seconds))
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
    """Read both pipes to their ends. Return True at the deadline; stop early when `out` is too long."""
    with DefaultSelector() as selector:
        selector.register(stdout, EVENT_READ, out)
        selector.register(stderr, EVENT_READ, err)
        while selector.get_map():
            left = deadline - monotonic()
            if left <= 0:
                return True
            ready = selector.select(min(left, _POLL_SECONDS))
            # A child that outlives the command (ssh with ControlPersist) may keep a pipe open for hours.
            if not ready and process.poll() is not None:
                return False
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            del err[:-_STDERR_TAIL]
            if len(out) > MAX_OUTPUT_BYTES:
                return False
    return False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
    except PermissionError:
        # The group leader runs as another user (sudo): signal what we are allowed to.
        process.kill()


_SSH = frozenset({"ssh", "autossh", "slogin"})


def command_line(value: object) -> str:
    """Parse the setting: a command that can be split into words. Raises ValueError otherwise."""
    command = text(value).strip()
    try:
        words = shlex.split(command)
    except ValueError:
        raise ValueError("expected a command with balanced quotes") from None
    if not words or not words[0]:
        raise ValueError("expected a command such as nvidia-smi or 'ssh user@host nvidia-smi'")
    return command


class Command:
    """An nvidia-smi command line, to which each call appends its arguments.

    ssh joins its words with spaces and passes them to the remote user's shell, so arguments are quoted for
    that shell; a local program gets them unquoted.
    """

    def __init__(self, line: str) -> None:
        self.text = line
        self._words = tuple(shlex.split(line))

    @property
    def program(self) -> str:
        """The program that this machine starts."""
        return self._words[0]

    @property
    def is_remote(self) -> bool:
        """True for ssh: the output, and the pids in it, belong to another machine."""
        return self.program.rsplit("/", 1)[-1] in _SSH

    def argv(self, *arguments: str) -> tuple[str, ...]:
        """The complete argument vector: the command followed by `arguments`."""
        return self._words + (tuple(map(shlex.quote, arguments)) if self.is_remote else arguments)


# `nvidia-smi -h` and its manual page, section RETURN VALUE.
_MEANINGS = {
    2: "a supplied argument is invalid",
    3: "the operation is not supported on this device",
    4: "the user has no permission to access the device or perform the operation",
    6: "a query to find an object was unsuccessful",
    8: "a device's external power cables are not properly attached",
    9: "the NVIDIA driver is not loaded",
    10: "the NVIDIA kernel detected an interrupt issue with a GPU",
    12: "the NVML shared library could not be found or loaded",
    13: "the local version of NVML does not implement the function",
    14: "the infoROM is corrupted",
    15: "the GPU has fallen off the bus or has otherwise become inaccessible",
    255: "another error or an internal driver error occurred",
}
_REMEDIES = {
    4: "run as a user who may open /dev/nvidia*",
    8: "check the cabling",
    9: "load it (modprobe nvidia) or install it",
    10: "look for NVRM lines in the kernel log",
    12: "install the driver's libnvidia-ml.so.1 and run ldconfig",
    13: "install nvidia-smi and libnvidia-ml.so.1 of one driver version",
    15: "look for Xid lines in the kernel log; reset or reboot",
    126: "make the command executable",
    127: "install it there, or give its full path in --nvidia-smi-command",
}
# After these exit codes every other query fails for the same reason.
FATAL_EXIT_CODES = frozenset({9, 12, 126, 127})


def describe_failure(result: CommandResult, command: Command) -> str:
    """Describe in one line how the command ended and what that means; empty after success."""
    if result.not_started:
        return result.detail or result.not_started
    if result.timed_out:
        return "killed at its time limit"
    if result.overran:
        return f"killed: it wrote more than {MAX_OUTPUT_BYTES // 2**20} MiB"
    if result.exit_code == 0:
        return ""
    message = _last_line(result.stderr) or _last_line(result.stdout)
    known = _MEANINGS.get(result.exit_code, "")
    if command.is_remote and result.exit_code == 255:
        known = "ssh could not connect, or nvidia-smi failed on the remote machine"
    if result.exit_code == 127:
        known = "the command was not found"
    if result.exit_code < 0:
        known = f"ended by signal {-result.exit_code}"
    parts = [f"exit {result.exit_code}", known, message]
    return ": ".join(part for part in parts if part)


def failure_reason(result: CommandResult) -> str:
    """Return a short, stable label value: `not_started`, `timeout`, `overran`, or `exit_9` for code 9."""
    if result.not_started:
        return "not_started"
    if result.timed_out:
        return "timeout"
    return "overran" if result.overran else f"exit_{result.exit_code}"


def unavailable_error(result: CommandResult, command: Command, timeout: float) -> SourceUnavailable:
    """The error for a command that could not be run or reported no GPU: cause and remedy in one line."""
    program = command.program
    if result.not_started == "FileNotFoundError":
        reason = "command_not_found"
        message = f"{program} not found: install the NVIDIA driver's utilities or set --nvidia-smi-command"
    elif result.not_started == STUCK:
        reason = STUCK
        message = (
            f"{program} hangs in the driver and cannot be killed ({result.detail}): look for Xid lines in "
            "the kernel log; a reboot may be needed"
        )
    elif result.not_started:
        reason = "command_not_started"
        message = f"{program} cannot be started ({result.detail}): check --nvidia-smi-command"
    elif result.timed_out:
        reason = "timeout"
        message = (
            f"{program} did not answer within {timeout:g} s: the driver or the connection hangs; look for "
            "NVRM lines in the kernel log, or raise --nvidia-smi-timeout"
        )
    else:
        reason = failure_reason(result)
        remedy = _REMEDIES.get(result.exit_code, "run the command manually to see its full output")
        if command.is_remote and result.exit_code == 255:
            remedy = "run the same ssh command manually (it must not prompt for a password or host key)"
        cause = describe_failure(result, command) or "the output contains no readable GPU"
        message = f"{program}: {cause}; {remedy}"
    return SourceUnavailable(message, reason)


def _last_line(raw: bytes) -> str:
    """The last non-empty line, shortened and made printable; empty if it is XML."""
    lines = [line.strip() for line in decode_utf8(raw[-2048:]).splitlines() if line.strip()]
    return clean_name(lines[-1], 200) if lines and not lines[-1].startswith("<") else ""
