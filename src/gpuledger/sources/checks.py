"""Checks of `doctor` for the source that `serve` would read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuledger.host.clock import SystemClock
from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs
from gpuledger.model.checks import Check, Finding, Subject, warning, works
from gpuledger.sources.device_selection import REMEDY
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_made_up_source

if TYPE_CHECKING:
    from gpuledger.sources.drm.source import DrmSource

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
    pids: str = "auto",
) -> tuple[Check, ...]:
    """Build the checks of the driver; for a source that does not read this machine's driver, there is nothing
    to check.

    `limit` is the maximum time of one driver call in seconds; `pids` is that of `ProcFs`.
    """
    kind = settings.source.partition(":")[0]
    if kind in ("simulator", "replay"):
        return (Check(*_SOURCE, lambda: _check_made_up_data(settings)),)
    from gpuledger.sources.source_factory import find_sources

    pci = PciBus(str(sysfs), str(devices), str(procfs))
    names = (find_sources(smi, pci) if kind == "auto" else kind).split("+")
    if len(names) > 1:
        # They are selected among the GPUs of both, which no check of one source knows.
        settings = replace(settings, devices=())
    found: list[Check] = []
    if names[0] != "drm":
        found += _nvidia_checks(
            settings, smi, environment, procfs, sysfs, devices, limit, by_command=names[0] == "smi"
        )
    if "drm" in names:
        from gpuledger.sources.drm.checks import drm_check

        host = ProcFs(pci.procfs, pids=pids)
        found.append(drm_check(_open_drm(settings, pci, host, environment, beside_others=len(names) > 1)))
    return tuple(found)


def _open_drm(
    settings: SourceSettings,
    pci: PciBus,
    host: ProcFs,
    environment: Mapping[str, str],
    *,
    beside_others: bool,
) -> DrmSource:
    from gpuledger.host.machine_id import machine_digest
    from gpuledger.sources.drm.source import DrmSource

    return DrmSource(
        settings,
        host,
        SystemClock(),
        sysfs=pci.sysfs,
        procfs=pci.procfs,
        sees_host_pids=lambda: host.looks_up_pids,
        skip_integrated=beside_others,
        machine=machine_digest(environment.get("NODE_NAME", "")),
    )


def _nvidia_checks(
    settings: SourceSettings,
    smi: SmiSettings,
    environment: Mapping[str, str],
    procfs: Path,
    sysfs: Path,
    devices: Path,
    limit: float,
    *,
    by_command: bool,
) -> tuple[Check, ...]:
    from gpuledger.sources.nvml import checks, kernel_facts, probe
    from gpuledger.sources.smi.checks import smi_check

    read_kernel = partial(kernel_facts.read_kernel_facts, procfs, sysfs, devices)
    command = smi_check(smi, settings.devices, lambda: read_kernel().version, is_only_source=by_command)
    if by_command:
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
