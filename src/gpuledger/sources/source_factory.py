"""Creates the Source that `--source` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import ProcFs, RemoteHost
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.source import Clock, Host, Source
from gpuledger.sources.nvml.library import load_library
from gpuledger.sources.settings import MACHINES, MADE_UP, SourceSettings
from gpuledger.sources.smi.settings import SmiSettings

if TYPE_CHECKING:
    from gpuledger.sources.drm.source import DrmSource
    from gpuledger.sources.replay.source import ReplaySource
    from gpuledger.sources.simulator.simulator import Simulator

_DEFAULT_SCENARIO = "k8s-node"


def open_source(
    settings: SourceSettings, smi: SmiSettings, host: Host, clock: Clock, pci: PciBus | None = None
) -> Source:
    """Create the Source that `settings.source` names. The driver is not called before the first read.

    `pci` is this machine's bus, for sources that read its driver. Raises UsageError for an unknown source,
    scenario, scenario key or recording.
    """
    kind, colon, rest = settings.source.partition(":")
    if kind not in (*MACHINES, *MADE_UP):
        raise unknown_name_error("source", kind, (*MACHINES, *MADE_UP))
    if kind in MADE_UP:
        return open_made_up_source(settings, clock)
    if colon:
        raise UsageError(f"--source {kind} has no argument; remove ':{rest}'")
    if kind == "auto":
        kind = find_sources(smi, pci)
    if kind == "drm":
        return _open_drm(settings, host, clock, pci, skip_integrated=False)
    main, _, other = kind.partition("+")
    devices = settings.devices if other else ()
    if other:
        # Selected among the GPUs of both.
        settings = replace(settings, devices=())
    first: Source
    if main == "smi":
        first = _open_smi(settings, smi, host, clock, pci)
    else:
        from gpuledger.sources.nvml.source import NvmlSource

        first = NvmlSource(settings, host, clock, pci=pci)
    if not other:
        return first
    from gpuledger.sources.composite import CompositeSource

    # Each source looks up its processes: a host forgets those of the other.
    other_host = host.separate() if isinstance(host, ProcFs) else host
    second = _open_drm(settings, other_host, clock, pci, skip_integrated=True)
    count_first = (lambda: 0) if pci is None else (lambda: pci.nvidia_count)
    return CompositeSource(first, second, count_first, devices)


def find_sources(smi: SmiSettings, pci: PciBus | None) -> str:
    """The kind of source that `auto` opens: all that this machine has.

    A command for nvidia-smi that the user set is read alone: it may be that of another machine.
    """
    nvidia = "smi" if prefers_smi(smi) else "nvml"
    if pci is None or _is_customized(smi) or not pci.has_drm_gpus():
        return nvidia
    return f"{nvidia}+drm" if pci.nvidia_count else "drm"


def _open_drm(
    settings: SourceSettings, host: Host, clock: Clock, pci: PciBus | None, *, skip_integrated: bool
) -> DrmSource:
    # Imported lazily: most machines have GPUs of one maker.
    from gpuledger.host.machine_id import machine_digest
    from gpuledger.sources.drm.source import DrmSource

    sees_host_pids = (lambda: host.looks_up_pids) if isinstance(host, ProcFs) else (lambda: True)
    return DrmSource(
        settings,
        host,
        clock,
        sysfs="/sys" if pci is None else pci.sysfs,
        procfs="/proc" if pci is None else pci.procfs,
        sees_host_pids=sees_host_pids,
        skip_integrated=skip_integrated,
        machine=machine_digest(environ.get("NODE_NAME", "")),
    )


def open_made_up_source(settings: SourceSettings, clock: Clock) -> Simulator | ReplaySource:
    """Create the simulator or the replay that `settings.source` names. Raises UsageError."""
    kind, _, rest = settings.source.partition(":")
    if kind == "simulator":
        from gpuledger.sources.simulator.scenario_parser import load_scenario
        from gpuledger.sources.simulator.simulator import Simulator

        return Simulator(load_scenario(rest or _DEFAULT_SCENARIO), settings, clock)
    if not rest:
        raise UsageError("--source replay: expected a recording, such as --source replay:FILE")
    from gpuledger.sources.replay.source import ReplaySource

    return ReplaySource(Path(rest), settings, clock)


def prefers_smi(smi: SmiSettings, load: Callable[[], object] = load_library) -> bool:
    """Whether `auto` selects nvidia-smi: its command or fields are set, or it exists and NVML does not load.

    `auto` never selects the simulator, which must be requested explicitly.
    """
    if _is_customized(smi):
        return True
    try:
        load()
    except OSError:
        # Imported lazily: shutil loads bz2 and lzma.
        from shutil import which

        return which(smi.command) is not None
    return False


def _is_customized(smi: SmiSettings) -> bool:
    defaults = SmiSettings()
    return smi.command != defaults.command or smi.query_field_names != defaults.query_field_names


def _open_smi(
    settings: SourceSettings, smi: SmiSettings, host: Host, clock: Clock, pci: PciBus | None
) -> Source:
    from gpuledger.sources.smi.command import Command
    from gpuledger.sources.smi.loop_mode import LoopProcess
    from gpuledger.sources.smi.source import SmiSource

    # Pids and slots of a remote machine must not be looked up on this one.
    if Command(smi.command).is_remote:
        return SmiSource(smi, settings.devices, RemoteHost(), clock, start_loop=LoopProcess)
    slot_width = (lambda _: None) if pci is None else pci.slot_width
    return SmiSource(smi, settings.devices, host, clock, None, LoopProcess, slot_width)
