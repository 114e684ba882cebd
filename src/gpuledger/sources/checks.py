"""Checks of `doctor` for the source that `serve` would read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, Subject, fails, split_remedy, unknown, warning, works
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.command import Command, CommandResult, CommandRunner, RunCommand
from gpuledger.sources.smi.failures import describe_failure, unavailable_error
from gpuledger.sources.smi.settings import SmiSettings

_SMI: Final = Subject("driver.nvidia_smi", "nvidia-smi")
_SOURCE: Final = Subject("source", "source")
_QUERY: Final = ("--query-gpu=driver_version", "--format=csv,noheader")
# If one of these fails, nvidia-smi fails for the same reason.
_NEEDS: Final = ("driver.environment", "driver.library", "driver.kernel", "driver.answers")


def smi_check(settings: SmiSettings, kernel_version: Callable[[], str], *, is_only_source: bool) -> Check:
    """Build the check. With `is_only_source`, NVML is not read; `kernel_version` is the loaded driver's."""
    return Check(
        *_SMI,
        lambda: find_smi_problems(settings, kernel_version(), is_only_source=is_only_source),
        needs=() if is_only_source else _NEEDS,
        limit=settings.timeout + 5.0,
    )


def find_smi_problems(
    settings: SmiSettings, kernel_version: str, *, is_only_source: bool, run: RunCommand | None = None
) -> Iterator[Finding]:
    """Query the driver version. A command that cannot be run is a warning if NVML is read, else a failure."""
    command = Command(settings.command)
    result = (run or CommandRunner())(command.argv(*_QUERY), settings.timeout)
    if result.not_started and not is_only_source:
        yield warning(
            *_SMI,
            f"{command.program} cannot be run ({result.detail}); gpuledger does not need it, but people may",
            "in a container set NVIDIA_DRIVER_CAPABILITIES=utility; on the machine itself install nvidia-smi "
            "(Ubuntu: nvidia-utils), or set --nvidia-smi-command",
        )
    elif describe_failure(result, command):
        cause, remedy = split_remedy(unavailable_error(result, command, settings.timeout))
        yield fails(*_SMI, cause, remedy or "run `nvidia-smi -q` for details")
    else:
        yield _check_driver_version(command, result, kernel_version)


def _check_driver_version(command: Command, result: CommandResult, kernel_version: str) -> Finding:
    lines = [line.strip() for line in decode_utf8(result.stdout).splitlines() if line.strip()]
    versions = {line for line in lines if line.replace(".", "").isdigit()}
    if not versions:
        output = clean_name(lines[0]) if lines else "no output"
        return unknown(*_SMI, f"{command.program} did not report a driver version: {output}")
    version = min(versions)
    if kernel_version and kernel_version != version and not command.is_remote:
        return warning(
            *_SMI,
            f"{command.program} reports driver {version}, but the kernel has loaded {kernel_version}",
            "to complete the driver update, reboot or reload the driver",
        )
    return works(*_SMI, f"{command.program} answers, driver {version}")


def source_checks(
    settings: SourceSettings,
    smi: SmiSettings,
    environment: Mapping[str, str],
    *,
    procfs: Path = Path("/proc"),
    sysfs: Path = Path("/sys"),
    devices: Path = Path("/dev"),
    limit: float = 5.0,
) -> tuple[Check, ...]:
    """Build the checks of the driver; for a source that does not read this machine's driver, there is nothing
    to check.

    `limit` is the maximum time of one driver call in seconds.
    """
    kind = settings.source.partition(":")[0]
    if kind not in ("auto", "nvml", "smi"):
        reason = f"{settings.source}: simulated or recorded data, no driver to check"
        return (Check(*_SOURCE, lambda: [works(*_SOURCE, reason)]),)
    from gpuledger.sources.nvml import checks, kernel_facts, probe
    from gpuledger.sources.source_factory import prefers_smi

    is_only_source = kind == "smi" or (kind == "auto" and prefers_smi(smi))
    read_kernel = partial(kernel_facts.read_kernel_facts, procfs, sysfs, devices)
    command = smi_check(smi, lambda: read_kernel().version, is_only_source=is_only_source)
    if is_only_source:
        return (command,)
    driver = checks.driver_check(
        settings.devices, environment, read_kernel, partial(probe.probe_driver, limit)
    )
    return (driver, command)
