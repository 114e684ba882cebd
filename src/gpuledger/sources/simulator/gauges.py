"""What a simulated Gpu says of itself: each quantity as a function of its present state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuledger.model import quantities as q
from gpuledger.model.process import Usage
from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.simulator.chance import mix
from gpuledger.sources.simulator.meter import Meter
from gpuledger.sources.simulator.power import Draw
from gpuledger.sources.simulator.scenario import SECOND, WATT, WHOLE, GpuSpec

_ROOM_TEMPERATURE = 28
_HOTTEST_RISE = 45
_MEMORY_RISE = 9
_CORRECTED_EVERY = 6 * 3600 * SECOND
_CORRECTED = 31
_IDLE_TRAFFIC = 20_000

NOT_UNDER_MIG = frozenset({q.UTILIZATION, q.MEMORY_UTILIZATION, q.ENCODER_UTILIZATION, q.DECODER_UTILIZATION})
"""Quantities that NVML does not serve on a GPU under MIG (nvml.h, nvmlDeviceGetUtilizationRates)."""


@dataclass(frozen=True, slots=True)
class View:
    """One Gpu at one moment. `usage` is the last sample period, empty under MIG."""

    at: int
    index: int
    seed: int
    spec: GpuSpec
    meter: Meter
    draw: Draw
    usage: Usage
    is_used: bool
    memory_used: int
    uncorrected: int


@dataclass(frozen=True, slots=True)
class Store:
    """The memory of a Device in bytes; total = used + free + reserved."""

    total: int
    reserved: int
    used: int


Gauge = Callable[[View], float | None]


def _load(view: View) -> float:
    return view.draw.work / WHOLE


def _rise(view: View) -> float:
    return _HOTTEST_RISE * view.meter.heat / view.spec.power_limit


def _sm_clock(view: View) -> float:
    spec = view.spec
    if not view.draw.work:
        return spec.sm_clock if view.is_used else spec.idle_sm_clock
    headroom = max(0.0, 1 - view.draw.power / spec.power_limit)
    # At the power limit clocks give way, in the driver's steps of 15 MHz.
    return spec.sm_clock - 15_000_000 * round((0.12 * (1 - headroom) ** 4) * spec.sm_clock / 15_000_000)


def _memory_clock(view: View) -> float:
    return view.spec.memory_clock if view.is_used or not view.spec.idle_performance_state else 405_000_000


def _fan(view: View) -> float:
    return round(min(1.0, max(0.0, (_rise(view) - 8) / 40)), 2)


def _traffic(view: View, share: float) -> int:
    moved = view.meter.busy_time * view.spec.pcie_rate // SECOND
    return int(moved * share) + (view.at - (view.meter.loaded_at or 0)) * _IDLE_TRAFFIC // SECOND


def _corrected(view: View) -> int:
    return mix(view.seed, _CORRECTED, view.index) % 3 + view.at // _CORRECTED_EVERY


GAUGES: Mapping[Quantity, Gauge] = {
    q.UTILIZATION: lambda view: view.usage.sm,
    q.MEMORY_UTILIZATION: lambda view: view.usage.memory,
    q.ENCODER_UTILIZATION: lambda view: view.usage.encoder,
    q.DECODER_UTILIZATION: lambda view: view.usage.decoder,
    q.POWER: lambda view: view.draw.power // 1000 / 1000,
    q.POWER_LIMIT: lambda view: view.spec.power_limit / WATT,
    q.POWER_LIMIT_MAX: lambda view: view.spec.power_limit_max / WATT,
    q.ENERGY: lambda view: view.meter.counter,
    q.TEMPERATURE: lambda view: round(_ROOM_TEMPERATURE + _rise(view)),
    q.MEMORY_TEMPERATURE: lambda view: round(_ROOM_TEMPERATURE + _MEMORY_RISE + _rise(view)),
    q.FAN_SPEED: _fan,
    q.GRAPHICS_CLOCK: _sm_clock,
    q.SM_CLOCK: _sm_clock,
    q.MEMORY_CLOCK: _memory_clock,
    q.VIDEO_CLOCK: lambda view: round(_sm_clock(view) * 0.9 / 15_000_000) * 15_000_000,
    q.PERFORMANCE_STATE: lambda view: 0 if view.is_used else view.spec.idle_performance_state,
    q.PCIE_TX: lambda view: _traffic(view, 0.4),
    q.PCIE_RX: lambda view: _traffic(view, 0.6),
    q.PCIE_REPLAYS: lambda _: 0,
    q.ECC_CORRECTED: _corrected,
    q.ECC_UNCORRECTED: lambda view: view.uncorrected,
}

STORES: Mapping[Quantity, Callable[[Store], float]] = {
    q.MEMORY_TOTAL: lambda store: store.total,
    q.MEMORY_USED: lambda store: store.used,
    q.MEMORY_FREE: lambda store: store.total - store.reserved - store.used,
    q.MEMORY_RESERVED: lambda store: store.reserved,
}


def supported(wanted: frozenset[Quantity], lacks: frozenset[str], level: Level, mig: bool) -> dict[str, bool]:
    """For the quantities asked of a Device of this level, whether it has them."""
    known = GAUGES.keys() | STORES.keys() | {q.ENGINE_ACTIVITY}
    answers = {}
    for quantity in sorted(wanted, key=lambda item: item.key):
        if level is Level.INSTANCE and quantity.level is not Level.INSTANCE:
            continue
        told = quantity in known and quantity.key not in lacks
        answers[quantity.key] = told and not (mig and quantity in NOT_UNDER_MIG)
    return answers
