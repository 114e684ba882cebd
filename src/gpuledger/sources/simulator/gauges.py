"""The quantities of a simulated GPU, each as a function of its current conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuledger.model import quantities as q
from gpuledger.model.process import Usage
from gpuledger.model.quantities import Quantity
from gpuledger.sources.simulator.faults import HW_THERMAL, POWER_BRAKE, SW_POWER_CAP, SW_THERMAL, CardFaults
from gpuledger.sources.simulator.hardware import mix_bits
from gpuledger.sources.simulator.meter import PowerMeter
from gpuledger.sources.simulator.power import PowerDraw
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
# A bit of nvmlClocksEventReasons.
_GPU_IDLE = 0x1
# Of an H100, and the bytes per second of each link in one direction.
_NVLINKS = 18
_LINK_SPEED = 26_562_000_000


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """The state of one GPU at one time; input of the gauges. `usage` is of the last sample period, empty
    with MIG, where no quantity without `under_mig` is computed.
    """

    at: int
    index: int
    seed: int
    spec: GpuSpec
    meter: PowerMeter
    draw: PowerDraw
    usage: Usage
    is_used: bool
    memory_used: int
    uncorrected: int
    mig: bool
    faults: CardFaults


Gauge = Callable[[GpuConditions], float | None]


def _load(gpu: GpuConditions) -> float:
    return gpu.draw.work / WHOLE


def _temperature(gpu: GpuConditions) -> int:
    return _SLOWDOWN if gpu.faults.is_hot else round(_ROOM_TEMPERATURE + _temperature_rise(gpu))


def _temperature_rise(gpu: GpuConditions) -> float:
    return _HOTTEST_RISE * gpu.meter.heat / gpu.spec.power_limit


def _sm_clock(gpu: GpuConditions) -> float:
    spec = gpu.spec
    if not gpu.draw.work:
        return spec.sm_clock if gpu.is_used else spec.idle_sm_clock
    headroom = max(0.0, 1 - gpu.draw.power / spec.power_limit)
    share = min(gpu.faults.clock_share, 1 - 0.12 * (1 - headroom) ** 4)
    # Clocks drop near the power limit, in the driver's steps of 15 MHz.
    return spec.sm_clock - 15_000_000 * round((1 - share) * spec.sm_clock / 15_000_000)


def _memory_clock(gpu: GpuConditions) -> float:
    return gpu.spec.memory_clock if gpu.is_used or not gpu.spec.idle_performance_state else 405_000_000


def _fan(gpu: GpuConditions) -> float:
    return round(min(1.0, max(0.0, (_temperature_rise(gpu) - 8) / 40)), 2)


def _traffic(gpu: GpuConditions, share: float) -> int:
    moved = gpu.meter.busy_time * gpu.spec.pcie_rate // SECOND
    return int(moved * share) + (gpu.at - (gpu.meter.loaded_at or 0)) * _IDLE_TRAFFIC // SECOND


def _pcie_generation(gpu: GpuConditions) -> int:
    # An idle card lowers it to save power, if it lowers its performance state.
    idle = not gpu.is_used and gpu.spec.idle_performance_state > 0
    return 1 if idle else gpu.faults.pcie_generation or gpu.spec.pcie_generation


def _links_up(gpu: GpuConditions) -> int:
    return (1 << max(0, _NVLINKS - gpu.faults.links_down)) - 1


def _link_traffic(gpu: GpuConditions) -> int:
    # Half for each direction, in multiples of the driver's unit of 1 KiB.
    return gpu.meter.busy_time * gpu.spec.nvlink_rate // SECOND // 2 // 1024 * 1024


def _idle_time(gpu: GpuConditions) -> int:
    return gpu.at - (gpu.meter.loaded_at or 0) - gpu.meter.busy_time


def _clock_reasons(gpu: GpuConditions) -> int:
    if not gpu.draw.work:
        return _GPU_IDLE | gpu.faults.clock_reasons
    return gpu.faults.clock_reasons | (SW_POWER_CAP if gpu.draw.power >= gpu.spec.power_limit else 0)


def _bar1(gpu: GpuConditions) -> int:
    return 1 << (gpu.spec.memory - 1).bit_length()


def _bar1_used(gpu: GpuConditions) -> int:
    return (2 if gpu.is_used else 1) << 20


def _video_clock(sm_clock: float) -> float:
    return round(sm_clock * 0.9 / 15_000_000) * 15_000_000


def _corrected_errors(gpu: GpuConditions) -> int:
    return mix_bits(gpu.seed, _CORRECTED, gpu.index) % 3 + gpu.at // _CORRECTED_EVERY


GAUGES: Mapping[Quantity, Gauge] = {
    q.UTILIZATION: lambda gpu: gpu.usage.sm,
    q.MEMORY_UTILIZATION: lambda gpu: gpu.usage.memory,
    q.ENCODER_UTILIZATION: lambda gpu: gpu.usage.encoder,
    q.DECODER_UTILIZATION: lambda gpu: gpu.usage.decoder,
    q.POWER: lambda gpu: gpu.draw.power // 1000 / 1000,
    q.POWER_INSTANT: lambda gpu: gpu.draw.power // 1000 / 1000,
    q.POWER_LIMIT: lambda gpu: gpu.spec.power_limit / WATT,
    q.POWER_LIMIT_MAX: lambda gpu: gpu.spec.power_limit_max / WATT,
    q.POWER_LIMIT_MIN: lambda gpu: round(gpu.spec.power_limit_max / WATT * _LEAST_LIMIT),
    q.POWER_LIMIT_DEFAULT: lambda gpu: gpu.spec.power_limit / WATT,
    q.POWER_LIMIT_MANAGEMENT: lambda gpu: gpu.spec.power_limit / WATT,
    q.ENERGY: lambda gpu: gpu.meter.counter,
    q.TEMPERATURE: _temperature,
    q.MEMORY_TEMPERATURE: lambda gpu: round(_ROOM_TEMPERATURE + _MEMORY_RISE + _temperature_rise(gpu)),
    q.TEMPERATURE_SLOWDOWN: lambda _: _SLOWDOWN,
    q.TEMPERATURE_SHUTDOWN: lambda _: _SHUTDOWN,
    q.FAN_SPEED: _fan,
    q.GRAPHICS_CLOCK: _sm_clock,
    q.SM_CLOCK: _sm_clock,
    q.MEMORY_CLOCK: _memory_clock,
    q.VIDEO_CLOCK: lambda gpu: _video_clock(_sm_clock(gpu)),
    q.APP_SM_CLOCK: lambda gpu: gpu.spec.sm_clock,
    q.APP_MEMORY_CLOCK: lambda gpu: gpu.spec.memory_clock,
    q.MAX_GRAPHICS_CLOCK: lambda gpu: gpu.spec.sm_clock,
    q.MAX_SM_CLOCK: lambda gpu: gpu.spec.sm_clock,
    q.MAX_MEMORY_CLOCK: lambda gpu: gpu.spec.memory_clock,
    q.MAX_VIDEO_CLOCK: lambda gpu: _video_clock(gpu.spec.sm_clock),
    q.CLOCK_EVENT_REASONS: _clock_reasons,
    q.POWER_VIOLATION: lambda gpu: (
        (int(gpu.meter.busy_time * _POWER_CAPPED) + gpu.faults.throttled[SW_POWER_CAP]) * 1000
    ),
    q.THERMAL_VIOLATION: lambda gpu: (
        (gpu.faults.throttled[SW_THERMAL] + gpu.faults.throttled[HW_THERMAL]) * 1000
    ),
    q.SOFTWARE_THERMAL_TIME: lambda gpu: gpu.faults.throttled[SW_THERMAL] * 1000,
    q.HARDWARE_THERMAL_TIME: lambda gpu: gpu.faults.throttled[HW_THERMAL] * 1000,
    q.POWER_BRAKE_TIME: lambda gpu: gpu.faults.throttled[POWER_BRAKE] * 1000,
    q.SYNC_BOOST_VIOLATION: lambda _: 0,
    q.BOARD_LIMIT_VIOLATION: lambda _: 0,
    q.LOW_UTILIZATION_VIOLATION: lambda gpu: _idle_time(gpu) * 1000,
    q.RELIABILITY_VIOLATION: lambda _: 0,
    q.RECOVERY_ACTION: lambda _: 0,
    q.FABRIC_STATE: lambda gpu: 3 if gpu.spec.nvlink_rate else 0,
    q.PERFORMANCE_STATE: lambda gpu: 0 if gpu.is_used else gpu.spec.idle_performance_state,
    q.PCIE_TX: lambda gpu: _traffic(gpu, 0.4),
    q.PCIE_RX: lambda gpu: _traffic(gpu, 0.6),
    q.PCIE_REPLAYS: lambda _: 0,
    q.PCIE_GENERATION: _pcie_generation,
    q.PCIE_GENERATION_MAX: lambda gpu: gpu.spec.pcie_generation,
    q.PCIE_GENERATION_GPU_MAX: lambda gpu: gpu.spec.pcie_generation,
    q.PCIE_WIDTH: lambda gpu: gpu.faults.pcie_width or gpu.spec.pcie_width,
    q.PCIE_WIDTH_MAX: lambda gpu: gpu.spec.pcie_width,
    q.PCIE_LINK_BUSY: lambda gpu: int(gpu.draw.work > 0),
    q.ECC_CORRECTED: _corrected_errors,
    q.PCIE_TX_RATE: lambda gpu: _load(gpu) * gpu.spec.pcie_rate * 0.4 + _IDLE_TRAFFIC,
    q.PCIE_RX_RATE: lambda gpu: _load(gpu) * gpu.spec.pcie_rate * 0.6 + _IDLE_TRAFFIC,
    q.NVLINK_TX: _link_traffic,
    q.NVLINK_RX: _link_traffic,
    q.NVLINKS_UP: _links_up,
    q.NVLINKS_DOWN: lambda gpu: (1 << _NVLINKS) - 1 - _links_up(gpu),
    q.NVLINK_SPEED: lambda _: _LINK_SPEED,
    q.NVLINK_RATE: lambda gpu: _load(gpu) * gpu.spec.nvlink_rate,
    q.NVLINK_TX_RATE: lambda gpu: _load(gpu) * gpu.spec.nvlink_rate / 2,
    q.NVLINK_RX_RATE: lambda gpu: _load(gpu) * gpu.spec.nvlink_rate / 2,
    q.NVLINK_CRC_FLIT_ERRORS: lambda _: 0,
    q.NVLINK_CRC_DATA_ERRORS: lambda _: 0,
    q.NVLINK_REPLAY_ERRORS: lambda _: 0,
    q.NVLINK_RECOVERY_ERRORS: lambda _: 0,
    q.BAR1_TOTAL: _bar1,
    q.BAR1_USED: _bar1_used,
    q.BAR1_FREE: lambda gpu: _bar1(gpu) - _bar1_used(gpu),
    q.COMPUTE_MODE: lambda _: 0,
    q.PERSISTENCE_MODE: lambda _: 1,
    q.VIRTUALIZATION_MODE: lambda _: 0,
    q.MIG_MODE: lambda gpu: int(gpu.mig),
    q.MIG_MAX_SLICES: lambda gpu: _MOST_INSTANCES if gpu.mig else 0,
    q.ECC_UNCORRECTED: lambda gpu: gpu.uncorrected,
    q.ECC_CORRECTED_VOLATILE: lambda gpu: (gpu.at - (gpu.meter.loaded_at or 0)) // _CORRECTED_EVERY,
    q.ECC_UNCORRECTED_VOLATILE: lambda gpu: gpu.uncorrected,
    # After an uncorrectable error GPUs retire a page (before Ampere) or remap a row at the next reset.
    q.RETIRED_PAGES_CORRECTABLE: lambda _: 0,
    q.RETIRED_PAGES_UNCORRECTABLE: lambda gpu: gpu.uncorrected,
    q.RETIRED_PAGES_PENDING: lambda gpu: int(gpu.uncorrected > 0),
    q.REMAPPED_ROWS_CORRECTABLE: lambda _: 0,
    q.REMAPPED_ROWS_UNCORRECTABLE: lambda gpu: gpu.uncorrected,
    q.ROW_REMAP_PENDING: lambda gpu: int(gpu.uncorrected > 0 or gpu.faults.remap_pending),
    q.ROW_REMAP_FAILURE: lambda gpu: int(gpu.faults.remap_failed),
}

MEMORY_QUANTITIES = (q.MEMORY_TOTAL, q.MEMORY_RESERVED, q.MEMORY_FREE, q.MEMORY_USED)


def memory_values(total: int, reserved: int, used: int) -> dict[Quantity, float]:
    """Return the MEMORY_QUANTITIES of a Device, in bytes."""
    return dict(zip(MEMORY_QUANTITIES, (total, reserved, total - reserved - used, used), strict=True))


# GPM metrics as shares of the engine's busy time; values as seen while training a large model.
GPM_SHARES: Mapping[Quantity, float] = {
    q.ENGINE_ACTIVITY: 1.0,
    q.SM_ACTIVITY: 0.93,
    q.SM_OCCUPANCY: 0.47,
    q.TENSOR_ACTIVITY: 0.38,
    q.FP64_ACTIVITY: 0.0,
    q.FP32_ACTIVITY: 0.11,
    q.FP16_ACTIVITY: 0.06,
}
_DRAM_PEAK = 0.82

# What GPM reports for a Gpu and for its Instances, and what it reports only for a whole Gpu.
GPM_METRICS = frozenset({*GPM_SHARES, q.DRAM_ACTIVITY})
GPM_RATES = frozenset({q.PCIE_TX_RATE, q.PCIE_RX_RATE, q.NVLINK_TX_RATE, q.NVLINK_RX_RATE})


def compute_metric(quantity: Quantity, busy: float, memory: float) -> float:
    """Compute a GPM metric from the shares of time that a Device's engines and memory were busy."""
    return memory * _DRAM_PEAK if quantity is q.DRAM_ACTIVITY else busy * GPM_SHARES[quantity]
