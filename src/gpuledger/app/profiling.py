"""Profiling metrics of a dcgm-exporter, kept beside the tick and added to what is served."""

from __future__ import annotations

from functools import partial

from gpuledger.host.background import PolledIndex
from gpuledger.model.node_state import IndexHealth, NodeState
from gpuledger.model.source import Clock
from gpuledger.sources.dcgm_exporter.profiling import Told, ask, with_profiling
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings


class Profiling:
    """What the dcgm-exporter of the settings told last; its thread asks, the tick only reads."""

    def __init__(self, settings: DcgmExporterSourceSettings, clock: Clock) -> None:
        nothing: Told = {}
        read = partial(ask, settings.url)
        self._period = settings.period
        self._polled = PolledIndex("dcgm_exporter", read, nothing, period=settings.period, clock=clock)

    @property
    def health(self) -> IndexHealth:
        """How the last asking went."""
        return self._polled.health

    def start(self) -> None:
        """Begin to ask."""
        self._polled.start()

    def stop(self) -> None:
        """Ask no more."""
        self._polled.stop()

    def added_to(self, page: NodeState) -> NodeState:
        """The Page with it, where NVML told none of it."""
        return with_profiling(page, self._polled.value, self._polled.health, self._period)


def open_profiling(settings: DcgmExporterSourceSettings, clock: Clock) -> Profiling | None:
    """None where no dcgm-exporter is named."""
    return Profiling(settings, clock) if settings.url else None
