"""The quantities that a source can read from a Device: key, unit, level and possible range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite


class Level(Enum):
    """The deepest kind of Device that has a quantity. A MIG instance, for example, has no power reading."""

    GPU = "gpu"
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """One measurable quantity in base units. Compared by identity: this module defines all instances.

    Values above `highest` are physically impossible: drivers have returned 4294967295 % and 1.4e16 % (DCGM
    issue 199). Such a value is dropped and counted, never clamped. `slow` quantities change rarely and are
    read less often, those that are also `constant` only now and then. NVML provides `profiling` quantities
    only through GPM (Hopper and newer); older GPUs need DCGM's profiling module. Without `under_mig` a GPU in
    MIG mode lacks the quantity. A `shared` quantity belongs to the GPU instance: its compute instances all
    report the same value.
    """

    key: str
    unit: str
    level: Level = Level.GPU
    highest: float = inf
    lowest: float = 0.0
    slow: bool = False
    constant: bool = False
    profiling: bool = False
    under_mig: bool = True
    shared: bool = False

    def is_possible(self, value: float) -> bool:
        """Returns whether `value` (in base units) is finite and physically possible."""
        return isfinite(value) and self.lowest <= value <= self.highest

    def __repr__(self) -> str:
        return f"<{self.key}>"


_TERA = 1e12

# Of the whole GPU (nvml.h, nvmlDeviceGetUtilizationRates).
UTILIZATION = Quantity("utilization", "ratio", highest=1.0, under_mig=False)
MEMORY_UTILIZATION = Quantity("memory_utilization", "ratio", highest=1.0, under_mig=False)
ENCODER_UTILIZATION = Quantity("encoder_utilization", "ratio", highest=1.0, under_mig=False)
DECODER_UTILIZATION = Quantity("decoder_utilization", "ratio", highest=1.0, under_mig=False)

# Means over the time between two ticks, from GPM (Hopper and newer). Engine: time for which the graphics or
# compute engine was busy. SM: time with at least one warp, averaged over all SMs. Occupancy: resident warps
# as a fraction of the maximum. Tensor, FP64, FP32, FP16: time for which the pipe was busy. DRAM: fraction of
# the peak bandwidth, per GPU instance.
ENGINE_ACTIVITY = Quantity("engine_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True)
SM_ACTIVITY = Quantity("sm_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True)
SM_OCCUPANCY = Quantity("sm_occupancy", "ratio", Level.INSTANCE, highest=1.0, profiling=True)
TENSOR_ACTIVITY = Quantity("tensor_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True)
DRAM_ACTIVITY = Quantity("dram_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True, shared=True)
FP64_ACTIVITY = Quantity("fp64_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True)
FP32_ACTIVITY = Quantity("fp32_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True)
FP16_ACTIVITY = Quantity("fp16_activity", "ratio", Level.INSTANCE, highest=1.0, profiling=True)

MEMORY_TOTAL = Quantity("memory_total", "bytes", Level.INSTANCE, highest=1024 * _TERA, shared=True)
MEMORY_USED = Quantity("memory_used", "bytes", Level.INSTANCE, highest=1024 * _TERA, shared=True)
MEMORY_FREE = Quantity("memory_free", "bytes", Level.INSTANCE, highest=1024 * _TERA, shared=True)
MEMORY_RESERVED = Quantity("memory_reserved", "bytes", Level.INSTANCE, highest=1024 * _TERA, shared=True)
# The window through which the CPU reaches the card's memory.
BAR1_TOTAL = Quantity("bar1_total", "bytes", highest=1024 * _TERA, slow=True)
BAR1_USED = Quantity("bar1_used", "bytes", highest=1024 * _TERA, slow=True)
BAR1_FREE = Quantity("bar1_free", "bytes", highest=1024 * _TERA, slow=True)

POWER = Quantity("power", "watts", highest=100_000.0)
POWER_INSTANT = Quantity("power_instant", "watts", highest=100_000.0)
# The enforced limit; the requested limit; the range that can be requested; the limit after a reset.
POWER_LIMIT = Quantity("power_limit", "watts", highest=100_000.0, slow=True)
POWER_LIMIT_MANAGEMENT = Quantity("power_limit_management", "watts", highest=100_000.0, slow=True)
POWER_LIMIT_MIN = Quantity("power_limit_min", "watts", highest=100_000.0, slow=True)
POWER_LIMIT_MAX = Quantity("power_limit_max", "watts", highest=100_000.0, slow=True)
POWER_LIMIT_DEFAULT = Quantity("power_limit_default", "watts", highest=100_000.0, slow=True)
# Hardware counter in integer millijoules since the driver was loaded. The accounts of the ledger sum to it.
ENERGY = Quantity("energy", "millijoules")

TEMPERATURE = Quantity("temperature", "celsius", highest=200.0, lowest=-60.0)
MEMORY_TEMPERATURE = Quantity("memory_temperature", "celsius", highest=200.0, lowest=-60.0)
TEMPERATURE_SLOWDOWN = Quantity("temperature_slowdown", "celsius", highest=200.0, lowest=-60.0, slow=True)
TEMPERATURE_SHUTDOWN = Quantity("temperature_shutdown", "celsius", highest=200.0, lowest=-60.0, slow=True)
FAN_SPEED = Quantity("fan_speed", "ratio", highest=2.0, slow=True)

GRAPHICS_CLOCK = Quantity("graphics_clock", "hertz", highest=_TERA)
SM_CLOCK = Quantity("sm_clock", "hertz", highest=_TERA)
MEMORY_CLOCK = Quantity("memory_clock", "hertz", highest=_TERA)
VIDEO_CLOCK = Quantity("video_clock", "hertz", highest=_TERA)
# Application clock settings, and the maximum clocks of the card.
APP_SM_CLOCK = Quantity("app_sm_clock", "hertz", highest=_TERA, slow=True)
APP_MEMORY_CLOCK = Quantity("app_memory_clock", "hertz", highest=_TERA, slow=True)
MAX_GRAPHICS_CLOCK = Quantity("max_graphics_clock", "hertz", highest=_TERA, slow=True)
MAX_SM_CLOCK = Quantity("max_sm_clock", "hertz", highest=_TERA, slow=True)
MAX_MEMORY_CLOCK = Quantity("max_memory_clock", "hertz", highest=_TERA, slow=True)
MAX_VIDEO_CLOCK = Quantity("max_video_clock", "hertz", highest=_TERA, slow=True)
PERFORMANCE_STATE = Quantity("performance_state", "", highest=15)
# Reasons for the current clocks: bits of nvmlClocksEventReasons.
CLOCK_EVENT_REASONS = Quantity("clock_event_reasons", "")

# Time for which the clocks were reduced, by reason, since the driver was loaded.
POWER_VIOLATION = Quantity("power_violation", "nanoseconds")
THERMAL_VIOLATION = Quantity("thermal_violation", "nanoseconds")
SYNC_BOOST_VIOLATION = Quantity("sync_boost_violation", "nanoseconds")
BOARD_LIMIT_VIOLATION = Quantity("board_limit_violation", "nanoseconds")
LOW_UTILIZATION_VIOLATION = Quantity("low_utilization_violation", "nanoseconds")
RELIABILITY_VIOLATION = Quantity("reliability_violation", "nanoseconds")
# By cause (driver 565 and later): heat, by the driver or by the card; the power brake signal of the server.
SOFTWARE_THERMAL_TIME = Quantity("software_thermal_time", "nanoseconds")
HARDWARE_THERMAL_TIME = Quantity("hardware_thermal_time", "nanoseconds")
POWER_BRAKE_TIME = Quantity("power_brake_time", "nanoseconds")

# nvmlComputeMode_t (0 default, 2 prohibited, 3 exclusive process); 0 or 1; nvmlGpuVirtualizationMode_t (0
# none to 4).
COMPUTE_MODE = Quantity("compute_mode", "", highest=3, slow=True, under_mig=False)
PERSISTENCE_MODE = Quantity("persistence_mode", "", highest=1, slow=True)
VIRTUALIZATION_MODE = Quantity("virtualization_mode", "", highest=4, slow=True)
# nvmlDeviceGpuRecoveryAction_t: the action that the card needs to recover, 0 for none.
RECOVERY_ACTION = Quantity("recovery_action", "", highest=255, slow=True)
# nvmlGpuFabricState_t: 0 not supported, 1 not registered with the NVLink fabric, 2 in progress, 3 completed.
FABRIC_STATE = Quantity("fabric_state", "", highest=3, slow=True)
# 0 or 1; then the maximum number of Instances, 0 with MIG off.
MIG_MODE = Quantity("mig_mode", "", highest=1)
MIG_MAX_SLICES = Quantity("mig_max_slices", "", highest=1024)

# Cumulative since driver load; they can wrap (nvml.h, fields 197 and 198).
PCIE_TX = Quantity("pcie_tx", "bytes")
PCIE_RX = Quantity("pcie_rx", "bytes")
PCIE_REPLAYS = Quantity("pcie_replays", "", slow=True)
# The link now; the maximum that card and slot can do together, and the generation that the card alone can do.
PCIE_GENERATION = Quantity("pcie_generation", "", highest=15, lowest=1, slow=True)
PCIE_GENERATION_MAX = Quantity("pcie_generation_max", "", highest=15, lowest=1, slow=True, constant=True)
PCIE_GENERATION_GPU_MAX = Quantity(
    "pcie_generation_gpu_max", "", highest=15, lowest=1, slow=True, constant=True
)
PCIE_WIDTH = Quantity("pcie_width", "lanes", highest=32, lowest=1, slow=True)
PCIE_WIDTH_MAX = Quantity("pcie_width_max", "lanes", highest=32, lowest=1, slow=True, constant=True)
# 1 if the Gpu was busy when its link was read, else 0: an idle one lowers the generation to save power.
PCIE_LINK_BUSY = Quantity("pcie_link_busy", "", highest=1, slow=True)
# Means over the time between two ticks, from GPM.
PCIE_TX_RATE = Quantity("pcie_tx_rate", "bytes per second", highest=1024 * _TERA, profiling=True)
PCIE_RX_RATE = Quantity("pcie_rx_rate", "bytes per second", highest=1024 * _TERA, profiling=True)

# Bit n is set if link n is up, or down; a link of unknown state is in neither.
NVLINKS_UP = Quantity("nvlinks_up", "", highest=2**36 - 1, slow=True)
NVLINKS_DOWN = Quantity("nvlinks_down", "", highest=2**36 - 1, slow=True)
# Of one link, in each direction.
NVLINK_SPEED = Quantity("nvlink_speed", "bytes per second", highest=1024 * _TERA, slow=True)
# Payload of all links together, cumulative since driver load.
NVLINK_TX = Quantity("nvlink_tx", "bytes")
NVLINK_RX = Quantity("nvlink_rx", "bytes")
# Both directions together, from two reads of the counters; by direction, from GPM.
NVLINK_RATE = Quantity("nvlink_rate", "bytes per second", highest=1024 * _TERA)
NVLINK_TX_RATE = Quantity("nvlink_tx_rate", "bytes per second", highest=1024 * _TERA, profiling=True)
NVLINK_RX_RATE = Quantity("nvlink_rx_rate", "bytes per second", highest=1024 * _TERA, profiling=True)
NVLINK_CRC_FLIT_ERRORS = Quantity("nvlink_crc_flit_errors", "", slow=True)
NVLINK_CRC_DATA_ERRORS = Quantity("nvlink_crc_data_errors", "", slow=True)
NVLINK_REPLAY_ERRORS = Quantity("nvlink_replay_errors", "", slow=True)
NVLINK_RECOVERY_ERRORS = Quantity("nvlink_recovery_errors", "", slow=True)

# Over the card's life; since the driver was loaded.
ECC_CORRECTED = Quantity("ecc_corrected", "", slow=True)
ECC_UNCORRECTED = Quantity("ecc_uncorrected", "", slow=True)
ECC_CORRECTED_VOLATILE = Quantity("ecc_corrected_volatile", "", slow=True)
ECC_UNCORRECTED_VOLATILE = Quantity("ecc_uncorrected_volatile", "", slow=True)

# Memory taken out of use after errors: pages up to Turing, rows since Ampere. Pending: takes effect at the
# next reset (0 or 1). Failure: a row could not be remapped (0 or 1).
RETIRED_PAGES_CORRECTABLE = Quantity("retired_pages_correctable", "", slow=True)
RETIRED_PAGES_UNCORRECTABLE = Quantity("retired_pages_uncorrectable", "", slow=True)
RETIRED_PAGES_PENDING = Quantity("retired_pages_pending", "", highest=1, slow=True)
REMAPPED_ROWS_CORRECTABLE = Quantity("remapped_rows_correctable", "", slow=True)
REMAPPED_ROWS_UNCORRECTABLE = Quantity("remapped_rows_uncorrectable", "", slow=True)
ROW_REMAP_PENDING = Quantity("row_remap_pending", "", highest=1, slow=True)
ROW_REMAP_FAILURE = Quantity("row_remap_failure", "", highest=1, slow=True)


def link_busy_needs(*, mig: bool) -> tuple[Quantity, ...]:
    """What shows whether a Gpu is busy; in MIG mode the driver has no utilization of the whole Gpu."""
    return (PERFORMANCE_STATE,) if mig else (PERFORMANCE_STATE, UTILIZATION)


def is_link_busy(values: Mapping[Quantity, float], *, mig: bool) -> bool | None:
    """Return PCIE_LINK_BUSY of a Gpu with these values of the same moment; None if that is unknown.

    Busy is a Gpu at the highest performance state, with kernels running in the last sample period.
    """
    needs = link_busy_needs(mig=mig)
    if any(quantity not in values for quantity in needs):
        return None
    return values[PERFORMANCE_STATE] == 0 and (mig or values[UTILIZATION] > 0)


def limit_link_width(values: dict[Quantity, float], lanes: int | None) -> None:
    """Limit PCIE_WIDTH_MAX to the lanes of the slot, if they are known: drivers report those of the card.

    The virtual slot of a virtual machine can have fewer lanes than the link uses; it says nothing.
    """
    most = values.get(PCIE_WIDTH_MAX)
    if most is not None and lanes is not None and lanes >= values.get(PCIE_WIDTH, lanes):
        values[PCIE_WIDTH_MAX] = min(most, lanes)


QUANTITIES: dict[str, Quantity] = {
    value.key: value for value in tuple(globals().values()) if isinstance(value, Quantity)
}

PROFILING = frozenset(value for value in QUANTITIES.values() if value.profiling)

# A pseudo quantity that requests every column of the local nvidia-smi in `Reading.raw`. The collector that
# queries the columns has the same name.
COLUMNS = Quantity("columns", "")
# A pseudo quantity that requests PCIE_TX_RATE and PCIE_RX_RATE by a call that takes 20 ms each, of a GPU that
# has no counter of bytes (before Ampere).
PCIE_SAMPLES = Quantity("pcie_samples", "")
