"""Families of compute processes: their names, memory and number per GPU."""

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

_PROCESS_LABELS: Final = ("pid", "process_name", "uuid")
# Only under MIG, as in nvidia_gpu_exporter.
_INSTANCE_LABELS: Final = ("compute_instance_id", "gpu_instance_id")
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
        "GPU memory used by the process; absent if the driver does not report it.",
        labels,
        source=_LISTS,
    )


COUNT: Final = FamilySpec(
    f"{PREFIX}compute_apps",
    "gauge",
    "Processes with a compute context on the GPU.",
    ("uuid",),
    source=_LISTS,
)
SUCCESS: Final = FamilySpec(
    f"{PREFIX}compute_apps_last_collect_success",
    "gauge",
    "1 if the processes of all GPUs could be listed, else 0.",
    source=_LISTS,
)
_WITHOUT_MIG: Final = (_info(_PROCESS_LABELS), _memory(_PROCESS_LABELS))
_WITH_MIG: Final = (
    _info((*_INSTANCE_LABELS, *_PROCESS_LABELS)),
    _memory((*_INSTANCE_LABELS, *_PROCESS_LABELS)),
)
SPECS: Final = (*_WITH_MIG, COUNT, SUCCESS)


def process_families(state: NodeState, snapshot: Snapshot) -> Iterator[Family]:
    """Yields the families of one Snapshot. Processes beyond the cap are only counted."""
    has_mig = any(isinstance(reading.device, Instance) for reading in snapshot.readings)
    info, memory = (Family(spec) for spec in (_WITH_MIG if has_mig else _WITHOUT_MIG))
    counts: dict[Gpu, int | None] = {}
    for reading in snapshot.process_readings:
        gpu = reading.device.gpu
        listed = [process for process in reading.processes or () if process.computes]
        before = counts.get(gpu, 0)
        counts[gpu] = None if before is None or reading.processes is None else before + len(listed)
        for process in _exported_processes(state, reading, listed):
            labels = (*(_instance_labels(process) if has_mig else ()), *_process_labels(process))
            info.add(1, *labels)
            memory.add(process.memory, *labels)
    count = Family(COUNT)
    for gpu, number in counts.items():
        count.add(number, uuid_label(gpu.uuid))
    success = Family(SUCCESS)
    success.add(int(not snapshot.devices_failed and None not in counts.values()))
    yield from (info, memory, count, success)


def _exported_processes(
    state: NodeState, reading: Reading, listed: Iterable[GpuProcess]
) -> Iterable[GpuProcess]:
    omitted = state.ledger.omitted.get(reading.device.uuid, frozenset())
    return (process for process in listed if process.key not in omitted)


def _process_labels(process: GpuProcess) -> tuple[str, str, str]:
    name = process.name or process.command or "[N/A]"
    return (str(process.pid), name, uuid_label(process.device.gpu.uuid))


def _instance_labels(process: GpuProcess) -> tuple[str, str]:
    device = process.device
    return (str(device.ci), str(device.gi)) if isinstance(device, Instance) else ("", "")
