"""A GPU with a few readings, and the page of the dcgm dialect for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from builders import GIB, gpu, node_state, reading, snapshot
from gpuledger.dialects.dcgm.collectors import parse_collectors
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.exposition import text
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import CollectorRun, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload

SOURCE = SourceInfo("nvml", False, "580.95.05", "13.580.95.05", "13.0")
CARD = gpu(
    0, name="NVIDIA H100 80GB HBM3", pci_bus_id="00000000:18:00.0", minor=3, serial="165", vbios="96.00"
)
FEW = """\
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).
DCGM_FI_PROF_SM_ACTIVE, gauge, The ratio of cycles an SM has at least 1 warp assigned.
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""
POD = Workload(
    "pod", "ml", "train-0", "main", "uid-0", labels=(("app.kubernetes.io/name", "t"), ("team", "v"))
)
OTHER = Workload("pod", "lab", "notebook-0", "jupyter", "uid-1")


def dialect(csv: str = FEW, hostname: str = "node-1", **settings: object) -> DcgmDialect:
    return DcgmDialect(DcgmSettings(**settings), parse_collectors(csv.encode(), "a.csv"), hostname)  # type: ignore[arg-type]  # any setting


def posted(seen: Snapshot, *allocated: tuple[Device, Workload]) -> NodeState:
    """Returns the state after the ledger has posted the snapshot, with these allocations."""
    allocations = tuple(
        Allocation(device, owner, "pod_resources", "nvidia.com/gpu") for device, owner in allocated
    )
    seen = replace(seen, source=SOURCE, allocations=allocations, collected=(CollectorRun("events", 0.0),))
    return node_state(seen, Ledger(LedgerSettings(zero_hold=0.0)).post(seen))


def body(dcgm: DcgmDialect, seen: NodeState) -> str:
    return text.encode_text(dcgm.families(seen)).decode()


Labels = Mapping[str, str]


def rows(dcgm: DcgmDialect, seen: NodeState, name: str) -> list[tuple[Labels, float]]:
    """Returns the samples of one family, without empty labels, as in Prometheus."""
    for family in dcgm.families(seen):
        if family.spec.name == name:
            return [
                ({key: label for key, label in zip(family.spec.labels, values, strict=True) if label}, value)
                for values, value in family.samples.items()
            ]
    raise AssertionError(f"{name} is not exported")


def one_gpu(*processes: object, device: Device = CARD) -> Snapshot:
    values = {q.TEMPERATURE: 61.0, q.MEMORY_USED: 41 * GIB, q.SM_ACTIVITY: 0.25}
    return snapshot(reading(device, *processes, values=values))  # type: ignore[arg-type]  # any value
