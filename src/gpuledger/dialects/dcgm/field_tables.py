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


_MHZ: Final = (s.MEGAHERTZ, s.HERTZ)
_UTIL: Final = (s.PERCENT, s.RATIO)
_MIB: Final = (s.MEBIBYTES, s.BYTES)

MODES: Final = (
    scaled(
        65,
        "DEV_COMPUTE_MODE",
        "DEV_GPU_COMPUTE_MODE",
        q.COMPUTE_MODE,
        s.COMPUTE_MODE,
        "Compute mode: 0 default, 1 prohibited, 2 exclusive process",
    ),
    scaled(
        66,
        "DEV_PERSISTENCE_MODE",
        "DEV_GPU_PERSISTENCE_MODE",
        q.PERSISTENCE_MODE,
        s.COUNT,
        "1 if the driver remains loaded without clients",
    ),
    scaled(67, "DEV_MIG_MODE", "", q.MIG_MODE, s.COUNT, "1 if MIG mode is enabled"),
    scaled(
        69,
        "DEV_MIG_MAX_SLICES",
        "",
        q.MIG_MAX_SLICES,
        s.COUNT,
        "Maximum number of MIG instances; 0 if MIG is disabled",
    ),
    scaled(
        500,
        "DEV_VIRTUAL_MODE",
        "DEV_GPU_VIRTUAL_MODE",
        q.VIRTUALIZATION_MODE,
        s.COUNT,
        "Virtualization: 0 none, 1 passthrough, 2 vGPU guest, 3 vGPU host, 4 vSGA host",
    ),
)

CLOCKS: Final = (
    scaled(100, "DEV_SM_CLOCK", ("DEV_SM_CLOCK_HERTZ", 1603), q.SM_CLOCK, _MHZ, "SM clock"),
    scaled(101, "DEV_MEM_CLOCK", ("DEV_MEMORY_CLOCK_HERTZ", 1604), q.MEMORY_CLOCK, _MHZ, "Memory clock"),
    scaled(102, "DEV_VIDEO_CLOCK", "", q.VIDEO_CLOCK, s.MEGAHERTZ, "Clock of the video encoder and decoder"),
    scaled(110, "DEV_APP_SM_CLOCK", "", q.APP_SM_CLOCK, s.MEGAHERTZ, "SM clock setting for applications"),
    scaled(
        111,
        "DEV_APP_MEM_CLOCK",
        "",
        q.APP_MEMORY_CLOCK,
        s.MEGAHERTZ,
        "Memory clock setting for applications",
    ),
    scaled(
        112,
        "DEV_CLOCKS_EVENT_REASONS",
        "",
        q.CLOCK_EVENT_REASONS,
        s.COUNT,
        "Sum of the reasons for reduced clocks: 1 idle, 2 setting, 4 power cap, 8 hardware slowdown, 16 sync "
        "boost, 32 software thermal, 64 hardware thermal, 128 power brake, 256 display",
        aliases=("DEV_CLOCK_THROTTLE_REASONS",),
    ),
    scaled(113, "DEV_MAX_SM_CLOCK", "", q.MAX_SM_CLOCK, s.MEGAHERTZ, "Maximum SM clock"),
    scaled(114, "DEV_MAX_MEM_CLOCK", "", q.MAX_MEMORY_CLOCK, s.MEGAHERTZ, "Maximum memory clock"),
    scaled(115, "DEV_MAX_VIDEO_CLOCK", "", q.MAX_VIDEO_CLOCK, s.MEGAHERTZ, "Maximum video clock"),
    scaled(
        190,
        "DEV_PSTATE",
        "DEV_GPU_PSTATE",
        q.PERFORMANCE_STATE,
        s.COUNT,
        "Performance state, 0 highest to 15 lowest",
    ),
)


def _limit(number: int, old: str, new: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, f"DEV_{old}", f"DEV_BOARD_POWER_LIMIT_{new}_WATTS", quantity, s.WATTS, text)


POWER: Final = (
    scaled(155, "DEV_POWER_USAGE", "DEV_BOARD_POWER_WATTS", q.POWER, s.WATTS, "Power draw of the board"),
    scaled(
        157,
        "DEV_POWER_USAGE_INSTANT",
        "DEV_BOARD_POWER_RAW_WATTS",
        q.POWER_INSTANT,
        s.WATTS,
        "Instantaneous power draw of the board",
    ),
    scaled(
        156,
        "DEV_TOTAL_ENERGY_CONSUMPTION",
        ("DEV_GPU_ENERGY_JOULES_TOTAL", 1611),
        q.ENERGY,
        (s.MILLIJOULES, s.JOULES),
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
    scaled(
        140,
        "DEV_MEMORY_TEMP",
        "DEV_MEMORY_TEMP_CELSIUS",
        q.MEMORY_TEMPERATURE,
        s.CELSIUS,
        "Temperature of the memory",
    ),
    scaled(150, "DEV_GPU_TEMP", "DEV_GPU_TEMP_CELSIUS", q.TEMPERATURE, s.CELSIUS, "Temperature of the GPU"),
    scaled(
        158,
        "DEV_SLOWDOWN_TEMP",
        "DEV_GPU_TEMP_SLOWDOWN_CELSIUS",
        q.TEMPERATURE_SLOWDOWN,
        s.CELSIUS,
        "Temperature at which the GPU slows down",
    ),
    scaled(
        159,
        "DEV_SHUTDOWN_TEMP",
        "DEV_GPU_TEMP_SHUTDOWN_CELSIUS",
        q.TEMPERATURE_SHUTDOWN,
        s.CELSIUS,
        "Temperature at which the GPU shuts down",
    ),
    scaled(191, "DEV_FAN_SPEED", "", q.FAN_SPEED, s.PERCENT, "Intended fan speed"),
)

UTILIZATION: Final = (
    scaled(
        203,
        "DEV_GPU_UTIL",
        ("DEV_GPU_UTIL_RATIO", 1613),
        q.UTILIZATION,
        _UTIL,
        "Fraction of time for which at least one kernel was running",
    ),
    scaled(
        204,
        "DEV_MEM_COPY_UTIL",
        ("DEV_MEMORY_UTIL_RATIO", 1614),
        q.MEMORY_UTILIZATION,
        _UTIL,
        "Fraction of time for which memory was being read or written",
    ),
    scaled(
        206,
        "DEV_ENC_UTIL",
        ("DEV_ENC_UTIL_RATIO", 1615),
        q.ENCODER_UTILIZATION,
        _UTIL,
        "Fraction of time for which the video encoder was busy",
    ),
    scaled(
        207,
        "DEV_DEC_UTIL",
        ("DEV_DEC_UTIL_RATIO", 1616),
        q.DECODER_UTILIZATION,
        _UTIL,
        "Fraction of time for which the video decoder was busy",
    ),
)


def _memory(number: int, old: str, new: str, new_id: int, quantity: Quantity, text: str) -> Field:
    return scaled(number, f"DEV_FB_{old}", (f"DEV_FB_{new}", new_id), quantity, _MIB, text, shared=True)


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
        shared=True,
    ),
    scaled(90, "DEV_BAR1_TOTAL", "", q.BAR1_TOTAL, s.MEBIBYTES, "Total BAR1 memory"),
    scaled(92, "DEV_BAR1_USED", "", q.BAR1_USED, s.MEBIBYTES, "Used BAR1 memory"),
    scaled(93, "DEV_BAR1_FREE", "", q.BAR1_FREE, s.MEBIBYTES, "Free BAR1 memory"),
)


def _errors(number: int, old: str, new: str, quantity: Quantity, text: str) -> Field:
    return scaled(number, f"DEV_{old}", new and f"DEV_{new}", quantity, s.COUNT, text, counter=True)


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
        "DEV_RETIRED_PENDING",
        "DEV_PAGE_RETIRED_PENDING",
        q.RETIRED_PAGES_PENDING,
        s.COUNT,
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
        "DEV_ROW_REMAP_FAILURE",
        "DEV_ROW_REMAP_FAILED",
        q.ROW_REMAP_FAILURE,
        s.COUNT,
        "1 if a memory row could not be remapped",
    ),
    scaled(
        396,
        "DEV_ROW_REMAP_PENDING",
        "",
        q.ROW_REMAP_PENDING,
        s.COUNT,
        "1 if memory rows will be remapped at the next reset",
    ),
)


def _violation(number: int, word: str, quantity: Quantity, cause: str) -> Field:
    text = f"Time for which clocks were reduced by {cause}"
    return scaled(number, f"DEV_{word}_VIOLATION", "", quantity, s.NANOSECONDS, text, counter=True)


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
        "DEV_NVLINK_BANDWIDTH_TOTAL",
        ("DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", 1648),
        q.NVLINK_RATE,
        (s.NVLINK_MEGABYTES, s.BYTES_PER_SECOND),
        "Data rate of all NVLinks in both directions",
        aliases=("DEV_NVLINK_THROUGHPUT_TOTAL",),
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
