"""What `doctor` looks at for the source that `serve` would read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Finding, fails, parted, unknown, warning, works
from gpuledger.model.text import clean_name, from_bytes
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.command import Command, CommandRunner, NotStarted, Ran, Runner, unavailable
from gpuledger.sources.smi.settings import SmiSettings

SMI: Final = "driver.nvidia_smi"
_WHAT: Final = "nvidia-smi"
_QUERY: Final = ("--query-gpu=driver_version", "--format=csv,noheader")
# nvidia-smi has no answer of its own where these fail: it would only repeat the cause.
_NEEDS: Final = ("driver.environment", "driver.library", "driver.kernel", "driver.answers")


def smi_check(settings: SmiSettings, loaded: Callable[[], str], *, sole: bool) -> Check:
    """The Check; `sole` says that readings come from the command alone, `loaded` is the kernel's driver."""
    return Check(
        SMI,
        _WHAT,
        lambda: look_at_smi(settings, loaded(), sole=sole),
        needs=() if sole else _NEEDS,
        limit=settings.timeout + 5.0,
    )


def look_at_smi(
    settings: SmiSettings, loaded: str, *, sole: bool, run: Runner | None = None
) -> Iterator[Finding]:
    """Ask the command for the driver's version. Without the command NVML still works, unless it is `sole`."""
    command = Command(settings.command)
    ran = (run or CommandRunner())(command.words(*_QUERY), settings.timeout)
    if isinstance(ran, NotStarted) and not sole:
        yield warning(
            SMI,
            _WHAT,
            f"{command.program} cannot be run ({ran.detail}); gpuledger reads the driver without it, people "
            "may miss it",
            "in a container set NVIDIA_DRIVER_CAPABILITIES=utility; on the machine itself install nvidia-smi "
            "(Ubuntu: nvidia-utils), or name it with --nvidia-smi-command",
        )
    elif isinstance(ran, NotStarted) or ran.code or ran.timed_out or ran.overran:
        why, remedy = parted(unavailable(ran, command, settings.timeout))
        yield fails(SMI, _WHAT, why, remedy or "`nvidia-smi -q` tells more")
    else:
        yield _judge_answer(command, ran, loaded)


def _judge_answer(command: Command, ran: Ran, loaded: str) -> Finding:
    lines = [line.strip() for line in from_bytes(ran.stdout).splitlines() if line.strip()]
    versions = {line for line in lines if line.replace(".", "").isdigit()}
    if not versions:
        said = clean_name(lines[0]) if lines else "nothing"
        return unknown(SMI, _WHAT, f"{command.program} answered, but no driver version: {said}")
    version = min(versions)
    if loaded and loaded != version and not command.remote:
        return warning(
            SMI,
            _WHAT,
            f"{command.program} speaks of driver {version}, the kernel has {loaded}",
            "an update awaits a reboot: reboot, or reload the driver",
        )
    return works(SMI, _WHAT, f"{command.program} answers, driver {version}")


SOURCE: Final = "source"


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
    """Checks of the driver; none of it for a source that has nothing to do with this machine's driver.

    `limit` is how long one call of the driver may take, in seconds.
    """
    kind = settings.source.partition(":")[0]
    if kind not in ("auto", "nvml", "smi"):
        why = f"{settings.source}: made-up or recorded data, so there is nothing to check of a driver"
        return (Check(SOURCE, "source", lambda: [works(SOURCE, "source", why)]),)
    from gpuledger.sources.nvml import checks, kernel, probe
    from gpuledger.sources.open import prefers_smi

    sole = kind == "smi" or (kind == "auto" and prefers_smi(smi))
    command = smi_check(smi, lambda: kernel.look(procfs, sysfs, devices).version, sole=sole)
    if sole:
        return (command,)
    driver = checks.driver_check(
        settings.devices,
        environment,
        lambda: kernel.look(procfs, sysfs, devices),
        lambda: probe.ask(limit),
    )
    return (driver, command)
