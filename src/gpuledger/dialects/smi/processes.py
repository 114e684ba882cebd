"""Families of compute processes: their names, memory and number per GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gpuledger.dialects.smi.columns import uuid_label
from gpuledger.dialects.smi.fields import declare_smi_family
from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.family import Family, single_sample_family
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Snapshot

_PROCESS_LABELS: Final = ("pid", "process_name", "uuid")
# Only under MIG, as in nvidia_gpu_exporter.
_INSTANCE_LABELS: Final = ("compute_instance_id", "gpu_instance_id")
_LISTS: Final = "process lists; nvidia-smi --query-compute-apps"

_WITH_MIG: Final = (
    declare_smi_family(
        "compute_app_info",
        "1 for each process with a compute context on the GPU.",
        (*_INSTANCE_LABELS, *_PROCESS_LABELS),
        _LISTS,
    ),
    declare_smi_family(
        "compute_app_used_memory_bytes",
        "GPU memory used by the process; absent if the driver does not report it.",
        (*_INSTANCE_LABELS, *_PROCESS_LABELS),
        _LISTS,
    ),
)
_WITHOUT_MIG: Final = tuple(replace(spec, labels=_PROCESS_LABELS) for spec in _WITH_MIG)
COUNT: Final = declare_smi_family(
    "compute_apps", "Processes with a compute context on the GPU.", ("uuid",), _LISTS
)
# nvidia_gpu_exporter lacks it. Of a GPU with unified memory, the driver reports no other memory.
MEMORY: Final = declare_smi_family(
    "compute_apps_used_memory_bytes",
    "GPU memory of all processes with a compute context on the GPU; absent if that of one is not known.",
    ("uuid",),
    _LISTS,
)
SUCCESS: Final = declare_smi_family(
    "compute_apps_last_collect_success",
    "1 if the processes of all GPUs could be listed, else 0.",
    source=_LISTS,
)
SPECS: Final = (*_WITH_MIG, COUNT, MEMORY, SUCCESS)


def process_families(state: NodeState, snapshot: Snapshot) -> Iterator[Family]:
    """Yields the families of one Snapshot. Processes beyond the cap are only counted."""
    has_mig = any(isinstance(reading.device, Instance) for reading in snapshot.readings)
    info, memory = (Family(spec) for spec in (_WITH_MIG if has_mig else _WITHOUT_MIG))
    counts: dict[Gpu, int | None] = {}
    sums: dict[Gpu, int | None] = {}
    for reading in snapshot.process_readings:
        device = reading.device
        listed = [process for process in reading.processes or () if process.computes]
        before = counts.get(device.gpu, 0)
        counts[device.gpu] = None if before is None or reading.processes is None else before + len(listed)
        parts = [sums.get(device.gpu, 0), *(process.memory for process in listed)]
        known = [part for part in parts if part is not None]
        sums[device.gpu] = sum(known) if reading.processes is not None and len(known) == len(parts) else None
        omitted = state.ledger.omitted.get(device.uuid, frozenset())
        where: tuple[str, ...] = ("", "") if has_mig else ()
        if isinstance(device, Instance):
            where = (str(device.ci), str(device.gi))
        for process in listed:
            if process.key not in omitted:
                name = process.name or process.command or "[N/A]"
                labels = (*where, str(process.pid), name, uuid_label(device.gpu.uuid))
                info.add(1, *labels)
                memory.add(process.memory, *labels)
    count, used = Family(COUNT), Family(MEMORY)
    for gpu, number in counts.items():
        count.add(number, uuid_label(gpu.uuid))
        used.add(sums[gpu], uuid_label(gpu.uuid))
    success = int(not snapshot.devices_failed and None not in counts.values())
    yield from (info, memory, count, used, single_sample_family(SUCCESS, success))
