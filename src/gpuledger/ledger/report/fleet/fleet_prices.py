"""Rates of a fleet: each Gpu has the prices of the node on which it was scraped."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.segments import PriceTable, SegmentPrices


class FleetPrices(SegmentPrices):
    """The rates of all nodes from a quarter on. `nodes` are by Gpu uuid."""

    def __init__(self, table: PriceTable, nodes: Mapping[str, str], quarter: int) -> None:
        super().__init__(table, "", quarter)
        self._nodes = nodes
        self._by_node: dict[str, SegmentPrices] = {}

    def choose(self, gpu: str) -> None:
        """Take the grams of CO2 of this Gpu's node."""
        self.grams_per_kwh = self._of(gpu).grams_per_kwh

    def _find_time_rate(self, part: GpuPart) -> Rate:
        return self._of(part.gpu).time_rate(part)

    def _find_energy_rate(self, gpu: str) -> Rate:
        return self._of(gpu).energy_rate(gpu)

    def _of(self, gpu: str) -> SegmentPrices:
        node = self._nodes.get(gpu, "")
        if node not in self._by_node:
            self._by_node[node] = SegmentPrices(self._table, node, self._quarter)
        return self._by_node[node]
