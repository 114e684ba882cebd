"""What a failed nvidia-smi means: the line with the cause first, and a remedy for each documented code."""

from __future__ import annotations

import pytest

from gpuledger.host.commands import CommandResult
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.failures import EXIT_CODES, describe_failure, is_fatal, unavailable_error
from smi.recorded import fixture

LOCAL, SSH = Command("nvidia-smi"), Command("ssh user@host nvidia-smi")
# `nvidia-smi -h`, section RETURN VALUE, without 0.
DOCUMENTED = {2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15, 255}

PRINTED = [
    (18, b"", b"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.65\n",
     "Driver/library version mismatch (NVML library version: 580.65)", "reload the modules"),
    (255, b"Failed to initialize NVML: Unknown Error\n", b"", "Unknown Error", "in a container restart it"),
    (9, b"", b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
     b"the latest NVIDIA driver is installed and running.\n\n", "installed and running", "modprobe nvidia"),
    (17, b"", b"Failed to initialize NVML: GPU access blocked by the operating system\n",
     "blocked by the operating system", "wsl --shutdown"),
    (12, b"", b"NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\nPlease add it; retry.\n",
     "libnvidia-ml.so library in your system. (Please add it, retry.)", "ldconfig"),
    (15, b"", b"Unable to determine the device handle for GPU0000:65:00.0: GPU is lost.  Reboot the system\n",
     "0000:65:00.0: GPU is lost. Reboot", "Xid 79"),
    (4, b"Insufficient Permissions\n", b"", "Insufficient Permissions", "/dev/nvidia*"),
    (6, b"No devices were found\n", b"", "No devices were found", "lspci"),
    (0, b"Failed to initialize NVML: Unknown Error\n", b"", "Unknown Error", "in a container restart it"),
    (1, b"sudo: a password is required\n", b"", "a password is required", "NOPASSWD"),
    (255, b"", b"Failed to initialize NVML: N/A\nFailed to properly shut down NVML: N/A\n",
     "Failed to initialize NVML: N/A (Failed to properly", "wsl --shutdown"),
    (255, b"", b"Unable to determine the device handle for GPU 0000:3B:00.0: Unable to communicate with "
     b"GPU because it is insufficiently powered.\n", "insufficiently powered", "power cables"),
    (6, b"", b"Failed to initialize NVML: No supported GPUs were found\n", "No supported GPUs", "lspci"),
    (231, b"", b"Failed to initialize NVML: Something new\n", "Something new", "NVRM"),
    (125, b"nvidia-container-cli: load library failed: libnvidia-ml.so.1: cannot open\n", b"",
     "load library failed", "ldconfig"),
    (1, b'Error from server (NotFound): pods "p" not found\n', b"", 'pods "p"', "start the container"),
    (139, b"", b"", "ended by signal 11", "kernel log"),
    (77, b"first\nsomething failed\n", b"", "something failed (first)", "run the command manually"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "stderr", "stdout", "cause", "remedy"), PRINTED)
@pytest.mark.parametrize("command", [LOCAL, SSH], ids=["local", "ssh"])
def test_the_line_with_the_cause_is_first_and_a_remedy_follows(
    command: Command, code: int, stderr: bytes, stdout: bytes, cause: str, remedy: str
) -> None:
    message = str(unavailable_error(CommandResult(stdout, stderr, code), command, 10))
    why, _, what_to_do = message.partition("; ")
    assert cause in why
    assert remedy in what_to_do
    assert "\n" not in message


@pytest.mark.parametrize("code", sorted(DOCUMENTED | {16, 17, 18}))
def test_each_code_that_nvidia_documents_has_a_meaning_and_a_remedy(code: int) -> None:
    message = str(unavailable_error(CommandResult(exit_code=code), LOCAL, 10))
    assert message == f"nvidia-smi: exit {code}: {EXIT_CODES[code].meaning}; {EXIT_CODES[code].remedy}"
    assert "manually" not in message


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        (b"Host key verification failed.\n", "known_hosts"),
        (b"jo@host: Permission denied (publickey).\n", "without a password"),
        (b"ssh: Could not resolve hostname gone: Name or service not known\n", "name of the host"),
        (b"ssh: connect to host gone port 22: Connection refused\n", "start sshd"),
        (
            b"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.\n",
            "ssh-keygen -R",
        ),
        (b"ssh: connect to host gone port 22: No route to host\n", "check the network"),
        (b"ssh: connect to host gone port 22: Network is unreachable\n", "check the network"),
        (b"kex_exchange_identification: read\n", "must not prompt"),
    ],
)
def test_a_failure_of_ssh_has_its_own_remedy(printed: bytes, remedy: str) -> None:
    assert remedy in str(unavailable_error(CommandResult(b"", printed, 255), SSH, 10))


def test_rows_of_data_are_no_message() -> None:
    rows = b"<gpu>\n" + b"\n".join(b"    Product Name : Tesla %d" % n for n in range(9))
    result = CommandResult(rows + b"\nWARNING: infoROM is corrupted at gpu 0000:17:00.0\n", b"", 14)
    assert describe_failure(result, LOCAL) == (
        "exit 14: the infoROM is corrupted: WARNING: infoROM is corrupted at gpu 0000:17:00.0"
    )


@pytest.mark.parametrize(
    ("code", "printed", "remedy"),
    [
        (15, "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error", "Xid 79"),
        (1, "Error response from daemon: No such container: gpu", "start the container"),
        (1, "Error response from daemon: container 12ab is not running", "start the container"),
        (1, "error: unable to upgrade connection: container not found (x)", "start the container"),
        (126, 'exec: "nvidia-smi": executable file not found in $PATH: unknown', "give its full path"),
        (126, "nvidia-smi: cannot execute binary file: Exec format error", "for the processor"),
        (127, "nvidia-smi: /lib64/libc.so.6: version `GLIBC_2.34' not found", "C library"),
        (1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "start Docker"),
        (1, "permission denied while trying to connect to the Docker daemon socket", "start Docker"),
        (126, "sh: 1: nvidia-smi: Permission denied", "execute the command"),
        (1, "nsenter: reassociate to namespace 'ns/mnt' failed: Operation not permitted", "privileges"),
        (125, 'Error: no container with name or ID "gpu" found: no such container', "start the container"),
        (255, "Error: can only create exec sessions on running containers", "start the container"),
        (1, "Error: Instance is not running", "start the container"),
        (1, 'Error from server (Forbidden): pods "p" is forbidden', "pods/exec"),
        (1, "error: You must be logged in to the server (Unauthorized)", "kubeconfig"),
        (1, "jo is not in the sudoers file.", "NOPASSWD"),
        (1, 'sudo: The "no new privileges" flag is set', "NoNewPrivileges"),
        (1, "'nvidia-smi' is not recognized as an internal or external command,", "full path"),
        (4, "NVIDIA-SMI has failed because you do not have permission to talk to NVIDIA device.", "may open"),
        (10, "Unable to determine the device handle for GPU 0000:02:00.0: IRQ Issue", "MSI and IRQ"),
        (127, "nvidia-smi: error while loading shared libraries: libdl.so.2: cannot open", "`ldd`"),
    ],
)
def test_a_failure_of_what_starts_nvidia_smi_has_its_own_remedy(code: int, printed: str, remedy: str) -> None:
    message = str(unavailable_error(CommandResult(b"", printed.encode(), code), LOCAL, 10))
    assert message.startswith(f"nvidia-smi: exit {code}: {printed}; ")
    assert remedy in message


@pytest.mark.parametrize("code", [1, 125, 255])
@pytest.mark.parametrize(
    "starter", ["srun", "/usr/bin/machinectl shell box", "docker exec c", "./wrapper.sh"]
)
def test_an_error_of_what_starts_nvidia_smi_is_none_of_the_driver(starter: str, code: int) -> None:
    command = Command(f"{starter} nvidia-smi")
    other = CommandResult(b"", b"No machine 'box' known\n", code)
    message = str(unavailable_error(other, command, 10))
    cause, _, remedy = message.partition("; ")
    assert cause == f"{command.program}: exit {code}: No machine 'box' known"
    assert remedy == "run the command manually to see its full output"
    for printed in (b"", b"Failed to initialize NVML: Something new\n"):
        assert "NVRM" in str(unavailable_error(CommandResult(b"", printed, code), command, 10)) or code == 125


@pytest.mark.parametrize("query", ["xml", "report", "query-gpu.csv", "query-compute-apps.csv", "pmon"])
@pytest.mark.parametrize("code", [14, -9])
def test_recorded_data_are_no_message(query: str, code: int) -> None:
    data = fixture(f"cards/{query}")
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    first_half = data[: len(data) // 2].rpartition("\n")[0]
    for text in (data, data * 9, first_half):
        alone = describe_failure(CommandResult(text.encode(), exit_code=code), LOCAL)
        assert alone == ("exit 14: the infoROM is corrupted" if code == 14 else "exit -9: ended by signal 9")
        printed = CommandResult(f"{text}\n{warning}\n".encode(), exit_code=code)
        assert describe_failure(printed, LOCAL) == f"{alone}: {warning}"


def test_a_row_of_a_gpu_that_requires_a_reset_is_no_message() -> None:
    row = b"0, GPU-1, 00000000:01:00.0, [GPU requires reset], [GPU requires reset]\n"
    assert describe_failure(CommandResult(row, exit_code=255), LOCAL).startswith("exit 255: another error")


@pytest.mark.parametrize(
    ("result", "fatal"),
    [
        (CommandResult(b"Failed to initialize NVML: Unknown Error\n", b"", 255), True),
        (CommandResult(b"", b"", 18), True),
        (CommandResult(b"<gpu>", b"", 14), False),
        (CommandResult(b"", b"", 2), False),
    ],
)
def test_after_a_failure_of_the_driver_no_other_query_is_tried(result: CommandResult, fatal: bool) -> None:
    assert is_fatal(result, LOCAL) is fatal
