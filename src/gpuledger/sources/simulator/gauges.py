"""What a simulated Gpu says of itself: each quantity as a function of its present state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuledger.model import quantities as q
from gpuledger.model.process import Usage
from gpuledger.model.quantities import Quantity
from gpuledger.sources.simulator.hardware import mix
from gpuledger.sources.simulator.meter import Meter
from gpuledger.sources.simulator.power import Draw
from gpuledger.sources.simulator.scenario import SECOND, WATT, WHOLE, GpuSpec

_ROOM_TEMPERATURE = 28
_HOTTEST_RISE = 45
_MEMORY_RISE = 9
_CORRECTED_EVERY = 6 * 3600 * SECOND
_CORRECTED = 31
_IDLE_TRAFFIC = 20_000
_MOST_INSTANCES = 7
_LEAST_LIMIT = 0.3
_SLOWDOWN, _SHUTDOWN = 87, 92
_POWER_CAPPED = 0.02
# Bits of nvmlClocksEventReasons: nothing to do; the power limit.
_GPU_IDLE, _SW_POWER_CAP = 0x1, 0x4


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
    mig: bool


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


def _link_traffic(view: View) -> int:
    # Each direction half, in the KiB that the driver counts by.
    return view.meter.busy_time * view.spec.nvlink_rate // SECOND // 2 // 1024 * 1024


def _quiet_time(view: View) -> int:
    return view.at - (view.meter.loaded_at or 0) - view.meter.busy_time


def _clock_reasons(view: View) -> int:
    if not view.draw.work:
        return _GPU_IDLE
    return _SW_POWER_CAP if view.draw.power >= view.spec.power_limit else 0


def _bar1(view: View) -> int:
    return 1 << (view.spec.memory - 1).bit_length()


def _bar1_used(view: View) -> int:
    return (2 if view.is_used else 1) << 20


def _video_clock(sm_clock: float) -> float:
    return round(sm_clock * 0.9 / 15_000_000) * 15_000_000


def _corrected(view: View) -> int:
    return mix(view.seed, _CORRECTED, view.index) % 3 + view.at // _CORRECTED_EVERY


GAUGES: Mapping[Quantity, Gauge] = {
    q.UTILIZATION: lambda view: view.usage.sm,
    q.MEMORY_UTILIZATION: lambda view: view.usage.memory,
    q.ENCODER_UTILIZATION: lambda view: view.usage.encoder,
    q.DECODER_UTILIZATION: lambda view: view.usage.decoder,
    q.POWER: lambda view: view.draw.power // 1000 / 1000,
    q.POWER_INSTANT: lambda view: view.draw.power // 1000 / 1000,
    q.POWER_LIMIT: lambda view: view.spec.power_limit / WATT,
    q.POWER_LIMIT_MAX: lambda view: view.spec.power_limit_max / WATT,
    q.POWER_LIMIT_MIN: lambda view: round(view.spec.power_limit_max / WATT * _LEAST_LIMIT),
    q.POWER_LIMIT_DEFAULT: lambda view: view.spec.power_limit / WATT,
    q.POWER_LIMIT_MANAGEMENT: lambda view: view.spec.power_limit / WATT,
    q.ENERGY: lambda view: view.meter.counter,
    q.TEMPERATURE: lambda view: round(_ROOM_TEMPERATURE + _rise(view)),
    q.MEMORY_TEMPERATURE: lambda view: round(_ROOM_TEMPERATURE + _MEMORY_RISE + _rise(view)),
    q.TEMPERATURE_SLOWDOWN: lambda _: _SLOWDOWN,
    q.TEMPERATURE_SHUTDOWN: lambda _: _SHUTDOWN,
    q.FAN_SPEED: _fan,
    q.GRAPHICS_CLOCK: _sm_clock,
    q.SM_CLOCK: _sm_clock,
    q.MEMORY_CLOCK: _memory_clock,
    q.VIDEO_CLOCK: lambda view: _video_clock(_sm_clock(view)),
    q.APP_SM_CLOCK: lambda view: view.spec.sm_clock,
    q.APP_MEMORY_CLOCK: lambda view: view.spec.memory_clock,
    q.MAX_GRAPHICS_CLOCK: lambda view: view.spec.sm_clock,
    q.MAX_SM_CLOCK: lambda view: view.spec.sm_clock,
    q.MAX_MEMORY_CLOCK: lambda view: view.spec.memory_clock,
    q.MAX_VIDEO_CLOCK: lambda view: _video_clock(view.spec.sm_clock),
    q.CLOCK_EVENT_REASONS: _clock_reasons,
    q.POWER_VIOLATION: lambda view: int(view.meter.busy_time * _POWER_CAPPED) * 1000,
    q.THERMAL_VIOLATION: lambda _: 0,
    q.SYNC_BOOST_VIOLATION: lambda _: 0,
    q.BOARD_LIMIT_VIOLATION: lambda _: 0,
    q.LOW_UTILIZATION_VIOLATION: lambda view: _quiet_time(view) * 1000,
    q.RELIABILITY_VIOLATION: lambda _: 0,
    q.RECOVERY_ACTION: lambda _: 0,
    q.FABRIC_STATE: lambda view: 3 if view.spec.nvlink_rate else 0,
    q.PERFORMANCE_STATE: lambda view: 0 if view.is_used else view.spec.idle_performance_state,
    q.PCIE_TX: lambda view: _traffic(view, 0.4),
    q.PCIE_RX: lambda view: _traffic(view, 0.6),
    q.PCIE_REPLAYS: lambda _: 0,
    q.ECC_CORRECTED: _corrected,
    q.PCIE_TX_RATE: lambda view: _load(view) * view.spec.pcie_rate * 0.4 + _IDLE_TRAFFIC,
    q.PCIE_RX_RATE: lambda view: _load(view) * view.spec.pcie_rate * 0.6 + _IDLE_TRAFFIC,
    q.NVLINK_TX: _link_traffic,
    q.NVLINK_RX: _link_traffic,
    q.NVLINK_RATE: lambda view: _load(view) * view.spec.nvlink_rate,
    q.NVLINK_TX_RATE: lambda view: _load(view) * view.spec.nvlink_rate / 2,
    q.NVLINK_RX_RATE: lambda view: _load(view) * view.spec.nvlink_rate / 2,
    q.NVLINK_CRC_FLIT_ERRORS: lambda _: 0,
    q.NVLINK_CRC_DATA_ERRORS: lambda _: 0,
    q.NVLINK_REPLAY_ERRORS: lambda _: 0,
    q.NVLINK_RECOVERY_ERRORS: lambda _: 0,
    q.BAR1_TOTAL: _bar1,
    q.BAR1_USED: _bar1_used,
    q.BAR1_FREE: lambda view: _bar1(view) - _bar1_used(view),
    q.COMPUTE_MODE: lambda _: 0,
    q.PERSISTENCE_MODE: lambda _: 1,
    q.VIRTUALIZATION_MODE: lambda _: 0,
    q.MIG_MODE: lambda view: int(view.mig),
    q.MIG_MAX_SLICES: lambda view: _MOST_INSTANCES if view.mig else 0,
    q.ECC_UNCORRECTED: lambda view: view.uncorrected,
    q.ECC_CORRECTED_VOLATILE: lambda view: (view.at - (view.meter.loaded_at or 0)) // _CORRECTED_EVERY,
    q.ECC_UNCORRECTED_VOLATILE: lambda view: view.uncorrected,
    # For each error that could not be corrected old cards retire a page at the next reset, newer ones a row.
    q.RETIRED_PAGES_CORRECTABLE: lambda _: 0,
    q.RETIRED_PAGES_UNCORRECTABLE: lambda view: view.uncorrected,
    q.RETIRED_PAGES_PENDING: lambda view: int(view.uncorrected > 0),
    q.REMAPPED_ROWS_CORRECTABLE: lambda _: 0,
    q.REMAPPED_ROWS_UNCORRECTABLE: lambda view: view.uncorrected,
    q.ROW_REMAP_PENDING: lambda view: int(view.uncorrected > 0),
    q.ROW_REMAP_FAILURE: lambda _: 0,
}

STORES: Mapping[Quantity, Callable[[Store], float]] = {
    q.MEMORY_TOTAL: lambda store: store.total,
    q.MEMORY_USED: lambda store: store.used,
    q.MEMORY_FREE: lambda store: store.total - store.reserved - store.used,
    q.MEMORY_RESERVED: lambda store: store.reserved,
}


# The share of busy time that each metric comes to, as a large model in training shows it.
ENGINES: Mapping[Quantity, float] = {
    q.ENGINE_ACTIVITY: 1.0,
    q.SM_ACTIVITY: 0.93,
    q.SM_OCCUPANCY: 0.47,
    q.TENSOR_ACTIVITY: 0.38,
    q.FP64_ACTIVITY: 0.0,
    q.FP32_ACTIVITY: 0.11,
    q.FP16_ACTIVITY: 0.06,
}
_DRAM_PEAK = 0.82

# What GPM tells of a Gpu and of its Instances, and of a whole Gpu alone.
METRICS = frozenset({*ENGINES, q.DRAM_ACTIVITY})
RATES = frozenset({q.PCIE_TX_RATE, q.PCIE_RX_RATE, q.NVLINK_TX_RATE, q.NVLINK_RX_RATE})


def metric(quantity: Quantity, busy: float, memory: float) -> float:
    """A metric from the shares of time in which the engines and the memory of a Device were busy."""
    return memory * _DRAM_PEAK if quantity is q.DRAM_ACTIVITY else busy * ENGINES[quantity]
