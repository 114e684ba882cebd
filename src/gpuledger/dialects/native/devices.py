"""Native families of Devices: what each one is, whether it answers, and what it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.model import quantities as q
from gpuledger.model.devices import Device, Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import PROFILING, Level, Quantity
from gpuledger.model.snapshot import Snapshot

# `mig_instance` and `slurm_job`, not `instance` and `job`: under honor_labels those would overwrite, and when
# empty erase, the labels by which Prometheus knows the scrape target.
DEVICE = ("uuid", "mig_instance")

INFO = FamilySpec(
    "gpuledger_device_info",
    "info",
    "A GPU or MIG instance and its attributes; join the other families on uuid and mig_instance.",
    (
        *DEVICE,
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
    source="nvmlDeviceGetUUID, Name, PciInfo_v3, MinorNumber, Serial, VbiosVersion, Architecture",
)
UP = FamilySpec(
    "gpuledger_device_up",
    "gauge",
    "1 when the device answered in this tick, 0 when it is lost or fails.",
    DEVICE,
    source="every NVML call of the tick",
)
MIG_ENABLED = FamilySpec(
    "gpuledger_device_mig_enabled",
    "gauge",
    "1 when MIG mode is on.",
    ("uuid",),
    source="nvmlDeviceGetMigMode current",
)
SM_RATIO = FamilySpec(
    "gpuledger_device_sm_ratio",
    "gauge",
    "The device's part of its GPU's multiprocessors: 1 for a whole GPU.",
    DEVICE,
    unit="ratio",
    source="nvmlDeviceGetAttributes_v2 multiprocessorCount, else the slices of the MIG profile",
)
FIELD_SUPPORTED = FamilySpec(
    "gpuledger_field_supported",
    "gauge",
    "1 when the device has this quantity, 0 when its driver says that it has not: reason driver, or "
    "profiling where NVML has it on Hopper and newer alone (see --dcgm-exporter-url).",
    (*DEVICE, "field", "reason"),
    source="NVML_ERROR_NOT_SUPPORTED",
)
XIDS = FamilySpec(
    "gpuledger_device_xid_errors_total",
    "counter",
    "Xid errors seen since the program started, by Xid.",
    ("uuid", "xid"),
    source="nvmlEventSetWait_v2 nvmlEventTypeXidCriticalError",
)
XID_TIME = FamilySpec(
    "gpuledger_device_xid_last_timestamp_seconds",
    "gauge",
    "Unix time of the last Xid error, by Xid.",
    ("uuid", "xid"),
    unit="seconds",
    source="nvmlEventSetWait_v2",
)


@dataclass(frozen=True, slots=True)
class Told:
    """A quantity told as a sample of a family, with the label that tells it from its siblings."""

    spec: FamilySpec
    quantity: Quantity
    label: str = ""


def _gauge(name: str, quantity: Quantity, unit: str, text: str, source: str) -> Told:
    labels = DEVICE if quantity.level is Level.INSTANCE else ("uuid",)
    return Told(FamilySpec(f"gpuledger_device_{name}", "gauge", text, labels, unit, source), quantity)


_CLOCK = FamilySpec(
    "gpuledger_device_clock_hertz",
    "gauge",
    "Current clock by domain.",
    ("uuid", "clock"),
    unit="hertz",
    source="nvmlDeviceGetClockInfo",
)
_PCIE = FamilySpec(
    "gpuledger_device_pcie_bytes_total",
    "counter",
    "Bytes over PCIe since driver load, seen from the GPU; the hardware counter can wrap.",
    ("uuid", "direction"),
    unit="bytes",
    source="NVML fields 197 and 198",
)
_ECC = FamilySpec(
    "gpuledger_device_ecc_errors_total",
    "counter",
    "ECC errors over the life of the board.",
    ("uuid", "type"),
    source="NVML fields 5 and 6",
)
_REPLAYS = FamilySpec(
    "gpuledger_device_pcie_replays_total",
    "counter",
    "PCIe replays.",
    ("uuid",),
    source="nvmlDeviceGetPcieReplayCounter",
)

TOLD = (
    _gauge(
        "utilization_ratio",
        q.UTILIZATION,
        "ratio",
        "Share of time in which at least one kernel ran; not told under MIG.",
        "nvmlDeviceGetUtilizationRates gpu",
    ),
    _gauge(
        "memory_utilization_ratio",
        q.MEMORY_UTILIZATION,
        "ratio",
        "Share of time in which device memory was being read or written; not a fill level.",
        "nvmlDeviceGetUtilizationRates memory",
    ),
    _gauge(
        "encoder_utilization_ratio",
        q.ENCODER_UTILIZATION,
        "ratio",
        "Share of time in which the video encoder was busy.",
        "nvmlDeviceGetEncoderUtilization",
    ),
    _gauge(
        "decoder_utilization_ratio",
        q.DECODER_UTILIZATION,
        "ratio",
        "Share of time in which the video decoder was busy.",
        "nvmlDeviceGetDecoderUtilization",
    ),
    _gauge(
        "engine_activity_ratio",
        q.ENGINE_ACTIVITY,
        "ratio",
        "Share of time in which the graphics or compute engine was busy; Hopper and newer, under MIG too.",
        "nvmlGpmMetricsGet GRAPHICS_UTIL",
    ),
    _gauge(
        "memory_size_bytes",
        q.MEMORY_TOTAL,
        "bytes",
        "Device memory in all; absent where the GPU shares the host's.",
        "nvmlDeviceGetMemoryInfo_v2 total",
    ),
    _gauge(
        "memory_used_bytes",
        q.MEMORY_USED,
        "bytes",
        "Device memory in use, without what the driver reserves.",
        "nvmlDeviceGetMemoryInfo_v2 used",
    ),
    _gauge(
        "memory_free_bytes",
        q.MEMORY_FREE,
        "bytes",
        "Device memory that is free.",
        "nvmlDeviceGetMemoryInfo_v2 free",
    ),
    _gauge(
        "memory_reserved_bytes",
        q.MEMORY_RESERVED,
        "bytes",
        "Device memory that driver and firmware keep for themselves.",
        "nvmlDeviceGetMemoryInfo_v2 reserved",
    ),
    _gauge(
        "power_watts",
        q.POWER,
        "watts",
        "Power of the whole board; a one-second mean on Ampere (except GA100) and newer.",
        "nvmlDeviceGetPowerUsage",
    ),
    _gauge(
        "power_limit_watts",
        q.POWER_LIMIT,
        "watts",
        "Power limit in force.",
        "nvmlDeviceGetEnforcedPowerLimit",
    ),
    _gauge(
        "power_limit_max_watts",
        q.POWER_LIMIT_MAX,
        "watts",
        "Highest power limit that can be set.",
        "nvmlDeviceGetPowerManagementLimitConstraints",
    ),
    _gauge(
        "temperature_celsius",
        q.TEMPERATURE,
        "celsius",
        "Temperature of the GPU.",
        "nvmlDeviceGetTemperature",
    ),
    _gauge(
        "memory_temperature_celsius",
        q.MEMORY_TEMPERATURE,
        "celsius",
        "Temperature of the device memory.",
        "NVML field 82",
    ),
    _gauge(
        "fan_speed_ratio",
        q.FAN_SPEED,
        "ratio",
        "Intended fan speed as a share of the highest; can be above 1.",
        "nvmlDeviceGetFanSpeed",
    ),
    Told(_CLOCK, q.GRAPHICS_CLOCK, "graphics"),
    Told(_CLOCK, q.SM_CLOCK, "sm"),
    Told(_CLOCK, q.MEMORY_CLOCK, "memory"),
    Told(_CLOCK, q.VIDEO_CLOCK, "video"),
    _gauge(
        "performance_state",
        q.PERFORMANCE_STATE,
        "",
        "Performance state, 0 (highest) to 15 (lowest).",
        "nvmlDeviceGetPerformanceState",
    ),
    Told(_PCIE, q.PCIE_TX, "transmit"),
    Told(_PCIE, q.PCIE_RX, "receive"),
    Told(_REPLAYS, q.PCIE_REPLAYS),
    Told(_ECC, q.ECC_CORRECTED, "corrected"),
    Told(_ECC, q.ECC_UNCORRECTED, "uncorrected"),
)

WANTS = frozenset(told.quantity for told in TOLD)
SPECS = (
    INFO,
    UP,
    MIG_ENABLED,
    SM_RATIO,
    *dict.fromkeys(told.spec for told in TOLD),
    FIELD_SUPPORTED,
    XIDS,
    XID_TIME,
)


_WITHOUT = {quantity.key: "profiling" for quantity in PROFILING}


def labels(device: Device) -> tuple[str, str]:
    """`uuid` of the Gpu and, for an Instance, `GI_CI`; else an empty `mig_instance`."""
    return (device.gpu.uuid, device.instance)


def device_families(page: NodeState) -> Iterator[Family]:
    """Families of one Page; only counters remain while there is no Snapshot."""
    if page.snapshot is not None:
        yield _infos(page.snapshot)
        yield from _states(page.snapshot)
        yield _ratios(page)
        yield from _readings(page.snapshot)
    yield from _xids(page)


def _infos(snapshot: Snapshot) -> Family:
    family = Family(INFO)
    for reading in snapshot.readings:
        device, gpu = reading.device, reading.device.gpu
        part = device if isinstance(device, Instance) else None
        family.add(
            1,
            *labels(device),
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
        where = labels(reading.device)
        up.add(int(reading.up), *where)
        if reading.up and not isinstance(reading.device, Instance):
            mig.add(int(reading.mig_enabled), reading.device.uuid)
        for key, has in reading.supported.items():
            supported.add(int(has), *where, key, "" if has else _WITHOUT.get(key, "driver"))
    return up, mig, supported


def _ratios(page: NodeState) -> Family:
    family = Family(SM_RATIO)
    for place, ratio in page.ledger.sm_ratios.items():
        family.add(ratio, *place)
    return family


def _readings(snapshot: Snapshot) -> Iterable[Family]:
    families = {told.spec: Family(told.spec) for told in TOLD}
    columns = [(told.quantity, families[told.spec], (told.label,) if told.label else ()) for told in TOLD]
    for reading in snapshot.readings:
        where = labels(reading.device)
        for quantity, family, label in columns:
            value = reading.get(quantity)
            if value is not None:
                family.add(value, *(where if quantity.level is Level.INSTANCE else where[:1]), *label)
    return families.values()


def _xids(page: NodeState) -> Iterable[Family]:
    count, time = Family(XIDS), Family(XID_TIME)
    for (uuid, xid), seen in page.ledger.xids.items():
        count.add(seen, uuid, str(xid))
        time.add(page.ledger.xid_times[uuid, xid], uuid, str(xid))
    return count, time
