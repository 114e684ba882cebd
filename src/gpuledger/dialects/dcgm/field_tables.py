"""The DCGM fields that gpuledger exports.

Rates and states are gauges, even if a collectors file calls them counters.
"""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm import field_definition as s
from gpuledger.dialects.dcgm.field_definition import Field, Values, scaled
from gpuledger.dialects.dcgm.profiling_fields import PROFILING
from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity


def _used_ratio(values: Values) -> float | None:
    used, total = values.get(q.MEMORY_USED), values.get(q.MEMORY_TOTAL)
    reserved = values.get(q.MEMORY_RESERVED)
    if used is None or total is None or reserved is None or total <= reserved:
        return None
    return used / (total - reserved)


MODES: Final = (
    scaled(
        65,
        "COMPUTE_MODE",
        "GPU_COMPUTE_MODE",
        q.COMPUTE_MODE,
        "Compute mode: 0 default, 1 prohibited, 2 exclusive process",
        scale=s.COMPUTE_MODE,
    ),
    scaled(
        66,
        "PERSISTENCE_MODE",
        "GPU_PERSISTENCE_MODE",
        q.PERSISTENCE_MODE,
        "1 if the driver remains loaded without clients",
    ),
    scaled(67, "MIG_MODE", "", q.MIG_MODE, "1 if MIG mode is enabled"),
    scaled(
        69, "MIG_MAX_SLICES", "", q.MIG_MAX_SLICES, "Maximum number of MIG instances; 0 if MIG is disabled"
    ),
    scaled(
        500,
        "VIRTUAL_MODE",
        "GPU_VIRTUAL_MODE",
        q.VIRTUALIZATION_MODE,
        "Virtualization: 0 none, 1 passthrough, 2 vGPU guest, 3 vGPU host, 4 vSGA host",
    ),
)

CLOCKS: Final = (
    scaled(100, "SM_CLOCK", ("SM_CLOCK_HERTZ", 1603), q.SM_CLOCK, "SM clock"),
    scaled(101, "MEM_CLOCK", ("MEMORY_CLOCK_HERTZ", 1604), q.MEMORY_CLOCK, "Memory clock"),
    scaled(102, "VIDEO_CLOCK", "", q.VIDEO_CLOCK, "Clock of the video encoder and decoder"),
    scaled(110, "APP_SM_CLOCK", "", q.APP_SM_CLOCK, "SM clock setting for applications"),
    scaled(111, "APP_MEM_CLOCK", "", q.APP_MEMORY_CLOCK, "Memory clock setting for applications"),
    scaled(
        112,
        "CLOCKS_EVENT_REASONS",
        "",
        q.CLOCK_EVENT_REASONS,
        "Sum of the reasons for reduced clocks: 1 idle, 2 setting, 4 power cap, 8 hardware slowdown, 16 sync "
        "boost, 32 software thermal, 64 hardware thermal, 128 power brake, 256 display",
        aliases=("CLOCK_THROTTLE_REASONS",),
    ),
    scaled(113, "MAX_SM_CLOCK", "", q.MAX_SM_CLOCK, "Maximum SM clock"),
    scaled(114, "MAX_MEM_CLOCK", "", q.MAX_MEMORY_CLOCK, "Maximum memory clock"),
    scaled(115, "MAX_VIDEO_CLOCK", "", q.MAX_VIDEO_CLOCK, "Maximum video clock"),
    scaled(190, "PSTATE", "GPU_PSTATE", q.PERFORMANCE_STATE, "Performance state, 0 highest to 15 lowest"),
)


def _limit(number: int, old: str, new: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, old, f"BOARD_POWER_LIMIT_{new}_WATTS", quantity, text)


POWER: Final = (
    scaled(155, "POWER_USAGE", "BOARD_POWER_WATTS", q.POWER, "Power draw of the board"),
    scaled(
        157,
        "POWER_USAGE_INSTANT",
        "BOARD_POWER_RAW_WATTS",
        q.POWER_INSTANT,
        "Instantaneous power draw of the board",
    ),
    scaled(
        156,
        "TOTAL_ENERGY_CONSUMPTION",
        ("GPU_ENERGY_JOULES_TOTAL", 1611),
        q.ENERGY,
        "Energy used by the board since driver load",
        counter=True,
    ),
    _limit(160, "POWER_MGMT_LIMIT", "REQUESTED", q.POWER_LIMIT_MANAGEMENT, "Requested power limit"),
    _limit(161, "POWER_MGMT_LIMIT_MIN", "MIN", q.POWER_LIMIT_MIN, "Minimum power limit that can be set"),
    _limit(162, "POWER_MGMT_LIMIT_MAX", "MAX", q.POWER_LIMIT_MAX, "Maximum power limit that can be set"),
    _limit(163, "POWER_MGMT_LIMIT_DEF", "DEFAULT", q.POWER_LIMIT_DEFAULT, "Power limit after a reset"),
    _limit(164, "ENFORCED_POWER_LIMIT", "ENFORCED", q.POWER_LIMIT, "Enforced power limit"),
)

TEMPERATURES: Final = (
    scaled(140, "MEMORY_TEMP", "MEMORY_TEMP_CELSIUS", q.MEMORY_TEMPERATURE, "Temperature of the memory"),
    scaled(150, "GPU_TEMP", "GPU_TEMP_CELSIUS", q.TEMPERATURE, "Temperature of the GPU"),
    scaled(
        158,
        "SLOWDOWN_TEMP",
        "GPU_TEMP_SLOWDOWN_CELSIUS",
        q.TEMPERATURE_SLOWDOWN,
        "Temperature at which the GPU slows down",
    ),
    scaled(
        159,
        "SHUTDOWN_TEMP",
        "GPU_TEMP_SHUTDOWN_CELSIUS",
        q.TEMPERATURE_SHUTDOWN,
        "Temperature at which the GPU shuts down",
    ),
    scaled(191, "FAN_SPEED", "", q.FAN_SPEED, "Intended fan speed"),
)

UTILIZATION: Final = (
    scaled(
        203,
        "GPU_UTIL",
        ("GPU_UTIL_RATIO", 1613),
        q.UTILIZATION,
        "Fraction of time for which at least one kernel was running",
    ),
    scaled(
        204,
        "MEM_COPY_UTIL",
        ("MEMORY_UTIL_RATIO", 1614),
        q.MEMORY_UTILIZATION,
        "Fraction of time for which memory was being read or written",
    ),
    scaled(
        206,
        "ENC_UTIL",
        ("ENC_UTIL_RATIO", 1615),
        q.ENCODER_UTILIZATION,
        "Fraction of time for which the video encoder was busy",
    ),
    scaled(
        207,
        "DEC_UTIL",
        ("DEC_UTIL_RATIO", 1616),
        q.DECODER_UTILIZATION,
        "Fraction of time for which the video decoder was busy",
    ),
)


def _memory(number: int, old: str, new: str, new_id: int, quantity: Quantity, text: str) -> Field:
    return scaled(number, f"FB_{old}", (f"FB_{new}", new_id), quantity, text)


MEMORY: Final = (
    _memory(250, "TOTAL", "CAPACITY_BYTES", 1625, q.MEMORY_TOTAL, "Total device memory"),
    _memory(251, "FREE", "FREE_BYTES", 1626, q.MEMORY_FREE, "Free device memory"),
    _memory(252, "USED", "USED_BYTES", 1627, q.MEMORY_USED, "Used device memory"),
    _memory(
        253, "RESERVED", "RESERVED_BYTES", 1628, q.MEMORY_RESERVED, "Device memory reserved by the driver"
    ),
    Field(
        254,
        "DEV_FB_USED_PERCENT",
        "DEV_FB_USED_RATIO",
        "gauge",
        "Used device memory as a fraction of the memory that the driver does not reserve",
        (q.MEMORY_USED, q.MEMORY_TOTAL, q.MEMORY_RESERVED),
        s.RATIO,
        s.RATIO,
        derive=_used_ratio,
    ),
    scaled(90, "BAR1_TOTAL", "", q.BAR1_TOTAL, "Total BAR1 memory"),
    scaled(92, "BAR1_USED", "", q.BAR1_USED, "Used BAR1 memory"),
    scaled(93, "BAR1_FREE", "", q.BAR1_FREE, "Free BAR1 memory"),
)


def _errors(number: int, old: str, new: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, old, new, quantity, text, counter=True)


# From the ledger: the driver sends Xid events but does not store them.
XID: Final = Field(
    230,
    "DEV_XID_ERRORS",
    "DEV_XID_ERROR",
    "gauge",
    "Last Xid error; 0 if there was none since the program started",
    labels=("err_code", "err_msg"),
)
XID_TOTAL: Final = Field(
    0,
    "XID_ERRORS_TOTAL",
    "XID_ERRORS_TOTAL",
    "counter",
    "Xid errors since the program started, by Xid",
    labels=("xid",),
    prefix="DCGM_EXP_",
)
HEALTH: Final = Field(
    0,
    "GPU_HEALTH_STATUS",
    "GPU_HEALTH_STATUS",
    "gauge",
    "Health of the GPU memory (0 pass, 10 warning, 20 failure)",
    (
        q.ECC_UNCORRECTED_VOLATILE,
        q.ROW_REMAP_FAILURE,
        q.ROW_REMAP_PENDING,
        q.RETIRED_PAGES_PENDING,
    ),
    labels=("health_error_code", "health_watch"),
    prefix="DCGM_EXP_",
)

ERRORS: Final = (
    XID,
    scaled(237, "PCIE_LINK_GEN", "", q.PCIE_GENERATION, "Generation of the PCIe link now"),
    scaled(238, "PCIE_LINK_WIDTH", "", q.PCIE_WIDTH, "Lanes of the PCIe link now", scale=s.COUNT),
    _errors(202, "PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", q.PCIE_REPLAYS, "PCIe replays"),
    _errors(310, "ECC_SBE_VOL_TOTAL", "", q.ECC_CORRECTED_VOLATILE, "Corrected ECC errors since driver load"),
    _errors(
        311, "ECC_DBE_VOL_TOTAL", "", q.ECC_UNCORRECTED_VOLATILE, "Uncorrected ECC errors since driver load"
    ),
    _errors(312, "ECC_SBE_AGG_TOTAL", "", q.ECC_CORRECTED, "Corrected ECC errors over the board lifetime"),
    _errors(
        313, "ECC_DBE_AGG_TOTAL", "", q.ECC_UNCORRECTED, "Uncorrected ECC errors over the board lifetime"
    ),
    _errors(
        390,
        "RETIRED_SBE",
        "PAGE_RETIRED_SBE_TOTAL",
        q.RETIRED_PAGES_CORRECTABLE,
        "Memory pages retired because of corrected errors",
    ),
    _errors(
        391,
        "RETIRED_DBE",
        "PAGE_RETIRED_DBE_TOTAL",
        q.RETIRED_PAGES_UNCORRECTABLE,
        "Memory pages retired because of uncorrected errors",
    ),
    scaled(
        392,
        "RETIRED_PENDING",
        "PAGE_RETIRED_PENDING",
        q.RETIRED_PAGES_PENDING,
        "1 if memory pages will be retired at the next reset",
    ),
    _errors(
        393,
        "UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_UNCORRECTABLE_TOTAL",
        q.REMAPPED_ROWS_UNCORRECTABLE,
        "Memory rows remapped because of uncorrected errors",
    ),
    _errors(
        394,
        "CORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_CORRECTABLE_TOTAL",
        q.REMAPPED_ROWS_CORRECTABLE,
        "Memory rows remapped because of corrected errors",
    ),
    scaled(
        395,
        "ROW_REMAP_FAILURE",
        "ROW_REMAP_FAILED",
        q.ROW_REMAP_FAILURE,
        "1 if a memory row could not be remapped",
    ),
    scaled(
        396,
        "ROW_REMAP_PENDING",
        "",
        q.ROW_REMAP_PENDING,
        "1 if memory rows will be remapped at the next reset",
    ),
)


def _violation(number: int, word: str, quantity: Quantity, cause: str) -> Field:
    text = f"Time for which clocks were reduced by {cause}"
    return scaled(number, f"{word}_VIOLATION", "", quantity, text, counter=True)


VIOLATIONS: Final = (
    _violation(240, "POWER", q.POWER_VIOLATION, "the power limit"),
    _violation(241, "THERMAL", q.THERMAL_VIOLATION, "the thermal limit"),
    _violation(242, "SYNC_BOOST", q.SYNC_BOOST_VIOLATION, "sync boost"),
    _violation(243, "BOARD_LIMIT", q.BOARD_LIMIT_VIOLATION, "the board limit"),
    _violation(244, "LOW_UTIL", q.LOW_UTILIZATION_VIOLATION, "low utilization"),
    _violation(245, "RELIABILITY", q.RELIABILITY_VIOLATION, "the reliability limit"),
)


def _link_errors(number: int, word: str, quantity: Quantity, what: str) -> Field:
    return _errors(
        number, f"NVLINK_{word}_ERROR_COUNT_TOTAL", f"NVLINK_{word}_ERROR_TOTAL", quantity, f"NVLink {what}"
    )


NVLINK: Final = (
    _link_errors(409, "CRC_FLIT", q.NVLINK_CRC_FLIT_ERRORS, "flow control CRC errors of all links"),
    _link_errors(419, "CRC_DATA", q.NVLINK_CRC_DATA_ERRORS, "data CRC errors of all links"),
    _link_errors(429, "REPLAY", q.NVLINK_REPLAY_ERRORS, "replays of all links"),
    _link_errors(439, "RECOVERY", q.NVLINK_RECOVERY_ERRORS, "recoveries of all links"),
    scaled(
        449,
        "NVLINK_BANDWIDTH_TOTAL",
        ("NVLINK_THROUGHPUT_BYTES_PER_SECOND", 1648),
        q.NVLINK_RATE,
        "Data rate of all NVLinks in both directions",
        scale=s.NVLINK_MEGABYTES,
        aliases=("NVLINK_THROUGHPUT_TOTAL",),
    ),
)


TEXTS: Final = (
    Field(1, "DRIVER_VERSION", "SYSTEM_DRIVER_VERSION", "text", "Version of the driver"),
    Field(2, "NVML_VERSION", "SYSTEM_NVML_VERSION", "text", "Version of the NVML library"),
    Field(50, "DEV_NAME", "DEV_GPU_NAME", "text", "Name of the GPU or profile of the MIG instance"),
    Field(52, "DEV_NVML_INDEX", "DEV_NVML_INDEX", "text", "Index of the GPU"),
    Field(53, "DEV_SERIAL", "DEV_BOARD_SERIAL", "text", "Serial number of the board"),
    Field(54, "DEV_UUID", "DEV_GPU_UUID", "text", "UUID of the GPU or MIG instance"),
    Field(55, "DEV_MINOR_NUMBER", "DEV_GPU_MINOR_NUMBER", "text", "Minor number, N of /dev/nvidiaN"),
    Field(57, "DEV_PCI_BUSID", "DEV_PCI_BUS_ID", "text", "PCI bus id"),
    Field(76, "DEV_MIG_GI_INFO", "DEV_MIG_GI_INFO", "text", "Existing GPU instances, as ID:PROFILE"),
    Field(77, "DEV_MIG_CI_INFO", "DEV_MIG_CI_INFO", "text", "Existing compute instances, as GI/CI:PROFILE"),
    Field(85, "DEV_VBIOS_VERSION", "DEV_VBIOS_VERSION", "text", "Version of the video BIOS"),
)

FIELDS: Final = (
    *TEXTS,
    *MODES,
    *CLOCKS,
    *POWER,
    *TEMPERATURES,
    *UTILIZATION,
    *MEMORY,
    *ERRORS,
    *VIOLATIONS,
    *NVLINK,
    *PROFILING,
    XID_TOTAL,
    HEALTH,
)
