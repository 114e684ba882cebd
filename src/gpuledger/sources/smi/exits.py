"""What nvidia-smi's exit codes mean, and what to do about a command that gave nothing."""

from __future__ import annotations

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.text import clean_name, from_bytes
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.run import STUCK, NotStarted, Outcome, Ran

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
