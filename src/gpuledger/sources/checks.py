"""What `doctor` looks at for the source that `serve` would read."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, unknown, warning, works
from gpuledger.sources.settings import SourceSettings

SMI: Final = "driver.nvidia_smi"
SOURCE: Final = "source"
_WHAT_SMI: Final = "nvidia-smi"
_QUERY: Final = ("--query-gpu=driver_version", "--format=csv,noheader")
# nvidia-smi has no answer of its own where these fail: it would only repeat the cause.
_NEEDS: Final = ("driver.environment", "driver.library", "driver.kernel", "driver.answers")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended: None for `code` when it had to be killed."""

    code: int | None
    output: str


def source_checks(
    settings: SourceSettings,
    environment: Mapping[str, str],
    *,
    nvidia_smi: str = "nvidia-smi",
    procfs: Path = Path("/proc"),
    sysfs: Path = Path("/sys"),
    devices: Path = Path("/dev"),
    limit: float = 5.0,
) -> tuple[Check, ...]:
    """Checks of the driver; none of it for a source that has nothing to do with this machine's driver.

    `limit` is how long one call of the driver, and the command `nvidia_smi`, may take in seconds.
    """
    kind = settings.source.partition(":")[0]
    if kind not in ("auto", "nvml", "smi"):
        why = f"{settings.source}: made-up or recorded data, so there is nothing to check of a driver"
        return (Check(SOURCE, "source", lambda: [works(SOURCE, "source", why)]),)
    from gpuledger.sources.nvml import checks, kernel, probe

    driver = checks.driver_check(
        settings.devices,
        environment,
        lambda: kernel.look(procfs, sysfs, devices),
        lambda: probe.ask(limit),
    )
    smi = Check(
        SMI,
        _WHAT_SMI,
        lambda: look_at_smi(
            nvidia_smi, environment, kernel.look(procfs, sysfs, devices).version, limit=4 * limit
        ),
        needs=() if kind == "smi" else _NEEDS,
        limit=5 * limit + 5,
    )
    return (smi,) if kind == "smi" else (driver, smi)


def look_at_smi(
    command: str,
    environment: Mapping[str, str],
    loaded: str,
    *,
    limit: float = 20.0,
    run: Callable[[list[str], Mapping[str, str], float], Ran] | None = None,
) -> Iterator[Finding]:
    """Whether the command is there and answers, and of which driver it speaks; `loaded` is the kernel's."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        yield fails(SMI, _WHAT_SMI, f"{command!r} is no command", "give one with --nvidia-smi-command")
        return
    path = shutil.which(words[0], path=environment.get("PATH"))
    if path is None:
        yield warning(
            SMI,
            _WHAT_SMI,
            f"{words[0]} not found on PATH; gpuledger reads the driver without it, people may miss it",
            "in a container set NVIDIA_DRIVER_CAPABILITIES=utility; on the machine itself install nvidia-smi "
            "(Ubuntu: nvidia-utils), or name it with --nvidia-smi-command",
        )
        return
    ran = (run or run_command)([path, *words[1:], *_QUERY], {**environment, "LC_ALL": "C"}, limit)
    yield _judge_smi(path, ran, loaded, limit)


def _judge_smi(path: str, ran: Ran, loaded: str, limit: float) -> Finding:
    lines = [line.strip() for line in ran.output.splitlines() if line.strip()]
    said = lines[0][:200] if lines else "nothing"
    if ran.code is None:
        return fails(
            SMI,
            _WHAT_SMI,
            f"{path} does not answer within {limit:g} s",
            "look for Xid and NVRM lines in `dmesg | grep -iE 'nvrm|xid'`; reboot",
        )
    if ran.code:
        return fails(
            SMI,
            _WHAT_SMI,
            f"{path} ended with code {ran.code} and said: {said}",
            "do as it says; `nvidia-smi -q` tells more",
        )
    versions = {line for line in lines if line.replace(".", "").isdigit()}
    if not versions:
        return unknown(SMI, _WHAT_SMI, f"{path} answered, but no driver version: {said}")
    version = min(versions)
    if loaded and loaded != version and path.rsplit("/", 1)[-1] == "nvidia-smi":
        return warning(
            SMI,
            _WHAT_SMI,
            f"{path} speaks of driver {version}, the kernel has {loaded}",
            "an update awaits a reboot: reboot, or reload the driver",
        )
    return works(SMI, _WHAT_SMI, f"{path} answers, driver {version}")


def run_command(words: list[str], environment: Mapping[str, str], limit: float) -> Ran:
    """Run without a shell and without a terminal; what it says, cut short. Killed after `limit` seconds."""
    try:
        child = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(126, f"cannot be run: {error.strerror}")
    try:
        output, _ = child.communicate(timeout=limit)
        return Ran(child.returncode, output[:4096].decode("utf-8", "backslashreplace"))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        if child.stdout is not None:
            child.stdout.close()
        # One that is held in the kernel does not end: nobody can wait for that.
        with suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        return Ran(None, "")
