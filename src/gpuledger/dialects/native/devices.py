"""Native families of devices: attributes, availability and Xid errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuledger.model.devices import Device, Instance
from gpuledger.model.enumeration_words import REASONS_OF_ABSENCE
from gpuledger.model.family import Family, declare_family
from gpuledger.model.gpu_problems import judge_gpu
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import PCIE_LINK_BUSY, PROFILING
from gpuledger.model.session import ThrottleRow
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.xids import XID_MEANINGS

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
        "vendor",
    ),
    "nvmlDeviceGetUUID, Name, PciInfo_v3, MinorNumber, Serial, VbiosVersion, Architecture",
)
UP = declare_family(
    "gpuledger_device_up",
    "1 if the device responded in this tick, 0 if it is lost or failing.",
    DEVICE_LABELS,
    "every NVML call of the tick",
)
DOWN = declare_family(
    "gpuledger_device_down",
    "1 for each device that is down, with the reason as the driver names it: GPU_IS_LOST, RESET_REQUIRED, "
    "NO_PERMISSION; empty if it gives none.",
    (*DEVICE_LABELS, "reason"),
    "the error that made it down",
)
MIG_ENABLED = declare_family(
    "gpuledger_device_mig_enabled",
    "1 if MIG mode is enabled, else 0.",
    ("uuid",),
    "nvmlDeviceGetMigMode current",
)
MODULE_ENERGY = declare_family(
    "gpuledger_device_energy_of_module",
    "1 for each GPU with an energy counter of the whole module of a superchip, with CPU and memory (GH200, "
    "GB200, GB300); its power is that of the GPU alone.",
    ("uuid",),
    "nvmlDeviceGetName",
)
SM_RATIO = declare_family(
    "gpuledger_device_sm_ratio",
    "Fraction of the GPU's multiprocessors that the device has; 1 for a whole GPU.",
    DEVICE_LABELS,
    "nvmlDeviceGetAttributes_v2 multiprocessorCount, else the slices of the MIG profile",
)
FIELD_SUPPORTED = declare_family(
    "gpuledger_field_supported",
    "1 if the device supports this quantity or column of nvidia-smi, 0 if not; reason is driver, profiling "
    "if NVML has it only on Hopper and newer (see --dcgm-exporter-url), function_not_found if the driver is "
    "too old, no_permission or deprecated.",
    (*DEVICE_LABELS, "field", "reason"),
    "NVML_ERROR_NOT_SUPPORTED",
)
DEGRADED = declare_family(
    "gpuledger_device_degraded",
    "1 for each thing that is wrong with the GPU, by reason; without a series nothing is known to be wrong. "
    "/health and the page say what to do.",
    ("uuid", "reason"),
    "recovery action, remapped rows, retired pages, ECC, PCIe link, NVLink, throttling",
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
XID_INFO = declare_family(
    "gpuledger_xid_info",
    "1 for each Xid that occurred, with NVIDIA's name for it; empty if it has none. Joins on xid.",
    ("xid", "meaning"),
    "NVIDIA's list of Xids",
)

SPECS = (
    INFO,
    UP,
    DOWN,
    MIG_ENABLED,
    MODULE_ENERGY,
    SM_RATIO,
    FIELD_SUPPORTED,
    DEGRADED,
    XIDS,
    XID_TIME,
    XID_INFO,
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
        yield _degraded(state.snapshot, state.ledger.throttling)
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
            gpu.vendor,
        )
    return family


def _states(snapshot: Snapshot) -> Iterable[Family]:
    up, down, mig, supported, module = (
        Family(spec) for spec in (UP, DOWN, MIG_ENABLED, FIELD_SUPPORTED, MODULE_ENERGY)
    )
    for reading in snapshot.readings:
        where = device_labels(reading.device)
        up.add(int(reading.up), *where)
        down.add(None if reading.up else 1, *where, reading.down_reason)
        if reading.up and not isinstance(reading.device, Instance):
            mig.add(int(reading.mig_enabled), reading.device.uuid)
            module.add(1 if reading.counts_module_energy else None, reading.device.uuid)
        absent = _reasons_of_absence(reading)
        for key, is_supported in reading.supported.items():
            # Computed here from others, and exported nowhere.
            if key == PCIE_LINK_BUSY.key:
                continue
            reason = "" if is_supported else _REASONS.get(key) or absent.get(key, "driver")
            supported.add(int(is_supported), *where, key, reason)
    return up, down, mig, module, supported


def _reasons_of_absence(reading: Reading) -> Mapping[str, str]:
    """Returns why a column of nvidia-smi has no value, by the field without unit, if its cell says so."""
    return {
        header.partition(" ")[0]: REASONS_OF_ABSENCE[cell]
        for header, cell in reading.raw.items()
        if cell in REASONS_OF_ABSENCE
    }


def _degraded(snapshot: Snapshot, throttling: Mapping[str, tuple[ThrottleRow, ...]]) -> Family:
    family = Family(DEGRADED)
    for reading in snapshot.readings:
        uuid = reading.device.uuid
        for reason, problem in judge_gpu(reading, throttling.get(uuid, ())).items():
            if problem is not None:
                family.add(1, uuid, reason)
    return family


def _xids(state: NodeState) -> Iterable[Family]:
    count, time, info = Family(XIDS), Family(XID_TIME), Family(XID_INFO)
    for (uuid, xid), seen in state.ledger.xids.items():
        count.add(0 if (uuid, xid) in state.ledger.new_xids else seen, uuid, str(xid))
        time.add(state.ledger.xid_times[uuid, xid], uuid, str(xid))
        info.add(1, str(xid), XID_MEANINGS.get(xid, ""))
    return count, time, info
