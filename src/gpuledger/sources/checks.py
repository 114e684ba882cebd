"""What `doctor` looks at for the source that `serve` would read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, works
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings

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
    from gpuledger.sources.smi.checks import smi_check

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
