"""Native families of processes on devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.dialects.native.owners import OWNER_LABELS
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Reading, Snapshot

_PROCESS = (*DEVICE_LABELS, "pid")
_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo, else nvmlDeviceGetProcessUtilization"

COUNT = FamilySpec(
    "gpuledger_processes",
    "gauge",
    "Processes on the device by kind: compute (types C, C+G, M) or graphics (only G).",
    (*DEVICE_LABELS, "kind"),
    source="nvmlDeviceGetCompute, Graphics and MPSComputeRunningProcesses",
)
OMITTED = FamilySpec(
    "gpuledger_processes_untold",
    "gauge",
    "Processes beyond process.max_per_device, which are counted but have no series.",
    DEVICE_LABELS,
    source="ledger",
)
INFO = FamilySpec(
    "gpuledger_process_info",
    "info",
    "1 for each process on the device, with its owner.",
    (*_PROCESS, "command", "type", *OWNER_LABELS, "unit", "pod_uid", "container_id"),
    source="process lists; /proc/PID/exe, status and cgroup",
)
MEMORY = FamilySpec(
    "gpuledger_process_memory_bytes",
    "gauge",
    "Device memory used by the process.",
    _PROCESS,
    unit="bytes",
    source="process lists usedGpuMemory",
)
START = FamilySpec(
    "gpuledger_process_start_time_seconds",
    "gauge",
    "Unix time at which the process started, or was first seen if the start time is unknown.",
    _PROCESS,
    unit="seconds",
    source="/proc/PID/stat field 22",
)
SM = FamilySpec(
    "gpuledger_process_sm_utilization_ratio",
    "gauge",
    "Fraction of time for which the process kept the SMs busy; absent under MIG.",
    _PROCESS,
    unit="ratio",
    source=_UTILIZATION,
)
BANDWIDTH = FamilySpec(
    "gpuledger_process_memory_utilization_ratio",
    "gauge",
    "Fraction of time for which the process read or wrote device memory; not its amount of memory.",
    _PROCESS,
    unit="ratio",
    source=_UTILIZATION,
)
ENGINES = FamilySpec(
    "gpuledger_process_engine_utilization_ratio",
    "gauge",
    "Fraction of time for which the process kept a media engine busy.",
    (*_PROCESS, "engine"),
    unit="ratio",
    source=_UTILIZATION,
)
UNRESOLVED = FamilySpec(
    "gpuledger_unresolved_processes",
    "gauge",
    "Processes without a fully known owner, by what is missing.",
    ("reason",),
    source="host; workload",
)

SPECS = (COUNT, OMITTED, INFO, MEMORY, START, SM, BANDWIDTH, ENGINES, UNRESOLVED)


def process_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of processes; none without a Snapshot."""
    if state.snapshot is None:
        return
    yield from _counts(state.snapshot, state)
    rows = _ProcessRows()
    for reading in state.snapshot.process_readings:
        omitted = state.ledger.omitted.get(reading.device.uuid, frozenset())
        where = device_labels(reading.device)
        for process in reading.processes or ():
            if not omitted or process.key not in omitted:
                rows.add(process, (*where, str(process.pid)))
    yield from rows.families
    yield _unresolved(state.snapshot)


def _counts(snapshot: Snapshot, state: NodeState) -> Iterable[Family]:
    count, omitted = Family(COUNT), Family(OMITTED)
    for reading in snapshot.process_readings:
        if reading.processes is not None:
            _add_counts(reading, reading.processes, count)
            hidden = state.ledger.omitted.get(reading.device.uuid, frozenset())
            omitted.add(len(hidden), *device_labels(reading.device))
    return count, omitted


def _add_counts(reading: Reading, processes: tuple[GpuProcess, ...], count: Family) -> None:
    where = device_labels(reading.device)
    computing = sum(process.computes for process in processes)
    count.add(computing, *where, "compute")
    count.add(len(processes) - computing, *where, "graphics")


class _ProcessRows:
    """The families that have one row per process."""

    def __init__(self) -> None:
        self.info, self.memory, self.start = Family(INFO), Family(MEMORY), Family(START)
        self.sm, self.bandwidth, self.engines = Family(SM), Family(BANDWIDTH), Family(ENGINES)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families in page order."""
        return (self.info, self.memory, self.start, self.sm, self.bandwidth, self.engines)

    def add(self, process: GpuProcess, labels: tuple[str, ...]) -> None:
        """Adds the samples of one process; `labels` are the values that all its series have."""
        owner, usage = process.workload, process.usage
        self.info.add(
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
        self.memory.add(process.memory, *labels)
        self.start.add(process.host.start.unix, *labels)
        self.sm.add(usage.sm, *labels)
        self.bandwidth.add(usage.memory, *labels)
        self.engines.add(usage.encoder, *labels, "encoder")
        self.engines.add(usage.decoder, *labels, "decoder")
        self.engines.add(usage.jpeg, *labels, "jpeg")
        self.engines.add(usage.ofa, *labels, "ofa")


def _unresolved(snapshot: Snapshot) -> Family:
    family = Family(UNRESOLVED)
    for reason, number in sorted(snapshot.unresolved.items()):
        family.add(number, reason)
    return family
