"""Price lists, parts of a Gpu that they match, and times."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from fractions import Fraction

from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.prices import PriceList
from money_helpers import prices

H100, A100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L4"
# An Instance of 16 of 132 multiprocessors, and those that no Instance covers.
SMALL = GpuPart("GPU-1", H100, "3_0", "1g.10gb", Fraction(16, 132))
UNCOVERED = GpuPart("GPU-1", H100, "", "", Fraction(8, 132))
WHOLE = GpuPart("GPU-1", H100)


def price_list(
    gpu_hour: object = None,
    kwh: object = None,
    pue: object = None,
    co2: object = None,
    zone: tzinfo = UTC,
    currency: str = "",
) -> PriceList:
    return PriceList(prices(gpu_hour=gpu_hour, kwh=kwh, pue=pue, co2=co2, currency=currency), zone)


def at(text: str, zone: tzinfo = UTC) -> int:
    """The quarter of a local time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) // 900
