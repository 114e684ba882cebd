"""`--source` made a Source."""

from __future__ import annotations

from pathlib import Path

from gpuledger.host.pci import PciBus
from gpuledger.model.errors import UsageError, unknown
from gpuledger.model.source import Clock, Host, Source
from gpuledger.sources.settings import SourceSettings

KINDS = ("auto", "nvml", "simulator", "replay")
_DEFAULT_SCENARIO = "k8s-node"


def open_source(settings: SourceSettings, host: Host, clock: Clock, pci: PciBus | None = None) -> Source:
    """The Source that the user asked for. The driver is not touched before the first read.

    `pci` is this machine's bus, for sources that read its driver.

    Raises UsageError for a source, scenario, scenario key or recording that is not there.
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
    # auto never picks the simulator: made-up numbers must be asked for.
    from gpuledger.sources.nvml.source import NvmlSource

    return NvmlSource(settings, host, clock, pci=pci)
