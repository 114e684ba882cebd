"""Native families of GpuProcesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.dialects.native.devices import DEVICE, labels
from gpuledger.dialects.native.owners import OWNER
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Reading, Snapshot

_PROCESS = (*DEVICE, "pid")
_UTILIZATION = "nvmlDeviceGetProcessesUtilizationInfo, else nvmlDeviceGetProcessUtilization"

COUNT = FamilySpec(
    "gpuledger_processes",
    "gauge",
    "Processes on the device by kind: compute (types C, C+G, M) or graphics (G alone).",
    (*DEVICE, "kind"),
    source="nvmlDeviceGetCompute, Graphics and MPSComputeRunningProcesses",
)
UNTOLD = FamilySpec(
    "gpuledger_processes_untold",
    "gauge",
    "Processes beyond process.max_per_device: counted, but without series of their own.",
    DEVICE,
    source="ledger",
)
INFO = FamilySpec(
    "gpuledger_process_info",
    "info",
    "A process on the device and its owner.",
    (*_PROCESS, "command", "type", *OWNER, "unit", "pod_uid", "container_id"),
    source="process lists; /proc/PID/exe, status and cgroup",
)
MEMORY = FamilySpec(
    "gpuledger_process_memory_bytes",
    "gauge",
    "Device memory that the process holds.",
    _PROCESS,
    unit="bytes",
    source="process lists usedGpuMemory",
)
START = FamilySpec(
    "gpuledger_process_start_time_seconds",
    "gauge",
    "Unix time at which the process started; where the host cannot say, when it was first seen.",
    _PROCESS,
    unit="seconds",
    source="/proc/PID/stat field 22",
)
SM = FamilySpec(
    "gpuledger_process_sm_utilization_ratio",
    "gauge",
    "Share of time in which the process kept the SMs busy; not told under MIG.",
    _PROCESS,
    unit="ratio",
    source=_UTILIZATION,
)
BANDWIDTH = FamilySpec(
    "gpuledger_process_memory_utilization_ratio",
    "gauge",
    "Share of time in which the process read or wrote device memory; not a fill level.",
    _PROCESS,
    unit="ratio",
    source=_UTILIZATION,
)
ENGINES = FamilySpec(
    "gpuledger_process_engine_utilization_ratio",
    "gauge",
    "Share of time in which the process kept a media engine busy.",
    (*_PROCESS, "engine"),
    unit="ratio",
    source=_UTILIZATION,
)
UNRESOLVED = FamilySpec(
    "gpuledger_unresolved_processes",
    "gauge",
    "Processes whose owner is not fully known, by what is missing.",
    ("reason",),
    source="host; workload",
)

SPECS = (COUNT, UNTOLD, INFO, MEMORY, START, SM, BANDWIDTH, ENGINES, UNRESOLVED)


def process_families(page: NodeState) -> Iterator[Family]:
    """Families of one Page; none while there is no Snapshot."""
    if page.snapshot is None:
        return
    yield from _counts(page.snapshot, page)
    rows = _Rows()
    for reading in page.snapshot.holders:
        untold = page.ledger.omitted.get(reading.device.uuid, frozenset())
        where = labels(reading.device)
        for process in reading.processes or ():
            if not untold or process.key not in untold:
                rows.add(process, (*where, str(process.pid)))
    yield from rows.families
    yield _unresolved(page.snapshot)


def _counts(snapshot: Snapshot, page: NodeState) -> Iterable[Family]:
    count, untold = Family(COUNT), Family(UNTOLD)
    for reading in snapshot.holders:
        if reading.processes is not None:
            _count(reading, reading.processes, count)
            hidden = page.ledger.omitted.get(reading.device.uuid, frozenset())
            untold.add(len(hidden), *labels(reading.device))
    return count, untold


def _count(reading: Reading, processes: tuple[GpuProcess, ...], count: Family) -> None:
    where = labels(reading.device)
    computing = sum(process.computes for process in processes)
    count.add(computing, *where, "compute")
    count.add(len(processes) - computing, *where, "graphics")


class _Rows:
    """The families that have a row per process."""

    def __init__(self) -> None:
        self.info, self.memory, self.start = Family(INFO), Family(MEMORY), Family(START)
        self.sm, self.bandwidth, self.engines = Family(SM), Family(BANDWIDTH), Family(ENGINES)

    @property
    def families(self) -> tuple[Family, ...]:
        """In page order."""
        return (self.info, self.memory, self.start, self.sm, self.bandwidth, self.engines)

    def add(self, process: GpuProcess, who: tuple[str, ...]) -> None:
        """One process, `who` being the labels of its series."""
        owner, usage = process.workload, process.usage
        self.info.add(
            1,
            *who,
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
        self.memory.add(process.memory, *who)
        self.start.add(process.host.start.unix, *who)
        self.sm.add(usage.sm, *who)
        self.bandwidth.add(usage.memory, *who)
        self.engines.add(usage.encoder, *who, "encoder")
        self.engines.add(usage.decoder, *who, "decoder")
        self.engines.add(usage.jpeg, *who, "jpeg")
        self.engines.add(usage.ofa, *who, "ofa")


def _unresolved(snapshot: Snapshot) -> Family:
    family = Family(UNRESOLVED)
    for reason, number in sorted(snapshot.unresolved.items()):
        family.add(number, reason)
    return family
