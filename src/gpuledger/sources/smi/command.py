"""The user's command made words: split as a shell would, run by none."""

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
from gpuledger.model.text import clean_name, from_bytes

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


_SSH = frozenset({"ssh", "autossh", "slogin"})


def command_line(value: object) -> str:
    """A command that can be split into words; raises ValueError with what is wanted."""
    written = text(value).strip()
    try:
        words = shlex.split(written)
    except ValueError:
        raise ValueError("a command with balanced quotes is wanted") from None
    if not words or not words[0]:
        raise ValueError("a command is wanted, such as nvidia-smi or 'ssh user@host nvidia-smi'")
    return written


class Command:
    """An nvidia-smi command to which arguments are added as words.

    ssh joins its words with spaces and gives them to the remote user's shell, so what is added is quoted
    for that shell, and only then; a local program gets its words as they are.
    """

    def __init__(self, written: str) -> None:
        self.written = written
        self._words = tuple(shlex.split(written))

    @property
    def program(self) -> str:
        """The program that is started here."""
        return self._words[0]

    @property
    def remote(self) -> bool:
        """True when the answers, and so the pids in them, are another machine's."""
        return self.program.rsplit("/", 1)[-1] in _SSH

    def words(self, *arguments: str) -> tuple[str, ...]:
        """The whole command with `arguments` at its end."""
        return self._words + (tuple(map(shlex.quote, arguments)) if self.remote else arguments)


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
    127: "install it there, or name its full path in --nvidia-smi-command",
}
# After these another form of the question gets the same answer.
HOPELESS = frozenset({9, 12, 126, 127})


def meaning(ran: Ran, command: Command) -> str:
    """One line: how the command ended and what that means; empty for a plain success."""
    if ran.timed_out:
        return "no end within its time limit: killed"
    if ran.overran:
        return "wrote without end: killed"
    if ran.code == 0:
        return ""
    said = _last_line(ran.stderr) or _last_line(ran.stdout)
    known = _MEANINGS.get(ran.code, "")
    if command.remote and ran.code == 255:
        known = "ssh could not connect, or nvidia-smi failed there"
    if ran.code == 127:
        known = "the command was not found"
    if ran.code < 0:
        known = f"ended by signal {-ran.code}"
    parts = [f"exit {ran.code}", known, said]
    return ": ".join(part for part in parts if part)


def reason(outcome: Outcome) -> str:
    """Short and stable, fit for a label: `not_started`, `timeout`, `overran`, or `exit_9` by its code."""
    if isinstance(outcome, NotStarted):
        return "not_started"
    if outcome.timed_out:
        return "timeout"
    return "overran" if outcome.overran else f"exit_{outcome.code}"


def unavailable(outcome: Outcome, command: Command, timeout: float) -> SourceUnavailable:
    """The one line for a command that could not be run or told nothing."""
    if isinstance(outcome, NotStarted):
        if outcome.reason == "FileNotFoundError":
            return SourceUnavailable(
                f"{command.program} not found: install the NVIDIA driver's utilities or set "
                "--nvidia-smi-command",
                "command_not_found",
            )
        if outcome.reason == STUCK:
            return SourceUnavailable(
                f"{command.program} hangs in the driver and cannot be killed ({outcome.detail}): look for "
                "Xid lines in the kernel log; a reboot may be needed",
                "stuck",
            )
        return SourceUnavailable(
            f"{command.program} cannot be started ({outcome.detail}): check --nvidia-smi-command",
            "command_not_started",
        )
    if outcome.timed_out:
        return SourceUnavailable(
            f"{command.program} did not answer within {timeout:g} s: the driver or the connection hangs; "
            "look for NVRM lines in the kernel log, or raise --nvidia-smi-timeout",
            "timeout",
        )
    remedy = _REMEDIES.get(outcome.code, "run the command by hand to see more")
    if command.remote and outcome.code == 255:
        remedy = "try the same ssh command by hand (it must not ask for anything)"
    why = meaning(outcome, command) or "its answer holds no GPU that could be read"
    return SourceUnavailable(f"{command.program}: {why}; {remedy}", reason(outcome))


def _last_line(raw: bytes) -> str:
    """The last line that says something, short and printable."""
    lines = [line.strip() for line in from_bytes(raw[-2048:]).splitlines() if line.strip()]
    return clean_name(lines[-1], 200) if lines and not lines[-1].startswith("<") else ""
