"""Compute processes: who they are, what they hold, how many a GPU has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpuledger.dialects.smi.columns import uuid_label
from gpuledger.dialects.smi.fields import PREFIX
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Reading, Snapshot

_WHO: Final = ("pid", "process_name", "uuid")
# Under MIG alone, as there.
_WHERE: Final = ("compute_instance_id", "gpu_instance_id")
_LISTS: Final = "process lists; nvidia-smi --query-compute-apps"


def _info(labels: tuple[str, ...]) -> FamilySpec:
    return FamilySpec(
        f"{PREFIX}compute_app_info",
        "gauge",
        "1 for each process with a compute context on the GPU.",
        labels,
        source=_LISTS,
    )


def _memory(labels: tuple[str, ...]) -> FamilySpec:
    return FamilySpec(
        f"{PREFIX}compute_app_used_memory_bytes",
        "gauge",
        "Memory of the GPU that the process holds; absent where the driver cannot say.",
        labels,
        source=_LISTS,
    )


COUNT: Final = FamilySpec(
    f"{PREFIX}compute_apps",
    "gauge",
    "Processes with a compute context on the GPU; 0 when there is none.",
    ("uuid",),
    source=_LISTS,
)
SUCCESS: Final = FamilySpec(
    f"{PREFIX}compute_apps_last_collect_success",
    "gauge",
    "1 when the processes of every GPU could be listed, else 0.",
    source=_LISTS,
)
_PLAIN: Final = (_info(_WHO), _memory(_WHO))
_CUT: Final = (_info((*_WHERE, *_WHO)), _memory((*_WHERE, *_WHO)))
SPECS: Final = (*_CUT, COUNT, SUCCESS)


def process_families(page: NodeState, snapshot: Snapshot) -> Iterator[Family]:
    """The families of one Snapshot. Processes beyond the cap are in the count alone."""
    cut = any(isinstance(reading.device, Instance) for reading in snapshot.readings)
    info, memory = (Family(spec) for spec in (_CUT if cut else _PLAIN))
    counts: dict[Gpu, int | None] = {}
    for reading in snapshot.holders:
        gpu = reading.device.gpu
        listed = [process for process in reading.processes or () if process.computes]
        before = counts.get(gpu, 0)
        counts[gpu] = None if before is None or reading.processes is None else before + len(listed)
        for process in _told(page, reading, listed):
            labels = (*(_where(process) if cut else ()), *_who(process))
            info.add(1, *labels)
            memory.add(process.memory, *labels)
    count = Family(COUNT)
    for gpu, number in counts.items():
        count.add(number, uuid_label(gpu.uuid))
    success = Family(SUCCESS)
    success.add(int(not snapshot.devices_failed and None not in counts.values()))
    yield from (info, memory, count, success)


def _told(page: NodeState, reading: Reading, listed: Iterable[GpuProcess]) -> Iterable[GpuProcess]:
    untold = page.ledger.omitted.get(reading.device.uuid, frozenset())
    return (process for process in listed if process.key not in untold)


def _who(process: GpuProcess) -> tuple[str, str, str]:
    name = process.name or process.command or "[N/A]"
    return (str(process.pid), name, uuid_label(process.device.gpu.uuid))


def _where(process: GpuProcess) -> tuple[str, str]:
    device = process.device
    return (str(device.ci), str(device.gi)) if isinstance(device, Instance) else ("", "")
