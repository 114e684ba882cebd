"""The maps of owners that the settings ask for, joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from gpuledger.host.background import OwnerIndex, PolledIndex
from gpuledger.kubernetes.settings import KubernetesSettings, is_enabled, node_name
from gpuledger.model.devices import Device
from gpuledger.model.source import Clock
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.open import open_containers
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.device_index import Kept
from gpuledger.workloads.job_map.files import NO_MAP, JobMap, JobMapReader
from gpuledger.workloads.job_map.files import allocations as mapped_allocations
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.joining import enrich
from gpuledger.workloads.owner_indexes import Allocations, OwnerIndexes
from gpuledger.workloads.pod_resources.allocations import Allocations as Granted
from gpuledger.workloads.pod_resources.map import pod_resources_map
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.cgroups import PodCgroups
from gpuledger.workloads.pods.open import open_kubernetes
from gpuledger.workloads.pods.pod import NO_PODS, Pods
from gpuledger.workloads.slurm.job import NO_JOBS, SlurmJobs
from gpuledger.workloads.slurm.job import allocations as slurm_allocations
from gpuledger.workloads.slurm.reader import SlurmReader
from gpuledger.workloads.slurm.settings import SlurmSettings
from gpuledger.workloads.slurm.settings import is_enabled as has_slurm

if TYPE_CHECKING:
    pass


JOB_MAP_PERIOD = 5.0


def open_job_map(settings: JobMapSettings, *, clock: Clock) -> PolledIndex[JobMap] | None:
    """The map, not begun; None where no directory is named."""
    if not settings.directory:
        return None
    reader = JobMapReader(Path(settings.directory), clock=clock)
    return PolledIndex("job_map", reader.read, NO_MAP, period=JOB_MAP_PERIOD, clock=clock)


SLURM_PERIOD = 10.0


def open_slurm(
    settings: SlurmSettings,
    *,
    clock: Clock,
    sysfs: str = "/sys",
    procfs: str = "/proc",
    user_name: Callable[[int], str] = str,
) -> PolledIndex[SlurmJobs]:
    """The map, not begun; to be called only where Slurm is on (`settings.is_enabled`)."""
    reader = SlurmReader(settings.root(sysfs), procfs=procfs, gres=settings.gres(), user_name=user_name)
    return PolledIndex("slurm", reader.read, NO_JOBS, period=SLURM_PERIOD, clock=clock)


@dataclass(frozen=True, slots=True)
class OwnerIndexSettings:
    """Everything that a user sets about maps of owners. `node` is as given, empty where it was not."""

    kubernetes: KubernetesSettings
    pod_resources: PodResourcesSettings
    slurm: SlurmSettings
    job_map: JobMapSettings
    containers: ContainerSettings
    node: str = ""

    def node_name(self, environment: Mapping[str, str]) -> str:
        """The name under which Kubernetes knows this machine."""
        return node_name(self.node, environment, gethostname())


@dataclass(frozen=True, slots=True)
class Machine:
    """Where this machine shows its processes, and how its users are called."""

    procfs: str
    sysfs: str
    user_name: Callable[[int], str]


def open_owner_indexes(
    settings: OwnerIndexSettings, machine: Machine, environment: Mapping[str, str], clock: Clock
) -> OwnerIndexes:
    """Maps that have not begun to be read; none at all where nothing of this machine is to be asked.

    Raises UsageError for settings that cannot be honoured, GpuledgerError for an unusable kubeconfig.
    """
    maps: list[OwnerIndex] = []
    handed: list[Allocations] = []
    pods = _open_kubernetes(settings, machine, environment, clock, maps, handed)
    jobs = _open_jobs(settings, machine, clock, maps, handed)
    names = open_containers(settings.containers, clock=clock)
    maps += names

    def enriched(owner: Workload) -> Workload:
        known = (one.value for one in names)
        return enrich(owner, jobs.value if jobs is not None else None, known)

    def moments() -> tuple[object, ...]:
        return (*(one.value for one in names), None if jobs is None else jobs.value)

    return OwnerIndexes(maps, pods, handed, enriched, moments)


def _open_kubernetes(
    settings: OwnerIndexSettings,
    machine: Machine,
    environment: Mapping[str, str],
    clock: Clock,
    maps: list[OwnerIndex],
    handed: list[Allocations],
) -> Callable[[], Pods]:
    """The pods known now; what tells them and their devices is added to `maps` and `handed`."""
    if not is_enabled(settings.kubernetes, environment):
        return lambda: NO_PODS
    cluster = open_kubernetes(settings.kubernetes, settings.node_name(environment), environment, clock)
    cgroups = PodCgroups(Path(machine.sysfs) / "fs/cgroup", clock)
    slices = cluster.slices
    granted = pod_resources_map(settings.pod_resources, clock=clock, before=cgroups.look)
    maps += [*cluster.pods.maps, *([] if slices is None else [slices]), granted]
    told = Granted(
        resources=settings.pod_resources.resources,
        drivers=settings.pod_resources.drivers,
        has_cgroup=cgroups,
    )

    def by_kubelet(devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        if slices is None:
            return told.of(granted.value, devices, cluster.pods.value)
        known = slices.value
        return told.of(granted.value, devices, cluster.pods.value, known.uuids, known.parents)

    handed.append(by_kubelet)
    return lambda: cluster.pods.value


def _open_jobs(
    settings: OwnerIndexSettings,
    machine: Machine,
    clock: Clock,
    maps: list[OwnerIndex],
    handed: list[Allocations],
) -> PolledIndex[SlurmJobs] | None:
    """Slurm's jobs, None where there is no Slurm; with them the job-mapping directory is added."""
    jobs = None
    if has_slurm(settings.slurm, machine.sysfs):
        jobs = open_slurm(
            settings.slurm,
            clock=clock,
            sysfs=machine.sysfs,
            procfs=machine.procfs,
            user_name=machine.user_name,
        )
        maps.append(jobs)
        handed.append(_by_slurm(jobs))
    mapped = open_job_map(settings.job_map, clock=clock)
    if mapped is not None:
        told = Kept(partial(mapped_allocations, kind=settings.job_map.kind))
        users = jobs
        maps.append(mapped)
        handed.append(lambda devices: told(mapped.value, devices, users.value if users else None))
    return jobs


def _by_slurm(jobs: PolledIndex[SlurmJobs]) -> Allocations:
    told = Kept(slurm_allocations)
    return lambda devices: told(jobs.value, devices)
