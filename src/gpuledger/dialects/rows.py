"""The process rows that the documents 000 and 001 share: one declaration, told by both dialects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.devices import Device, Gpu
from gpuledger.model.family import Family, FamilySpec, LabelValues
from gpuledger.model.page import Page
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import MEMORY_TOTAL, Quantity
from gpuledger.model.snapshot import Reading, Snapshot

WANTS: frozenset[Quantity] = frozenset({MEMORY_TOTAL})

_MIB = 1024 * 1024
_WHO = ("gpu", "pid", "command", "pod", "namespace", "container")
_NONE = "none"


@dataclass(frozen=True, slots=True)
class Rows:
    """Families and label forms under the user's settings."""

    settings: DialectSettings
    info: FamilySpec
    utilization: FamilySpec
    memory_utilization: FamilySpec

    @classmethod
    def under(cls, settings: DialectSettings) -> Rows:
        """Declare the three process families as the settings shape their labels."""
        node = node_labels(settings)
        memory = ("gpu_memory",) if settings.memory_label else ()
        return cls(
            settings,
            info=FamilySpec(
                "gpu_process_info",
                "gauge",
                'A process on the GPU (1, status="active"), or a GPU without one (0, status="idle").',
                (*node, *_WHO, "status", *memory),
                source="process lists; host; workload",
            ),
            utilization=FamilySpec(
                "gpu_process_utilization",
                "gauge",
                "Share of time in which the process kept the SMs busy, in percent.",
                (*node, *_WHO),
                source="nvmlDeviceGetProcessesUtilizationInfo smUtil",
            ),
            memory_utilization=FamilySpec(
                "gpu_process_memory_utilization",
                "gauge",
                "Share of the GPU's memory that the process holds, in percent.",
                (*node, *_WHO),
                source="process lists usedGpuMemory; nvmlDeviceGetMemoryInfo_v2 total",
            ),
        )

    @property
    def specs(self) -> tuple[FamilySpec, ...]:
        """The three, in page order."""
        return (self.info, self.utilization, self.memory_utilization)

    def gpu(self, device: Device) -> str:
        """The `gpu` label: the index, and for MIG `GPU_GI_CI` or the order of MIG devices."""
        if isinstance(device, Gpu):
            return str(device.index)
        if self.settings.mig_label == "device":
            return f"{device.gpu.index}_{device.index}_0"
        return f"{device.gpu.index}_{device.gi}_{device.ci}"

    def counted(self, processes: Iterable[GpuProcess]) -> Iterator[GpuProcess]:
        """The processes that these dialects count: all but the merely graphic ones, unless asked."""
        return (process for process in processes if self.settings.graphics or process.computes)

    def tell(self, page: Page) -> tuple[Family, Family, Family]:
        """The process rows of a page; none at all while there is no Snapshot."""
        families = (Family(self.info), Family(self.utilization), Family(self.memory_utilization))
        if page.snapshot is not None:
            for reading in page.snapshot.holders:
                if reading.processes is not None:
                    self._tell_device(reading, reading.processes, page, families)
        return families

    def _tell_device(
        self,
        reading: Reading,
        processes: tuple[GpuProcess, ...],
        page: Page,
        families: tuple[Family, Family, Family],
    ) -> None:
        info, utilization, memory_utilization = families
        gpu = self.gpu(reading.device)
        node = (self.settings.node_name,) if self.settings.node_name else ()
        untold = page.ledger.untold.get(reading.device.uuid, frozenset())
        total = reading.get(MEMORY_TOTAL)
        anybody = False
        for process in self.counted(processes):
            anybody = True
            if untold and process.key in untold:
                continue
            who = (*node, *self._who(gpu, process))
            info.add(1, *who, "active", *self._memory(process))
            if process.usage.sm is not None:
                # The driver tells whole percents: 0.57 * 100 must come out as 57.
                utilization.add(round(process.usage.sm * 100.0, 9), *who)
            if process.memory is not None and total:
                memory_utilization.add(process.memory * 100.0 / total, *who)
        if not anybody:
            memory = ("0MiB",) if self.settings.memory_label else ()
            info.add(0, *node, gpu, _NONE, _NONE, _NONE, _NONE, _NONE, "idle", *memory)

    def _who(self, gpu: str, process: GpuProcess) -> LabelValues:
        prefixed = self.settings.pid_label == "gpu-prefixed"
        pid = f"gpu{process.device.gpu.index}_{process.pid}" if prefixed else str(process.pid)
        owner = process.workload
        return (gpu, pid, process.command, owner.pod, owner.namespace, owner.container)

    def _memory(self, process: GpuProcess) -> tuple[str, ...]:
        if not self.settings.memory_label:
            return ()
        return ("" if process.memory is None else f"{process.memory // _MIB}MiB",)


def node_labels(settings: DialectSettings) -> tuple[str, ...]:
    """`node`, when the user named the node."""
    return ("node",) if settings.node_name else ()


def tell_counts(
    page: Page, settings: DialectSettings, per_gpu: FamilySpec, total: FamilySpec, counts: dict[str, int]
) -> tuple[Family, Family]:
    """Counts by gpu label and their sum. The sum is absent when any Device's count is not known."""
    node = (settings.node_name,) if settings.node_name else ()
    by_gpu, everything = Family(per_gpu), Family(total)
    for gpu, count in counts.items():
        by_gpu.add(count, *node, gpu)
    if page.snapshot is not None and is_whole(page.snapshot):
        everything.add(sum(counts.values()), *node)
    return by_gpu, everything


def is_whole(snapshot: Snapshot) -> bool:
    """Whether every Device was listed and every process list read: only then is a total a total."""
    return not snapshot.devices_failed and all(reading.processes is not None for reading in snapshot.holders)
