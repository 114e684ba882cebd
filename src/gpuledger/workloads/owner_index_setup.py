"""Opens the owner indexes that the settings enable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, get_type_hints

from gpuledger.host.owner_index import OwnerIndex, PolledIndex
from gpuledger.kubernetes.settings import KubernetesSettings, is_kubernetes_enabled, node_name
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError
from gpuledger.model.source import Clock
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container_reader import open_container_indexes
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.device_index import IdentityCache
from gpuledger.workloads.job_map.job_map_reader import (
    EMPTY_JOB_MAP,
    JobMap,
    JobMapReader,
    job_map_allocations,
)
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.owner_indexes import AllocationSource, OwnerIndexes
from gpuledger.workloads.owner_resolution import enrich_owner
from gpuledger.workloads.pod_resources.allocation_matching import AllocationMatcher
from gpuledger.workloads.pod_resources.kubelet_index import open_kubelet_index
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.pod import NO_PODS, Pods
from gpuledger.workloads.pods.pod_cgroups import PodCgroups
from gpuledger.workloads.slurm.job_reader import SlurmReader
from gpuledger.workloads.slurm.jobs import NO_JOBS, SlurmJobs, slurm_allocations
from gpuledger.workloads.slurm.settings import SlurmSettings, is_slurm_enabled

if TYPE_CHECKING:
    from gpuledger.workloads.pods.pod_logs import PodIndexes
    from gpuledger.workloads.pods.resource_slices import ResourceSlices


@dataclass(frozen=True, slots=True)
class KubernetesIndexes:
    """The indexes of pods and ResourceSlices, not started. `slices` is None without an API server."""

    pods: PodIndexes
    slices: PolledIndex[ResourceSlices] | None


def open_kubernetes_indexes(
    settings: KubernetesSettings, node: str, environment: Mapping[str, str], clock: Clock
) -> KubernetesIndexes:
    """Indexes for the Kubernetes node `node`. Call it only if `is_kubernetes_enabled`.

    The modules of the indexes are imported lazily: machines without Kubernetes do not load them.

    Raises UsageError if `kubernetes.names` is `api` without an API server, GpuledgerError for an unusable
    kubeconfig.
    """
    from gpuledger.kubernetes.api_client import ApiClient
    from gpuledger.kubernetes.cluster_access import find_access
    from gpuledger.workloads.pods.label_allowlist import LabelAllowlist
    from gpuledger.workloads.pods.pod_logs import (
        PodIndexes,
        open_fallback_log_index,
        open_pod_log_index,
    )
    from gpuledger.workloads.pods.pod_watch import PodWatch
    from gpuledger.workloads.pods.resource_slices import open_slice_index

    root = Path(settings.pod_logs)
    access = find_access(settings, environment)
    if settings.names == "api" and access is None:
        raise UsageError(
            "--kubernetes-names api needs an API server, and none is configured; set --kubernetes-api or "
            "--kubeconfig"
        )
    # Only the API server knows the UUIDs of DRA devices, wherever pod names come from.
    slices = None if access is None else open_slice_index(ApiClient(access), node, clock=clock)
    if settings.names == "none":
        return KubernetesIndexes(PodIndexes(), slices)
    if settings.names == "logs" or access is None:
        return KubernetesIndexes(PodIndexes(logs=open_pod_log_index(root, clock=clock)), slices)
    allowed = LabelAllowlist(settings.pod_label_allowlist)
    watch = PodWatch(ApiClient(access), node, clock=clock, allowed=allowed)
    fallback = open_fallback_log_index(watch, root, clock=clock) if settings.names == "auto" else None
    return KubernetesIndexes(PodIndexes(watch, fallback), slices)


JOB_MAP_PERIOD = 5.0


def open_job_map_index(settings: JobMapSettings, *, clock: Clock) -> PolledIndex[JobMap] | None:
    """The index of the job-mapping directory, not started; None if no directory is set."""
    if not settings.directory:
        return None
    reader = JobMapReader(Path(settings.directory), clock=clock)
    return PolledIndex("job_map", reader.read, EMPTY_JOB_MAP, period=JOB_MAP_PERIOD, clock=clock)


SLURM_PERIOD = 10.0


def open_slurm_index(
    settings: SlurmSettings,
    *,
    clock: Clock,
    sysfs: str = "/sys",
    procfs: str = "/proc",
    user_name: Callable[[int], str] = str,
) -> PolledIndex[SlurmJobs]:
    """The index of Slurm jobs, not started. Call it only if `is_slurm_enabled`."""
    reader = SlurmReader(settings.root(sysfs), procfs=procfs, gres=settings.gres(), user_name=user_name)
    return PolledIndex("slurm", reader.read, NO_JOBS, period=SLURM_PERIOD, clock=clock)


@dataclass(frozen=True, slots=True)
class OwnerIndexSettings:
    """All settings of owner indexes. `node` is the configured node name, empty if not set."""

    kubernetes: KubernetesSettings
    pod_resources: PodResourcesSettings
    slurm: SlurmSettings
    job_map: JobMapSettings
    containers: ContainerSettings
    node: str = ""

    def node_name(self, environment: Mapping[str, str]) -> str:
        """The name under which Kubernetes knows this machine."""
        return node_name(self.node, environment, gethostname())


# Field -> Settings group.
OWNER_INDEX_GROUPS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(OwnerIndexSettings).items() if kind is not str
}


@dataclass(frozen=True, slots=True)
class HostView:
    """Mount points of proc and sysfs on this machine, and the lookup of user names by uid."""

    procfs: str
    sysfs: str
    user_name: Callable[[int], str]


def open_owner_indexes(
    settings: OwnerIndexSettings, host: HostView, environment: Mapping[str, str], clock: Clock
) -> OwnerIndexes:
    """The enabled indexes, not started; empty if nothing is enabled or detected.

    Raises UsageError for contradicting settings, GpuledgerError for an unusable kubeconfig.
    """
    indexes: list[OwnerIndex] = []
    allocation_sources: list[AllocationSource] = []
    pods = _open_kubernetes(settings, host, environment, clock, indexes, allocation_sources)
    jobs = _open_jobs(settings, host, clock, indexes, allocation_sources)
    containers = open_container_indexes(settings.containers, clock=clock)
    indexes += containers

    def enrich(owner: Workload) -> Workload:
        known = (index.value for index in containers)
        return enrich_owner(owner, jobs.value if jobs is not None else None, known)

    def enrich_inputs() -> tuple[object, ...]:
        return (*(index.value for index in containers), None if jobs is None else jobs.value)

    return OwnerIndexes(indexes, pods, allocation_sources, enrich, enrich_inputs)


def _open_kubernetes(
    settings: OwnerIndexSettings,
    host: HostView,
    environment: Mapping[str, str],
    clock: Clock,
    indexes: list[OwnerIndex],
    allocation_sources: list[AllocationSource],
) -> Callable[[], Pods]:
    """A function that returns the known pods. Appends to `indexes` and `allocation_sources`."""
    if not is_kubernetes_enabled(settings.kubernetes, environment):
        return lambda: NO_PODS
    cluster = open_kubernetes_indexes(
        settings.kubernetes, settings.node_name(environment), environment, clock
    )
    cgroups = PodCgroups(Path(host.sysfs) / "fs/cgroup", clock)
    slices = cluster.slices
    kubelet = open_kubelet_index(settings.pod_resources, clock=clock, before_read=cgroups.refresh)
    indexes += [*cluster.pods.indexes, *([] if slices is None else [slices]), kubelet]
    matcher = AllocationMatcher(
        resources=settings.pod_resources.resources,
        drivers=settings.pod_resources.drivers,
        has_cgroup=cgroups,
    )

    def kubelet_allocations(devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        if slices is None:
            return matcher.match(kubelet.value, devices, cluster.pods.value)
        known = slices.value
        return matcher.match(kubelet.value, devices, cluster.pods.value, known.uuids, known.parents)

    allocation_sources.append(kubelet_allocations)
    return lambda: cluster.pods.value


def _open_jobs(
    settings: OwnerIndexSettings,
    host: HostView,
    clock: Clock,
    indexes: list[OwnerIndex],
    allocation_sources: list[AllocationSource],
) -> PolledIndex[SlurmJobs] | None:
    """The index of Slurm jobs, or None. Appends it and the job-mapping index to the lists."""
    jobs = None
    if is_slurm_enabled(settings.slurm, host.sysfs):
        jobs = open_slurm_index(
            settings.slurm,
            clock=clock,
            sysfs=host.sysfs,
            procfs=host.procfs,
            user_name=host.user_name,
        )
        indexes.append(jobs)
        allocation_sources.append(_slurm_source(jobs))
    mapped = open_job_map_index(settings.job_map, clock=clock)
    if mapped is not None:
        cache = IdentityCache(partial(job_map_allocations, kind=settings.job_map.kind))
        users = jobs
        indexes.append(mapped)
        allocation_sources.append(
            lambda devices: cache(mapped.value, devices, users.value if users else None)
        )
    return jobs


def _slurm_source(jobs: PolledIndex[SlurmJobs]) -> AllocationSource:
    cache = IdentityCache(slurm_allocations)
    return lambda devices: cache(jobs.value, devices)
