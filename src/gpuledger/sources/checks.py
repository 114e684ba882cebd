"""Checks of `doctor` for the source that `serve` would read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.model.checks import Check, Subject, works
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings

_SOURCE: Final = Subject("source", "source")


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
    from gpuledger.sources.smi.checks import smi_check
    from gpuledger.sources.source_factory import prefers_smi

    is_only_source = kind == "smi" or (kind == "auto" and prefers_smi(smi))
    read_kernel = partial(kernel_facts.read_kernel_facts, procfs, sysfs, devices)
    command = smi_check(smi, settings.devices, lambda: read_kernel().version, is_only_source=is_only_source)
    if is_only_source:
        return (command,)
    driver = checks.driver_check(
        settings.devices, environment, read_kernel, partial(probe.probe_driver, limit)
    )
    return (driver, command)
