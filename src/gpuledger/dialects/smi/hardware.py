"""Families that are no columns of nvidia-smi: energy, PCIe, MIG, virtual GPUs and Xid errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuledger.dialects.smi.columns import uuid_label
from gpuledger.dialects.smi.fields import declare_smi_family
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot

_ENERGY = declare_smi_family(
    "energy_joules_total",
    "Energy used by the GPU since driver load.",
    ("uuid",),
    "nvmlDeviceGetTotalEnergyConsumption",
)
_MIG_INFO = declare_smi_family(
    "mig_info",
    "1 for each MIG instance.",
    ("compute_instance_id", "gpu_instance_id", "mig_uuid", "profile", "uuid"),
    "nvmlDeviceGetMigDeviceHandleByIndex",
)
_XIDS = declare_smi_family(
    "xid_errors_total",
    "Xid errors since the program started, by Xid.",
    ("uuid", "xid"),
    "nvmlEventSetWait_v2 nvmlEventTypeXidCriticalError",
)
_XID_TIME = declare_smi_family(
    "xid_last_timestamp_seconds",
    "Unix time of the last Xid error, by Xid.",
    ("uuid", "xid"),
    "nvmlEventSetWait_v2",
)


_GPM: Final = "nvmlGpmMetricsGet"


def _of_gpu(name: str, quantity: Quantity, text: str) -> tuple[FamilySpec, Quantity]:
    return declare_smi_family(name, text, ("uuid",), _GPM), quantity


def _of_instance(name: str, quantity: Quantity, text: str) -> tuple[FamilySpec, Quantity]:
    source = "nvmlDeviceGetMemoryInfo_v2" if quantity.unit == "bytes" else _GPM
    return declare_smi_family(f"mig_{name}", text, ("gpu_instance_id", "uuid"), source), quantity


_PCIE: Final = (
    _of_gpu("pcie_throughput_tx_bytes_per_second", q.PCIE_TX_RATE, "Data rate sent by the GPU over PCIe."),
    _of_gpu(
        "pcie_throughput_rx_bytes_per_second", q.PCIE_RX_RATE, "Data rate received by the GPU over PCIe."
    ),
)
_MIG: Final = (
    _of_instance("memory_total_bytes", q.MEMORY_TOTAL, "Total memory of the GPU instance."),
    _of_instance("memory_used_bytes", q.MEMORY_USED, "Memory used on the GPU instance."),
    _of_instance("memory_free_bytes", q.MEMORY_FREE, "Free memory of the GPU instance."),
    _of_instance("memory_reserved_bytes", q.MEMORY_RESERVED, "Memory reserved by the driver."),
    _of_instance(
        "graphics_activity_ratio",
        q.ENGINE_ACTIVITY,
        "Fraction of time for which the graphics or compute engine was busy.",
    ),
    _of_instance(
        "sm_activity_ratio",
        q.SM_ACTIVITY,
        "Fraction of time for which an SM had at least one warp, averaged over the SMs.",
    ),
    _of_instance("sm_occupancy_ratio", q.SM_OCCUPANCY, "Resident warps as a fraction of the maximum."),
    _of_instance(
        "tensor_activity_ratio",
        q.TENSOR_ACTIVITY,
        "Fraction of time for which the tensor pipes were busy.",
    ),
)

_VGPU_INFO: Final = declare_smi_family(
    "vgpu_info",
    "1 for each virtual GPU of a virtual machine on this host.",
    ("uuid", "vgpu_type", "vgpu_uuid", "vm_id"),
    "nvmlDeviceGetActiveVgpus",
)
_VGPU_MEMORY: Final = declare_smi_family(
    "vgpu_used_memory_bytes",
    "GPU memory that the virtual GPU uses; absent if the driver does not report it.",
    ("uuid", "vgpu_uuid"),
    "nvmlVgpuInstanceGetFbUsage",
)

REQUIRED_QUANTITIES: Final = frozenset({q.ENERGY, *(quantity for _, quantity in (*_PCIE, *_MIG))})
SPECS: Final = (
    _ENERGY,
    *(spec for spec, _ in _PCIE),
    _MIG_INFO,
    *(spec for spec, _ in _MIG),
    _VGPU_INFO,
    _VGPU_MEMORY,
    _XIDS,
    _XID_TIME,
)


def hardware_families(snapshot: Snapshot) -> Iterator[Family]:
    """Yields the families of energy, PCIe, MIG and virtual GPUs of one Snapshot."""
    energy, info = Family(_ENERGY), Family(_MIG_INFO)
    vgpus, vgpu_memory = Family(_VGPU_INFO), Family(_VGPU_MEMORY)
    pcie = [(Family(spec), quantity) for spec, quantity in _PCIE]
    mig = [(Family(spec), quantity) for spec, quantity in _MIG]
    for reading in snapshot.readings:
        device = reading.device
        uuid = uuid_label(device.gpu.uuid)
        if isinstance(device, Instance):
            gi = str(device.gi)
            info.add(1, str(device.ci), gi, uuid_label(device.uuid), device.profile, uuid)
            # Compute instances of one GPU instance have the same labels: the first one is exported.
            for family, quantity in mig:
                family.add(reading.get(quantity), gi, uuid)
            continue
        joules = reading.get(q.ENERGY)
        energy.add(None if joules is None else joules / 1000, uuid)
        for family, quantity in pcie:
            family.add(reading.get(quantity), uuid)
        for vgpu in reading.vgpus or ():
            vgpus.add(1, uuid, vgpu.profile, uuid_label(vgpu.uuid), vgpu.vm)
            vgpu_memory.add(vgpu.memory, uuid, uuid_label(vgpu.uuid))
    yield energy
    yield from (family for family, _ in pcie)
    yield info
    yield from (family for family, _ in mig)
    yield from (vgpus, vgpu_memory)


def xid_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of Xid errors; they do not need a Snapshot."""
    count, time = Family(_XIDS), Family(_XID_TIME)
    for (uuid, xid), seen in state.ledger.xids.items():
        count.add(0 if (uuid, xid) in state.ledger.new_xids else seen, uuid_label(uuid), str(xid))
        time.add(state.ledger.xid_times[uuid, xid], uuid_label(uuid), str(xid))
    yield from (count, time)
