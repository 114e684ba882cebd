"""What a failed nvidia-smi means and what to do: one table for the log, /health and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from re import compile as pattern
from typing import Final

from gpuledger.host.commands import MAX_OUTPUT_BYTES, STUCK, CommandResult
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.smi.command import Command

RESET: Final = "stop its processes and run `nvidia-smi --gpu-reset -i BUS_ID` as root, or reboot"
LOST: Final = "look for Xid 79 in the kernel log; power-cycle the machine, and reseat or replace the card"
_LOAD: Final = "load it (modprobe nvidia) or install it; after a kernel update, build it again (dkms)"
_RELOAD: Final = (
    "reboot, or stop everything that uses a GPU and reload the modules "
    "(modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia, then modprobe nvidia)"
)
_LIBRARY: Final = (
    "install the driver's libnvidia-ml.so.1 and run ldconfig; in a container set "
    "NVIDIA_DRIVER_CAPABILITIES=utility"
)
_DEVICES_LOST: Final = (
    "in a container restart it: it lost its device nodes or cgroup permissions, as after `systemctl "
    "daemon-reload`; on the machine itself look for NVRM lines in the kernel log, or reboot"
)
_PERMISSION: Final = "run as a user who may open /dev/nvidia* (ls -l /dev/nvidia*)"
_BLOCKED: Final = (
    "allow /dev/nvidia* in the container's device cgroup and restart it; in WSL update the Windows driver "
    "and run `wsl --shutdown`"
)
_KERNEL_LOG: Final = "look for NVRM and Xid lines in the kernel log; a reboot may be needed"
_POWER: Final = "connect all power cables of the card and restart the machine"
_NO_DEVICES: Final = "check lspci, and in a container which devices it has"
_SSH: Final = "run the same ssh command manually: it must not prompt for a password or a host key"
_NETWORK: Final = "check the network to that machine"
_INSTALL: Final = "install it there, or give its full path in --nvidia-smi-command"
_CONTAINER: Final = "start the container that --nvidia-smi-command names, or correct its name"
_DAEMON: Final = "start Docker, and let the user that runs gpuledger access its socket"
_CLUSTER: Final = "correct the kubeconfig of the user that runs gpuledger"
_SUDO: Final = "allow the command without a password (NOPASSWD in sudoers)"
_ACCESS: Final = "let the user that runs gpuledger access what the message names, and execute the command"
_INTERRUPT: Final = "look for NVRM lines in the kernel log, then check MSI and IRQ settings in the BIOS"

# Parts of messages in lower case, and the remedy: they are more exact than exit codes.
_TEXTS: Final = (
    ("driver/library version mismatch", _RELOAD),
    ("couldn't communicate with the nvidia driver", _LOAD),
    ("driver not loaded", _LOAD),
    ("driver is not loaded", _LOAD),
    ("couldn't find libnvidia-ml", _LIBRARY),
    ("load library failed: libnvidia-ml", _LIBRARY),
    ("loading shared libraries: libnvidia-ml", _LIBRARY),
    ("nvml shared library", _LIBRARY),
    ("gpu access blocked by the operating system", _BLOCKED),
    # In WSL, where the driver of Windows does not answer.
    ("failed to initialize nvml: n/a", _BLOCKED),
    (
        "remote host identification has changed",
        "if the machine was installed again, remove its old key (ssh-keygen -R HOST), as the user that runs "
        "gpuledger; otherwise another machine answers",
    ),
    ("host key verification failed", "add the host's key to known_hosts, as the user that runs gpuledger"),
    ("permission denied (", "give the user that runs gpuledger a key that logs in without a password"),
    ("could not resolve hostname", "correct the name of the host in --nvidia-smi-command"),
    ("connection refused", "start sshd on that machine, or correct the host and port"),
    ("connection timed out", _NETWORK),
    ("operation timed out", _NETWORK),
    ("no route to host", _NETWORK),
    ("network is unreachable", _NETWORK),
    ("a password is required", _SUDO),
    ("interactive authentication is required", _SUDO),
    ("not in the sudoers file", _SUDO),
    ("no new privileges", "run gpuledger without NoNewPrivileges, or nvidia-smi without sudo"),
    ("command not found", _INSTALL),
    ("executable file not found", _INSTALL),
    ("not recognized as an internal or external command", _INSTALL),
    ("exec format error", "name an nvidia-smi for the processor of this machine in --nvidia-smi-command"),
    ("version `glibc_", "name an nvidia-smi for the C library of this machine in --nvidia-smi-command"),
    ("undefined symbol", "install nvidia-smi and libnvidia-ml.so.1 of one driver version"),
    ("loading shared libraries", "install the missing library: `ldd` of nvidia-smi lists what it needs"),
    ("error response from daemon", _CONTAINER),
    ("connect to the docker", _DAEMON),
    ("error from server (notfound)", _CONTAINER),
    ("error from server (forbidden)", "allow that user to create pods/exec in the namespace"),
    ("must be logged in to the server", _CLUSTER),
    ("did you specify the right host or port", _CLUSTER),
    ("container not found", _CONTAINER),
    ("no such container", _CONTAINER),
    ("on running containers", _CONTAINER),
    ("instance not found", _CONTAINER),
    ("instance is not running", _CONTAINER),
    ("is lost", LOST),
    ("fallen off the bus", LOST),
    ("requires reset", RESET),
    ("requires a reset", RESET),
    ("insufficient permissions", _PERMISSION),
    ("have permission to talk to nvidia device", _PERMISSION),
    ("permission denied", _ACCESS),
    ("operation not permitted", "run gpuledger with the privileges that --nvidia-smi-command needs"),
    ("irq issue", _INTERRUPT),
    ("interrupt request issue", _INTERRUPT),
    ("insufficient external power", _POWER),
    ("insufficiently powered", _POWER),
    ("no devices were found", _NO_DEVICES),
    ("no supported gpus were found", _NO_DEVICES),
    ("gpu not found", _NO_DEVICES),
    ("the device handle for", LOST),
    ("unknown error", _DEVICES_LOST),
)


@dataclass(frozen=True, slots=True)
class ExitCode:
    """What an exit code means and what to do."""

    meaning: str
    remedy: str


# `nvidia-smi -h` and its manual page, section RETURN VALUE; it also exits with other codes of nvmlReturn_t.
EXIT_CODES: Final = {
    1: ExitCode("NVML was not initialized", _KERNEL_LOG),
    2: ExitCode(
        "a supplied argument is invalid",
        "check --nvidia-smi-command and --query-field-names with `nvidia-smi -h`, or update the driver",
    ),
    3: ExitCode(
        "the operation is not supported on this device",
        "remove -i and other options from --nvidia-smi-command, or update the driver",
    ),
    4: ExitCode("the user has no permission to access the device or perform the operation", _PERMISSION),
    6: ExitCode(
        "a query to find an object was unsuccessful",
        "check the GPUs that --nvidia-smi-command names with `nvidia-smi -L`",
    ),
    8: ExitCode(
        "a device's external power cables are not properly attached",
        "check the cabling: connect all power cables of the card and restart the machine",
    ),
    9: ExitCode("the NVIDIA driver is not loaded", _LOAD),
    10: ExitCode("the NVIDIA kernel detected an interrupt issue with a GPU", _INTERRUPT),
    11: ExitCode("the NVIDIA kernel detected an interrupt issue with a GPU", _INTERRUPT),
    12: ExitCode("the NVML shared library could not be found or loaded", _LIBRARY),
    13: ExitCode(
        "the local version of NVML does not implement the function",
        "install nvidia-smi and libnvidia-ml.so.1 of one driver version",
    ),
    14: ExitCode(
        "the infoROM is corrupted",
        "power-cycle the machine; if the message remains, have the card replaced. Other data is valid",
    ),
    15: ExitCode("the GPU has fallen off the bus or has otherwise become inaccessible", LOST),
    16: ExitCode("the GPU requires a reset", RESET),
    17: ExitCode("the operating system or a cgroup blocks the GPU's control device", _BLOCKED),
    18: ExitCode("the driver and libnvidia-ml.so.1 have different versions", _RELOAD),
    19: ExitCode("the GPU is in use", "wait until the other program has ended, such as a GPU reset"),
    20: ExitCode("out of memory", "free memory of the machine, or raise the memory limit of the container"),
    124: ExitCode("ended by timeout", "allow more time, and look for NVRM lines in the kernel log"),
    126: ExitCode("the command cannot be executed", "make the command executable"),
    127: ExitCode("the command was not found", _INSTALL),
    255: ExitCode("another error or an internal driver error occurred", _KERNEL_LOG),
}
# After these exit codes every other query fails for the same reason, and also after these messages.
_FATAL_CODES: Final = frozenset({9, 12, 17, 18, 126, 127})
_FATAL_TEXTS: Final = ("failed to initialize nvml", "nvidia-smi has failed")
_DRIVER_EXIT: Final = ExitCode("", _KERNEL_LOG)
_UNKNOWN_EXIT: Final = ExitCode("", "run the command manually to see its full output")
# What starts nvidia-smi (docker, kubectl, sudo, srun) exits with these, too, and then says why.
_STARTER_CODES: Final = frozenset({1, 125, 255})
_DRIVER_WORDS: Final = ("nvml", "nvidia", "gpu")
# A shell reports a program that a signal ended as 128 + signal.
_SIGNALS: Final = range(129, 193)
_ERROR_WORDS: Final = (
    *("fail", "error", "unable", "warning", "could", "cannot", "denied", "invalid", "lost", "reset"),
    *("not ", "no "),
)
_MAX_CAUSE_LENGTH: Final = 400
_MAX_LINES: Final = 4
_ENDS: Final = 2048
# Text between the tags of the XML.
_NO_VALUE: Final = frozenset({"None", "N/A"})
# A message has fewer commas than a row of the CSV.
_FEWEST_COMMAS: Final = 4
_PMON_ROW: Final = pattern(r"[0-9]+ (?:[0-9]+|-) ")


def describe_failure(result: CommandResult, command: Command) -> str:
    """Describe in one line how the command ended and what that means; empty after success."""
    if result.not_started:
        return result.detail or result.not_started
    if result.timed_out:
        return "killed at its time limit"
    if result.overran:
        return f"killed: it wrote more than {MAX_OUTPUT_BYTES // 2**20} MiB, or very many short lines"
    if result.exit_code == 0:
        return ""
    parts = [f"exit {result.exit_code}", _meaning(result, command), _message(result)]
    return ": ".join(part for part in parts if part)


def failure_reason(result: CommandResult) -> str:
    """Return a short, stable label value: `not_started`, `timeout`, `overran`, or `exit_9` for code 9."""
    if result.not_started:
        return "not_started"
    if result.timed_out:
        return "timeout"
    return "overran" if result.overran else f"exit_{result.exit_code}"


def is_fatal(result: CommandResult, command: Command) -> bool:
    """Whether every other query would fail for the same reason."""
    message = _message(result).lower()
    return (
        result.timed_out
        or result.overran
        or result.exit_code < 0
        or result.exit_code in _FATAL_CODES
        or (command.is_remote and result.exit_code == 255)
        or any(text in message for text in _FATAL_TEXTS)
    )


def remedy_of(result: CommandResult, command: Command) -> str:
    """What to do about a command that ran and failed."""
    message = _message(result).lower()
    known = next((remedy for text, remedy in _TEXTS if text in message), "")
    if known:
        return known
    if result.overran:
        return "check --nvidia-smi-command: it does not end, or it is not nvidia-smi"
    if _signal(result):
        return "look for the out-of-memory killer and NVRM lines in the kernel log"
    if command.is_remote and result.exit_code == 255:
        return _SSH
    return _exit_code(result, command).remedy


def _exit_code(result: CommandResult, command: Command) -> ExitCode:
    """What the exit code says, if nvidia-smi exits with it and not the program that starts it."""
    message = _message(result).lower()
    unknown = _DRIVER_EXIT if _FATAL_TEXTS[0] in message else _UNKNOWN_EXIT
    is_of_driver = not message or any(word in message for word in _DRIVER_WORDS)
    if result.exit_code in _STARTER_CODES and not command.is_direct and not is_of_driver:
        return unknown
    return EXIT_CODES.get(result.exit_code, unknown)


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
            f"{program} did not answer within {timeout:g} s: the driver or the connection hangs, or is slow; "
            "look for NVRM lines in the kernel log, turn on persistence mode (nvidia-smi -pm 1), or raise "
            "--nvidia-smi-timeout"
        )
    else:
        reason = failure_reason(result)
        cause = describe_failure(result, command) or _message(result)
        cause = cause or "the output contains no readable GPU"
        message = f"{program}: {cause}; {remedy_of(result, command)}"
    return SourceUnavailable(message, reason)


def _signal(result: CommandResult) -> int:
    """The signal that ended the command; 0 for none."""
    if result.exit_code < 0:
        return -result.exit_code
    return result.exit_code - 128 if result.exit_code in _SIGNALS else 0


def _meaning(result: CommandResult, command: Command) -> str:
    """What the exit code means, unless the message says it."""
    if signal := _signal(result):
        return f"ended by signal {signal}"
    message = _message(result).lower()
    if any(text in message for text, _ in _TEXTS):
        return ""
    if command.is_remote and result.exit_code == 255:
        return "ssh could not connect, or nvidia-smi failed on the remote machine"
    return _exit_code(result, command).meaning


def _message(result: CommandResult) -> str:
    """What the command printed about its failure, in one line: the line with the cause, the others behind it.

    A semicolon would end the cause, because the remedy follows one.
    """
    lines = list(dict.fromkeys((*_error_lines(result.stderr), *_error_lines(result.stdout))))
    if not lines:
        return ""
    best = min(lines, key=_rank)
    others = ", ".join(line for line in lines if line is not best)
    message = f"{best} ({others})" if others else best
    return clean_name(message.replace(";", ","), _MAX_CAUSE_LENGTH)


def _error_lines(raw: bytes) -> list[str]:
    """The lines at both ends of an output that are no data; of many, only those with a word for an error."""
    text = decode_utf8(raw)
    if len(raw) > 2 * _ENDS:
        # Both cuts may leave a part of a line.
        head, tail = raw[:_ENDS].rpartition(b"\n")[0], raw[-_ENDS:].partition(b"\n")[2]
        text = decode_utf8(head + b"\n" + tail)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line and not _is_data(line)]
    if len(lines) > _MAX_LINES:
        lines = [line for line in lines if any(word in line.lower() for word in _ERROR_WORDS)]
    return lines[:_MAX_LINES]


def _is_data(line: str) -> bool:
    """Whether a line is of the XML, of a table, of the CSV or of the text report."""
    if line.startswith(("<", "|", "+", "#")) or line.endswith(">") or line in _NO_VALUE:
        return True
    if line.count(", ") >= _FEWEST_COMMAS or _PMON_ROW.match(line):
        return True
    return " : " in line and _rank(line) > 0


def _rank(line: str) -> int:
    """0 for a line of a known cause, 1 for one that sounds like an error, 2 for any other."""
    lowered = line.lower()
    if any(text in lowered for text, _ in _TEXTS):
        return 0
    return 1 if any(word in lowered for word in _ERROR_WORDS) else 2
