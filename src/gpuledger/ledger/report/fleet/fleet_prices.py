"""Rates of a fleet: each Gpu has the prices of the node on which it was scraped then."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.ledger.report.charges import Rate
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.segments import PriceTable, SegmentPrices


class FleetPrices(SegmentPrices):
    """The rates of all nodes from a quarter on. `node_of` returns the node of a Gpu in a quarter."""

    def __init__(self, table: PriceTable, node_of: Callable[[str, int], str], quarter: int) -> None:
        super().__init__(table, "", quarter)
        self._node_of = node_of
        self._by_node: dict[str, SegmentPrices] = {}

    def choose(self, gpu: str) -> None:
        """Take the grams of CO2 of this Gpu's node."""
        self.grams_per_kwh = self._of(gpu).grams_per_kwh

    def _find_time_rate(self, part: GpuPart) -> Rate:
        return self._of(part.gpu).time_rate(part)

    def _find_energy_rate(self, gpu: str) -> Rate:
        return self._of(gpu).energy_rate(gpu)

    def _of(self, gpu: str) -> SegmentPrices:
        node = self._node_of(gpu, self._quarter)
        if node not in self._by_node:
            self._by_node[node] = SegmentPrices(self._table, node, self._quarter)
        return self._by_node[node]
