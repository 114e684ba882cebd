"""`--source` made a Source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuledger.host.pci import PciBus
from gpuledger.host.procfs import NoHost
from gpuledger.model.errors import UsageError, unknown
from gpuledger.model.source import Clock, Host, Source
from gpuledger.sources.nvml.library import load_library
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings

KINDS = ("auto", "nvml", "smi", "simulator", "replay")
_DEFAULT_SCENARIO = "k8s-node"


def open_source(
    settings: SourceSettings, smi: SmiSettings, host: Host, clock: Clock, pci: PciBus | None = None
) -> Source:
    """The Source that the user asked for. The driver is not touched before the first read.

    `pci` is this machine's bus, for sources that read its driver. Raises UsageError for a source, scenario,
    scenario key or recording that is not there.
    """
    kind, colon, rest = settings.source.partition(":")
    if kind not in KINDS:
        raise unknown("source", kind, KINDS)
    if kind == "simulator":
        from gpuledger.sources.simulator.reader import load
        from gpuledger.sources.simulator.simulator import Simulator

        return Simulator(load(rest or _DEFAULT_SCENARIO), settings, clock)
    if kind == "replay":
        if not rest:
            raise UsageError("--source replay wants the recording: --source replay:FILE")
        from gpuledger.sources.replay.source import Replay

        return Replay(Path(rest), settings, clock)
    if colon:
        raise UsageError(f"--source {kind} takes nothing after a colon, not '{rest}'")
    if kind == "smi" or (kind == "auto" and prefers_smi(smi)):
        return _open_smi(settings, smi, host, clock)
    from gpuledger.sources.nvml.source import NvmlSource

    return NvmlSource(settings, host, clock, pci=pci)


def prefers_smi(smi: SmiSettings, load: Callable[[], object] = load_library) -> bool:
    """Whether auto reads nvidia-smi: when its command was given, or fields of it, or it is all that there is
    of a driver.

    Auto never picks the simulator: made-up numbers must be asked for.
    """
    usual = SmiSettings()
    if smi.command != usual.command or smi.query_field_names != usual.query_field_names:
        return True
    try:
        load()
    except OSError:
        # It loads bz2 and lzma, for archives.
        from shutil import which

        return which(smi.command) is not None
    return False


def _open_smi(settings: SourceSettings, smi: SmiSettings, host: Host, clock: Clock) -> Source:
    from gpuledger.sources.smi.command import Command
    from gpuledger.sources.smi.source import SmiSource

    # The pids of another machine are not to be looked up on this one.
    told = NoHost() if Command(smi.command).remote else host
    return SmiSource(smi, settings.devices, told, clock)
