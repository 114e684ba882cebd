"""Native families of devices: attributes, availability, readings and Xid errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Instance
from gpuledger.model.family import Family, FamilySpec, declare_family
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import PROFILING, Level, Quantity
from gpuledger.model.snapshot import Snapshot

# Named `mig_instance` and `slurm_job`, because with honor_labels the names `instance` and `job` would
# overwrite (or, if empty, delete) the labels that identify the scrape target.
DEVICE_LABELS = ("uuid", "mig_instance")

INFO = declare_family(
    "gpuledger_device_info",
    "1 for each GPU or MIG instance, with its attributes; join other families on uuid and mig_instance.",
    (
        *DEVICE_LABELS,
        "gpu",
        "name",
        "pci_bus_id",
        "minor",
        "serial",
        "vbios",
        "architecture",
        "compute_capability",
        "mig_uuid",
        "profile",
        "unified_memory",
    ),
    "nvmlDeviceGetUUID, Name, PciInfo_v3, MinorNumber, Serial, VbiosVersion, Architecture",
)
UP = declare_family(
    "gpuledger_device_up",
    "1 if the device responded in this tick, 0 if it is lost or failing.",
    DEVICE_LABELS,
    "every NVML call of the tick",
)
MIG_ENABLED = declare_family(
    "gpuledger_device_mig_enabled",
    "1 if MIG mode is enabled, else 0.",
    ("uuid",),
    "nvmlDeviceGetMigMode current",
)
SM_RATIO = declare_family(
    "gpuledger_device_sm_ratio",
    "Fraction of the GPU's multiprocessors that the device has; 1 for a whole GPU.",
    DEVICE_LABELS,
    "nvmlDeviceGetAttributes_v2 multiprocessorCount, else the slices of the MIG profile",
)
FIELD_SUPPORTED = declare_family(
    "gpuledger_field_supported",
    "1 if the device supports this quantity, 0 if not; reason is driver, or profiling if NVML has it only on "
    "Hopper and newer (see --dcgm-exporter-url).",
    (*DEVICE_LABELS, "field", "reason"),
    "NVML_ERROR_NOT_SUPPORTED",
)
XIDS = declare_family(
    "gpuledger_device_xid_errors_total",
    "Xid errors since the program started, by Xid; 0 for the first Xid of a number until energy.zero_hold "
    "has passed.",
    ("uuid", "xid"),
    "nvmlEventSetWait_v2 nvmlEventTypeXidCriticalError",
)
XID_TIME = declare_family(
    "gpuledger_device_xid_last_timestamp_seconds",
    "Unix time of the last Xid error, by Xid.",
    ("uuid", "xid"),
    "nvmlEventSetWait_v2",
)


@dataclass(frozen=True, slots=True)
class QuantityMetric:
    """A quantity exported as a sample of a family; `label` distinguishes the quantities of one family."""

    spec: FamilySpec
    quantity: Quantity
    label: str = ""


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
_REPLAYS = declare_family(
    "gpuledger_device_pcie_replays_total",
    "PCIe replays of the GPU.",
    ("uuid",),
    "nvmlDeviceGetPcieReplayCounter",
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
        "nvmlDeviceGetPowerManagementLimitConstraints",
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
    QuantityMetric(_ECC, q.ECC_CORRECTED, "corrected"),
    QuantityMetric(_ECC, q.ECC_UNCORRECTED, "uncorrected"),
)

REQUIRED_QUANTITIES = frozenset(metric.quantity for metric in QUANTITY_METRICS)
SPECS = (
    INFO,
    UP,
    MIG_ENABLED,
    SM_RATIO,
    *dict.fromkeys(metric.spec for metric in QUANTITY_METRICS),
    FIELD_SUPPORTED,
    XIDS,
    XID_TIME,
)


# The `reason` label of unsupported quantities, where it is not `driver`.
_REASONS = {quantity.key: "profiling" for quantity in PROFILING}


def device_labels(device: Device) -> tuple[str, str]:
    """Returns the UUID of the Gpu and the `mig_instance` (`GI_CI`, empty for a whole Gpu)."""
    return (device.gpu.uuid, device.instance)


def device_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of devices; without a Snapshot only Xid counters have samples."""
    if state.snapshot is not None:
        yield _infos(state.snapshot)
        yield from _states(state.snapshot)
        yield Family(SM_RATIO, dict(state.ledger.sm_ratios.items()))
        yield from _readings(state.snapshot)
    yield from _xids(state)


def _infos(snapshot: Snapshot) -> Family:
    family = Family(INFO)
    for reading in snapshot.readings:
        device, gpu = reading.device, reading.device.gpu
        part = device if isinstance(device, Instance) else None
        family.add(
            1,
            *device_labels(device),
            str(gpu.index),
            gpu.name,
            gpu.pci_bus_id,
            "" if gpu.minor is None else str(gpu.minor),
            gpu.serial or "",
            gpu.vbios or "",
            gpu.architecture or "",
            gpu.compute_capability or "",
            part.uuid if part else "",
            part.profile if part else "",
            "true" if gpu.unified_memory else "false",
        )
    return family


def _states(snapshot: Snapshot) -> Iterable[Family]:
    up, mig, supported = Family(UP), Family(MIG_ENABLED), Family(FIELD_SUPPORTED)
    for reading in snapshot.readings:
        where = device_labels(reading.device)
        up.add(int(reading.up), *where)
        if reading.up and not isinstance(reading.device, Instance):
            mig.add(int(reading.mig_enabled), reading.device.uuid)
        for key, is_supported in reading.supported.items():
            reason = "" if is_supported else _REASONS.get(key, "driver")
            supported.add(int(is_supported), *where, key, reason)
    return up, mig, supported


def _readings(snapshot: Snapshot) -> Iterable[Family]:
    families = {metric.spec: Family(metric.spec) for metric in QUANTITY_METRICS}
    columns = [
        (metric.quantity, families[metric.spec], (metric.label,) if metric.label else ())
        for metric in QUANTITY_METRICS
    ]
    for reading in snapshot.readings:
        where = device_labels(reading.device)
        for quantity, family, label in columns:
            value = snapshot.get(reading, quantity)
            if value is not None:
                family.add(value, *(where if quantity.level is Level.INSTANCE else where[:1]), *label)
    return families.values()


def _xids(state: NodeState) -> Iterable[Family]:
    count, time = Family(XIDS), Family(XID_TIME)
    for (uuid, xid), seen in state.ledger.xids.items():
        count.add(0 if (uuid, xid) in state.ledger.new_xids else seen, uuid, str(xid))
        time.add(state.ledger.xid_times[uuid, xid], uuid, str(xid))
    return count, time
