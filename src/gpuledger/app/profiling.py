"""Poll the profiling metrics of a dcgm-exporter in the background and add them to the served NodeState."""

from __future__ import annotations

from functools import partial

from gpuledger.host.owner_index import PolledIndex
from gpuledger.model.node_state import IndexHealth, NodeState
from gpuledger.model.source import Clock
from gpuledger.sources.dcgm_exporter.profiling import ProfilingValues, add_profiling, fetch_profiling_values
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings


class ProfilingPoller:
    """Polls the configured dcgm-exporter in a thread and keeps its last profiling metrics."""

    def __init__(self, settings: DcgmExporterSourceSettings, clock: Clock) -> None:
        nothing: ProfilingValues = {}
        read = partial(fetch_profiling_values, settings.url)
        self._period = settings.period
        self._polled = PolledIndex("dcgm_exporter", read, nothing, period=settings.period, clock=clock)

    @property
    def health(self) -> IndexHealth:
        """Health of the last poll."""
        return self._polled.health

    def start(self) -> None:
        """Start polling."""
        self._polled.start()

    def stop(self) -> None:
        """Stop polling."""
        self._polled.stop()

    def add_to(self, state: NodeState) -> NodeState:
        """The NodeState with these metrics added where NVML provides none."""
        return add_profiling(state, self._polled.value, self._polled.health, self._period)


def open_profiling_poller(settings: DcgmExporterSourceSettings, clock: Clock) -> ProfilingPoller | None:
    """The poller of the configured dcgm-exporter; None without one."""
    return ProfilingPoller(settings, clock) if settings.url else None
