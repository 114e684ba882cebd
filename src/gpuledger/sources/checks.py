"""Checks of `doctor` for the source that `serve` would read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.host.clock import SystemClock
from gpuledger.model.checks import Check, Finding, Subject, warning, works
from gpuledger.sources.device_selection import REMEDY
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_made_up_source

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
        return (Check(*_SOURCE, lambda: _check_made_up_data(settings)),)
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


def _check_made_up_data(settings: SourceSettings) -> Iterator[Finding]:
    yield works(*_SOURCE, f"{settings.source}: simulated or recorded data, no driver to check")
    if settings.devices:
        source = open_made_up_source(settings, SystemClock())
        source.close()
        if source.selection.omission:
            yield warning(*_SOURCE, source.selection.omission, REMEDY)
