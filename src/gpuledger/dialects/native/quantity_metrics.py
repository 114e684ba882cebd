"""Native families of what devices report: each quantity as a sample of one family."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.model import quantities as q
from gpuledger.model.family import Family, FamilySpec, declare_family
from gpuledger.model.quantities import Level, Quantity
from gpuledger.model.snapshot import Snapshot, nvlinks


@dataclass(frozen=True, slots=True)
class QuantityMetric:
    """A quantity exported as a sample of a family; `label` distinguishes the quantities of one family.

    `per_unit` of the quantity's units are one unit of the family.
    """

    spec: FamilySpec
    quantity: Quantity
    label: str = ""
    per_unit: int = 1


_NANOSECONDS = 1_000_000_000


def _gauge(name: str, quantity: Quantity, text: str, source: str) -> QuantityMetric:
    device_labels = DEVICE_LABELS if quantity.level is Level.INSTANCE else ("uuid",)
    if quantity.shared:
        text += " Under MIG, the lowest compute instance exports the memory of its GPU instance."
    return QuantityMetric(declare_family(f"gpuledger_device_{name}", text, device_labels, source), quantity)


_CLOCK = declare_family(
    "gpuledger_device_clock_hertz", "Current clock by domain.", ("uuid", "clock"), "nvmlDeviceGetClockInfo"
)
_PCIE = declare_family(
    "gpuledger_device_pcie_bytes_total",
    "Bytes that the GPU sent and received over PCIe since driver load; the hardware counter can wrap.",
    ("uuid", "direction"),
    "NVML fields 197 and 198",
)
_ECC = declare_family(
    "gpuledger_device_ecc_errors_total",
    "ECC errors over the lifetime of the board.",
    ("uuid", "type"),
    "NVML fields 5 and 6",
)
_VOLATILE_ECC = declare_family(
    "gpuledger_device_ecc_volatile_errors_total",
    "ECC errors since the driver was loaded.",
    ("uuid", "type"),
    "NVML fields 3 and 4",
)
_REMAPPED = declare_family(
    "gpuledger_device_remapped_rows_total",
    "Memory rows that spare rows replace, by the type of the errors (Ampere and newer).",
    ("uuid", "type"),
    "NVML fields 142 and 143",
)
_THROTTLED = declare_family(
    "gpuledger_device_throttled_seconds_total",
    "Time for which the clocks were reduced since driver load, by reason: power, thermal, sync_boost, "
    "board_limit, low_utilization (the GPU has little to do) or reliability; software_thermal, "
    "hardware_thermal and power_brake overlap with these.",
    ("uuid", "reason"),
    "NVML fields 74, 75, 76, 77, 78, 79, 269, 270 and 271",
)
_REPLAYS = declare_family(
    "gpuledger_device_pcie_replays_total",
    "PCIe replays of the GPU.",
    ("uuid",),
    "NVML field 94, else nvmlDeviceGetPcieReplayCounter",
)

_NVLINK = declare_family(
    "gpuledger_device_nvlink_bytes_total",
    "Bytes of payload that the GPU sent and received over all its NVLinks since driver load.",
    ("uuid", "direction"),
    "NVML fields 138 and 139",
)
_NVLINK_ERRORS = declare_family(
    "gpuledger_device_nvlink_errors_total",
    "Errors of all NVLinks of the GPU by type: crc_flit, crc_data, replay or recovery.",
    ("uuid", "type"),
    "NVML fields 38, 45, 52 and 59",
)

QUANTITY_METRICS = (
    _gauge(
        "utilization_ratio",
        q.UTILIZATION,
        "Fraction of time for which at least one kernel was running; absent under MIG.",
        "nvmlDeviceGetUtilizationRates gpu",
    ),
    _gauge(
        "memory_utilization_ratio",
        q.MEMORY_UTILIZATION,
        "Fraction of time for which device memory was being read or written; not the amount of memory used.",
        "nvmlDeviceGetUtilizationRates memory",
    ),
    _gauge(
        "encoder_utilization_ratio",
        q.ENCODER_UTILIZATION,
        "Fraction of time for which the video encoder was busy.",
        "nvmlDeviceGetEncoderUtilization",
    ),
    _gauge(
        "decoder_utilization_ratio",
        q.DECODER_UTILIZATION,
        "Fraction of time for which the video decoder was busy.",
        "nvmlDeviceGetDecoderUtilization",
    ),
    _gauge(
        "engine_activity_ratio",
        q.ENGINE_ACTIVITY,
        "Fraction of time for which the graphics or compute engine was busy; only on Hopper and newer.",
        "nvmlGpmMetricsGet GRAPHICS_UTIL",
    ),
    _gauge(
        "memory_size_bytes",
        q.MEMORY_TOTAL,
        "Total device memory; absent if the GPU shares the host's memory.",
        "nvmlDeviceGetMemoryInfo_v2 total",
    ),
    _gauge(
        "memory_used_bytes",
        q.MEMORY_USED,
        "Device memory used, without memory reserved by the driver.",
        "nvmlDeviceGetMemoryInfo_v2 used",
    ),
    _gauge("memory_free_bytes", q.MEMORY_FREE, "Free device memory.", "nvmlDeviceGetMemoryInfo_v2 free"),
    _gauge(
        "memory_reserved_bytes",
        q.MEMORY_RESERVED,
        "Device memory reserved by the driver and the firmware.",
        "nvmlDeviceGetMemoryInfo_v2 reserved",
    ),
    _gauge(
        "power_watts",
        q.POWER,
        "Power draw of the board; a one-second mean on Ampere (except GA100) and newer.",
        "nvmlDeviceGetPowerUsage",
    ),
    _gauge("power_limit_watts", q.POWER_LIMIT, "Enforced power limit.", "nvmlDeviceGetEnforcedPowerLimit"),
    _gauge(
        "power_limit_max_watts",
        q.POWER_LIMIT_MAX,
        "Highest power limit that can be set.",
        "NVML field 188, else nvmlDeviceGetPowerManagementLimitConstraints",
    ),
    _gauge("temperature_celsius", q.TEMPERATURE, "Temperature of the GPU.", "nvmlDeviceGetTemperature"),
    _gauge(
        "memory_temperature_celsius",
        q.MEMORY_TEMPERATURE,
        "Temperature of the device memory.",
        "NVML field 82",
    ),
    _gauge(
        "fan_speed_ratio",
        q.FAN_SPEED,
        "Intended fan speed as a fraction of the maximum; can exceed 1.",
        "nvmlDeviceGetFanSpeed",
    ),
    QuantityMetric(_CLOCK, q.GRAPHICS_CLOCK, "graphics"),
    QuantityMetric(_CLOCK, q.SM_CLOCK, "sm"),
    QuantityMetric(_CLOCK, q.MEMORY_CLOCK, "memory"),
    QuantityMetric(_CLOCK, q.VIDEO_CLOCK, "video"),
    _gauge(
        "performance_state",
        q.PERFORMANCE_STATE,
        "Performance state, 0 (highest) to 15 (lowest).",
        "nvmlDeviceGetPerformanceState",
    ),
    QuantityMetric(_PCIE, q.PCIE_TX, "transmit"),
    QuantityMetric(_PCIE, q.PCIE_RX, "receive"),
    QuantityMetric(_REPLAYS, q.PCIE_REPLAYS),
    _gauge(
        "pcie_link_generation",
        q.PCIE_GENERATION,
        "Current generation of the PCIe link; an idle GPU lowers it to save power.",
        "nvmlDeviceGetCurrPcieLinkGeneration",
    ),
    _gauge(
        "pcie_link_generation_max",
        q.PCIE_GENERATION_MAX,
        "Highest PCIe generation that the GPU and its slot can use together.",
        "nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    _gauge(
        "pcie_link_width",
        q.PCIE_WIDTH,
        "Current number of PCIe lanes.",
        "nvmlDeviceGetCurrPcieLinkWidth",
    ),
    _gauge(
        "pcie_link_width_max",
        q.PCIE_WIDTH_MAX,
        "Highest number of PCIe lanes that the GPU and its slot can use together.",
        "nvmlDeviceGetMaxPcieLinkWidth",
    ),
    _gauge(
        "nvlink_speed_bytes_per_second",
        q.NVLINK_SPEED,
        "Data rate of which one NVLink is capable, in each direction.",
        "NVML field 90",
    ),
    QuantityMetric(_NVLINK, q.NVLINK_TX, "transmit"),
    QuantityMetric(_NVLINK, q.NVLINK_RX, "receive"),
    QuantityMetric(_NVLINK_ERRORS, q.NVLINK_CRC_FLIT_ERRORS, "crc_flit"),
    QuantityMetric(_NVLINK_ERRORS, q.NVLINK_CRC_DATA_ERRORS, "crc_data"),
    QuantityMetric(_NVLINK_ERRORS, q.NVLINK_REPLAY_ERRORS, "replay"),
    QuantityMetric(_NVLINK_ERRORS, q.NVLINK_RECOVERY_ERRORS, "recovery"),
    QuantityMetric(_ECC, q.ECC_CORRECTED, "corrected"),
    QuantityMetric(_ECC, q.ECC_UNCORRECTED, "uncorrected"),
    QuantityMetric(_VOLATILE_ECC, q.ECC_CORRECTED_VOLATILE, "corrected"),
    QuantityMetric(_VOLATILE_ECC, q.ECC_UNCORRECTED_VOLATILE, "uncorrected"),
    QuantityMetric(_REMAPPED, q.REMAPPED_ROWS_CORRECTABLE, "correctable"),
    QuantityMetric(_REMAPPED, q.REMAPPED_ROWS_UNCORRECTABLE, "uncorrectable"),
    _gauge(
        "row_remap_pending",
        q.ROW_REMAP_PENDING,
        "1 if a memory row will be remapped at the next reset, else 0.",
        "NVML field 144",
    ),
    _gauge(
        "row_remap_failed",
        q.ROW_REMAP_FAILURE,
        "1 if a memory row could not be remapped, else 0: replace the card.",
        "NVML field 145",
    ),
    QuantityMetric(_THROTTLED, q.POWER_VIOLATION, "power", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.THERMAL_VIOLATION, "thermal", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.SYNC_BOOST_VIOLATION, "sync_boost", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.BOARD_LIMIT_VIOLATION, "board_limit", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.LOW_UTILIZATION_VIOLATION, "low_utilization", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.RELIABILITY_VIOLATION, "reliability", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.SOFTWARE_THERMAL_TIME, "software_thermal", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.HARDWARE_THERMAL_TIME, "hardware_thermal", _NANOSECONDS),
    QuantityMetric(_THROTTLED, q.POWER_BRAKE_TIME, "power_brake", _NANOSECONDS),
    _gauge(
        "recovery_action",
        q.RECOVERY_ACTION,
        "What the GPU needs to recover: 0 nothing, 1 GPU reset, 2 node reboot, 3 P2P drain, 4 drain "
        "and reset, 5 recovery of the IMEX domain, 6 bus reset, 7 system reboot.",
        "NVML field 230; 226 and 227 where the driver lacks it",
    ),
)

_NVLINKS = declare_family(
    "gpuledger_device_nvlinks",
    "Number of NVLinks of the GPU by state, up or down; links of unknown state are in neither. /health names "
    "the links that are down.",
    ("uuid", "state"),
    "NVML field 165, else nvmlDeviceGetNvLinkState",
)
_LINK_STATES = {"up": q.NVLINKS_UP, "down": q.NVLINKS_DOWN}

REQUIRED_QUANTITIES = frozenset({metric.quantity for metric in QUANTITY_METRICS} | {*_LINK_STATES.values()})
SPECS = (*dict.fromkeys(metric.spec for metric in QUANTITY_METRICS), _NVLINKS)


def quantity_families(snapshot: Snapshot) -> Iterable[Family]:
    """Returns the families of the Readings of a Snapshot."""
    families = {metric.spec: Family(metric.spec) for metric in QUANTITY_METRICS}
    columns = [
        (metric, families[metric.spec], (metric.label,) if metric.label else ())
        for metric in QUANTITY_METRICS
    ]
    for reading in snapshot.readings:
        where = device_labels(reading.device)
        for metric, family, label in columns:
            value = snapshot.get(reading, metric.quantity)
            if value is not None:
                on = where if metric.quantity.level is Level.INSTANCE else where[:1]
                family.add(value if metric.per_unit == 1 else value / metric.per_unit, *on, *label)
    return (*families.values(), _links(snapshot))


def _links(snapshot: Snapshot) -> Family:
    family = Family(_NVLINKS)
    for reading in snapshot.readings:
        for state, mask in _LINK_STATES.items():
            links = nvlinks(reading, mask)
            family.add(None if links is None else len(links), reading.device.uuid, state)
    return family
