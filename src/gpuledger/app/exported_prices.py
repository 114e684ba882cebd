"""The price of GPU time that a node exports: now, of an hour of the whole GPU, for each device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.prices import PriceList
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.devices import Device, Instance
from gpuledger.model.settings import build_settings


class ExportedPrices:
    """Prices of one node, by the quarter of an hour; it keeps those of the last quarter."""

    def __init__(self, prices: PriceList, node: str) -> None:
        self._prices, self._node = prices, node
        self._quarter = 0
        self._known: dict[GpuPart, float | None] = {}

    def __call__(self, device: Device, unix: float) -> float | None:
        """The price at a unix time; None if no entry of the price list applies."""
        if not self._prices.has_gpu_hour:
            return None
        quarter = int(unix // QUARTER)
        if quarter != self._quarter:
            self._quarter, self._known = quarter, {}
        profile = device.profile if isinstance(device, Instance) else ""
        part = GpuPart(device.gpu.uuid, device.gpu.name, device.instance, profile, device_share(device))
        if part not in self._known:
            price = self._prices.gpu_hour(part, self._node, quarter)
            self._known[part] = None if price is None else float(price)
        return self._known[part]


def exported_prices(values: Mapping[str, Any], node: str) -> ExportedPrices:
    """The prices of these settings. Raises UsageError that names an invalid entry."""
    zone = configured_time_zone(values)
    return ExportedPrices(PriceList(build_settings(Prices, values), zone), node)
