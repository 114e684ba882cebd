"""Native families of processes on devices."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.dialects.native.owners import OWNER_LABELS
from gpuledger.model.family import Family, declare_family
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Snapshot

_PROCESS = (*DEVICE_LABELS, "pid")
_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo, else nvmlDeviceGetProcessUtilization"

COUNT = declare_family(
    "gpuledger_processes",
    "Processes on the device by kind: compute (types C, C+G, M) or graphics (only G).",
    (*DEVICE_LABELS, "kind"),
    "nvmlDeviceGetCompute, Graphics and MPSComputeRunningProcesses",
)
OMITTED = declare_family(
    "gpuledger_processes_untold",
    "Processes beyond process.max_per_device, which are counted but have no series.",
    DEVICE_LABELS,
    "ledger",
)
INFO = declare_family(
    "gpuledger_process_info",
    "1 for each process on the device, with its owner.",
    (*_PROCESS, "command", "type", *OWNER_LABELS, "unit", "pod_uid", "container_id"),
    "process lists; /proc/PID/exe, status and cgroup",
)
INNER = declare_family(
    "gpuledger_process_inner_info",
    "1 for each process in a pod or container that runs inside its owner, with the ids of the inner one.",
    (*_PROCESS, "inner_pod_uid", "inner_container_id"),
    "/proc/PID/cgroup",
)
MEMORY = declare_family(
    "gpuledger_process_memory_bytes",
    "Device memory used by the process.",
    _PROCESS,
    "process lists usedGpuMemory",
)
START = declare_family(
    "gpuledger_process_start_time_seconds",
    "Unix time at which the process started, or was first seen if the start time is unknown.",
    _PROCESS,
    "/proc/PID/stat field 22",
)
SM = declare_family(
    "gpuledger_process_sm_utilization_ratio",
    "Fraction of time for which the process kept the SMs busy; absent under MIG.",
    _PROCESS,
    _UTILIZATION,
)
BANDWIDTH = declare_family(
    "gpuledger_process_memory_utilization_ratio",
    "Fraction of time for which the process read or wrote device memory; not its amount of memory.",
    _PROCESS,
    _UTILIZATION,
)
ENGINES = declare_family(
    "gpuledger_process_engine_utilization_ratio",
    "Fraction of time for which the process kept a media engine busy.",
    (*_PROCESS, "engine"),
    _UTILIZATION,
)
UNRESOLVED = declare_family(
    "gpuledger_unresolved_processes",
    "Processes without a fully known owner, by what is missing.",
    ("reason",),
    "host; workload",
)

_PER_PROCESS = (INFO, INNER, MEMORY, START, SM, BANDWIDTH, ENGINES)
SPECS = (COUNT, OMITTED, *_PER_PROCESS, UNRESOLVED)


def process_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of processes; none without a Snapshot."""
    if state.snapshot is None:
        return
    count, omitted = Family(COUNT), Family(OMITTED)
    families = [Family(spec) for spec in _PER_PROCESS]
    for reading in state.snapshot.process_readings:
        if reading.processes is None:
            continue
        where = device_labels(reading.device)
        computing = sum(process.computes for process in reading.processes)
        count.add(computing, *where, "compute")
        count.add(len(reading.processes) - computing, *where, "graphics")
        hidden = state.ledger.omitted.get(reading.device.uuid, frozenset())
        omitted.add(len(hidden), *where)
        for process in reading.processes:
            if not hidden or process.key not in hidden:
                _add_process(process, (*where, str(process.pid)), families)
    yield from (count, omitted, *families)
    yield _unresolved(state.snapshot)


def _add_process(process: GpuProcess, labels: tuple[str, ...], families: list[Family]) -> None:
    """Adds the samples of one process; `labels` are the values that all its series have."""
    info, inner, memory, start, sm, bandwidth, engines = families
    owner, usage = process.workload, process.usage
    info.add(
        1,
        *labels,
        process.command,
        process.type_text,
        owner.kind,
        owner.namespace,
        owner.pod,
        owner.container,
        owner.user,
        owner.job,
        owner.unit,
        owner.pod_uid,
        owner.container_id,
    )
    if owner.inner_pod_uid or owner.inner_container_id:
        inner.add(1, *labels, owner.inner_pod_uid, owner.inner_container_id)
    memory.add(process.memory, *labels)
    start.add(process.host.start.unix, *labels)
    sm.add(usage.sm, *labels)
    bandwidth.add(usage.memory, *labels)
    engines.add(usage.encoder, *labels, "encoder")
    engines.add(usage.decoder, *labels, "decoder")
    engines.add(usage.jpeg, *labels, "jpeg")
    engines.add(usage.ofa, *labels, "ofa")


def _unresolved(snapshot: Snapshot) -> Family:
    family = Family(UNRESOLVED)
    for reason, number in sorted(snapshot.unresolved.items()):
        family.add(number, reason)
    return family
