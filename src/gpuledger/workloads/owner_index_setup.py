"""Registers the owner indexes: their groups of settings, the functions that open them, and their checks.

The modules of an index are imported lazily: machines without its scheduler or runtime do not load them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.host.owner_index import BackgroundIndex, PolledIndex
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.kubernetes.settings import KubernetesSettings, is_kubernetes_enabled
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.source import Clock
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container_reader import list_runtime, open_container_indexes
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.device_index import IdentityCache
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.owner_indexes import (
    AllocatingIndex,
    AllocationSource,
    OwnerIndexes,
    SeenPaths,
    StandingAllocations,
)
from gpuledger.workloads.owner_resolution import OwnerFacts
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.slurm.job_cgroups import find_job_cgroups
from gpuledger.workloads.slurm.settings import SlurmSettings, is_slurm_enabled

if TYPE_CHECKING:
    from gpuledger.model.checks import Check
    from gpuledger.workloads.job_map.job_map_reader import JobMap
    from gpuledger.workloads.pods.claims import ClaimUse
    from gpuledger.workloads.pods.pod import Pods, ResourceSlices
    from gpuledger.workloads.pods.pod_logs import PodIndexes
    from gpuledger.workloads.pods.resource_claims import ClaimIndex
    from gpuledger.workloads.slurm.job_reader import SlurmReader
    from gpuledger.workloads.slurm.jobs import SlurmJobs

# The settings of the owner indexes, beside KubernetesSettings, by the title that --help-all shows.
OWNER_INDEX_GROUPS: dict[str, type] = {
    "GPUs allocated to pods": PodResourcesSettings,
    "Slurm jobs": SlurmSettings,
    "job mapping files": JobMapSettings,
    "containers": ContainerSettings,
}

# A user who sets one of them expects an answer.
_KUBELET_PATHS = frozenset({"kubernetes.pod_resources_socket", "kubernetes.device_plugin_checkpoint"})
_SLICE_PERIOD = 60.0
_JOB_MAP_PERIOD = 5.0
_SLURM_PERIOD = 10.0


def open_owner_indexes(
    values: Mapping[str, Any],
    node: str,
    environment: Mapping[str, str],
    clock: Clock,
    users: PasswdUsers | None = None,
) -> OwnerIndexes:
    """The indexes that the settings enable, not started; empty if nothing is enabled or detected.

    `values` are parsed settings by key, `node` is the name under which Kubernetes knows this machine,
    `users` have the machine's names of users. Raises UsageError for contradicting settings, GpuledgerError
    for an unusable kubeconfig.
    """
    host = build_settings(HostSettings, values)
    kubernetes = build_settings(KubernetesSettings, values)
    opened = _Opened(clock)
    is_enabled = is_kubernetes_enabled(kubernetes, environment)
    pods: Callable[[], Pods | None] = (
        _open_kubernetes(opened, values, host, node, environment, clock) if is_enabled else lambda: None
    )
    slurm = _open_slurm(opened, build_settings(SlurmSettings, values), host, clock, users)

    def jobs() -> SlurmJobs | None:
        return None if slurm is None else slurm.value

    def still_runs(owner: Workload) -> bool:
        return slurm is not None and slurm.health.success and slurm.value.get(owner.job) is not None

    _open_job_map(opened, build_settings(JobMapSettings, values), clock, jobs, still_runs)
    containers = open_container_indexes(build_settings(ContainerSettings, values), clock=clock)
    opened.indexes += containers
    names_pods = is_enabled and kubernetes.names != "none"

    def facts() -> OwnerFacts:
        return OwnerFacts(pods(), jobs(), tuple([list_runtime(index) for index in containers]), names_pods)

    return OwnerIndexes(opened.indexes, facts, opened.sources, opened.allocating)


@dataclass
class _Opened:
    """What is opened so far: the parameters of OwnerIndexes."""

    clock: Clock
    indexes: list[BackgroundIndex] = field(default_factory=list)
    sources: list[AllocationSource] = field(default_factory=list)
    allocating: list[AllocatingIndex] = field(default_factory=list)

    def add_allocating(
        self,
        index: AllocatingIndex,
        allocations: AllocationSource,
        still_exists: Callable[[Workload], bool] = lambda _: False,
    ) -> None:
        """Add an index with its allocations; see `StandingAllocations`."""
        self.indexes.append(index.source)
        self.allocating.append(index)
        self.sources.append(StandingAllocations(index.source, allocations, self.clock, still_exists))


def _open_slurm(
    opened: _Opened, settings: SlurmSettings, host: HostSettings, clock: Clock, users: PasswdUsers | None
) -> PolledIndex[SlurmJobs] | None:
    index = open_slurm_index(settings, host, clock, users)
    if index is None:
        return None
    from gpuledger.workloads.slurm.jobs import slurm_allocations

    allocations = IdentityCache(slurm_allocations)
    # Enabled by a setting, or by a directory or cgroup of slurmd. A silent index has no cgroup tree, which
    # alone says that a job still exists.
    opened.add_allocating(
        AllocatingIndex(index, is_named=True), lambda devices: allocations(index.value, devices)
    )
    return index


def _open_job_map(
    opened: _Opened,
    settings: JobMapSettings,
    clock: Clock,
    jobs: Callable[[], SlurmJobs | None],
    still_runs: Callable[[Workload], bool],
) -> None:
    index = open_job_map_index(settings, clock)
    if index is None:
        return
    from gpuledger.workloads.job_map.job_map_reader import IgnoredFilesLog, job_map_allocations

    ignored = IgnoredFilesLog()

    def find(job_map: JobMap, devices: Sequence[Device], known: SlurmJobs | None) -> tuple[Allocation, ...]:
        ignored.log_new(job_map, devices)
        return job_map_allocations(job_map, devices, known, kind=settings.kind)

    allocations = IdentityCache(find)
    opened.add_allocating(
        AllocatingIndex(index, is_named=True),
        lambda devices: allocations(index.value, devices, jobs()),
        still_runs,
    )


def open_kubernetes_indexes(
    settings: KubernetesSettings, node: str, environment: Mapping[str, str], clock: Clock
) -> tuple[PodIndexes, PolledIndex[ResourceSlices] | None]:
    """Indexes of the pods on the Kubernetes node `node`, and of its ResourceSlices.

    The second is None without an API server. Call it only if `is_kubernetes_enabled`. Raises UsageError if
    `kubernetes.names` is `api` without an API server, GpuledgerError for an unusable kubeconfig.
    """
    from gpuledger.kubernetes.api_client import ApiClient
    from gpuledger.kubernetes.cluster_access import find_access
    from gpuledger.workloads.pods.pod import NO_SLICES
    from gpuledger.workloads.pods.pod_logs import PodIndexes, open_pod_log_index
    from gpuledger.workloads.pods.pod_watch import PodWatch
    from gpuledger.workloads.pods.resource_slices import SliceReader

    root = Path(settings.pod_logs)
    access = find_access(settings, environment)
    slices = None
    if access is not None:
        # Only the API server knows the UUIDs of DRA devices, wherever pod names come from.
        reader = SliceReader(ApiClient(access), node)
        slices = PolledIndex("resource_slices", reader.read, NO_SLICES, period=_SLICE_PERIOD, clock=clock)
    elif settings.names == "api":
        raise UsageError(
            "--kubernetes-names api needs an API server, and none is configured; set --kubernetes-api or "
            "--kubeconfig"
        )
    if settings.names == "none":
        return PodIndexes(), slices
    if settings.names == "logs" or access is None:
        return PodIndexes(logs=open_pod_log_index(root, clock=clock)), slices
    allowed_labels = settings.pod_label_allowlist
    watch = PodWatch(ApiClient(access), node, clock=clock, allowed_labels=allowed_labels)
    logs = None if settings.names == "api" else open_pod_log_index(root, watch, clock=clock)
    return PodIndexes(watch, logs), slices


def open_claim_index(
    settings: KubernetesSettings,
    environment: Mapping[str, str],
    uses: Callable[[], Iterable[ClaimUse]],
    clock: Clock,
) -> ClaimIndex | None:
    """The index of the ResourceClaims that are in use; None without an API server."""
    from gpuledger.kubernetes.api_client import ApiClient
    from gpuledger.kubernetes.cluster_access import find_access
    from gpuledger.workloads.pods.resource_claims import ClaimIndex, ClaimReader

    access = find_access(settings, environment)
    return None if access is None else ClaimIndex(ClaimReader(ApiClient(access), clock), uses, clock=clock)


def _open_kubernetes(
    opened: _Opened,
    values: Mapping[str, Any],
    host: HostSettings,
    node: str,
    environment: Mapping[str, str],
    clock: Clock,
) -> Callable[[], Pods]:
    """Returns a function that returns the known pods."""
    from gpuledger.workloads.pod_resources.allocation_matching import AllocationMatcher, claim_uses
    from gpuledger.workloads.pod_resources.kubelet_index import open_kubelet_index
    from gpuledger.workloads.pods.claims import NO_CLAIMS
    from gpuledger.workloads.pods.pod import NO_SLICES
    from gpuledger.workloads.pods.pod_cgroups import PodCgroups

    kubernetes = build_settings(KubernetesSettings, values)
    pods, slices = open_kubernetes_indexes(kubernetes, node, environment, clock)
    settings = build_settings(PodResourcesSettings, values)
    cgroups = PodCgroups(Path(host.sysfs) / "fs/cgroup", clock)
    files = SeenPaths(settings.socket, settings.checkpoint)

    def before_read() -> None:
        files.look()
        cgroups.refresh()

    kubelet = open_kubelet_index(settings, clock=clock, before_read=before_read)

    def find_cgroup(uid: str) -> bool | None:
        # Of a silent kubelet, the last allocations stand for five minutes without a cgroup, too.
        return cgroups(uid) if kubelet.health.success else None

    matcher = AllocationMatcher(settings, find_cgroup)

    def uses() -> tuple[ClaimUse, ...]:
        return claim_uses(kubelet.value, settings, pods.value)

    claims = open_claim_index(kubernetes, environment, uses, clock)
    opened.indexes += [index for index in (*pods.indexes, slices) if index is not None]

    def kubelet_allocations(devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        known_slices = NO_SLICES if slices is None else slices.value
        known_claims = NO_CLAIMS if claims is None else claims.value
        found = matcher.match(kubelet.value, devices, pods.value, known_slices, known_claims)
        if matcher.is_pending and claims is not None:
            claims.nudge()
        return found

    def has_cgroup(owner: Workload) -> bool:
        pod = pods.value.by_uid(owner.pod_uid)
        # The cgroup of a static pod is named after its hash.
        uid = pod.hash if pod is not None and pod.hash else owner.pod_uid
        return bool(uid) and cgroups(uid) is True

    is_named = kubernetes.enabled == "true" or not _KUBELET_PATHS.isdisjoint(values)

    def is_complete() -> bool:
        return matcher.is_complete and not kubelet.value.lacks_claims

    index = AllocatingIndex(kubelet, is_named, files, is_complete)
    opened.add_allocating(index, kubelet_allocations, has_cgroup)
    opened.indexes += [] if claims is None else [claims]
    return lambda: pods.value


def open_job_map_index(settings: JobMapSettings, clock: Clock) -> PolledIndex[JobMap] | None:
    """The index of the job-mapping directory, not started; None if no directory is set."""
    if not settings.directory:
        return None
    from gpuledger.workloads.job_map.job_map_reader import EMPTY_JOB_MAP, JobMapReader

    reader = JobMapReader(Path(settings.directory), clock=clock)
    return PolledIndex("job_map", reader.read, EMPTY_JOB_MAP, period=_JOB_MAP_PERIOD, clock=clock)


def open_slurm_index(
    settings: SlurmSettings, host: HostSettings, clock: Clock, users: PasswdUsers | None = None
) -> PolledIndex[SlurmJobs] | None:
    """The index of Slurm jobs, not started; None if Slurm is neither enabled nor detected."""
    if not is_slurm_enabled(settings, host.sysfs):
        return None
    from gpuledger.workloads.slurm.jobs import NO_JOBS

    users = users or PasswdUsers("/dev/null")
    root = settings.root(host.sysfs)
    reader: SlurmReader | None = None

    def read() -> SlurmJobs:
        nonlocal reader
        if reader is None:
            if not find_job_cgroups(root):
                return NO_JOBS
            # Imported with the first job: a machine can have Slurm and never run one.
            from gpuledger.workloads.slurm.job_reader import SlurmReader

            reader = SlurmReader(
                root, procfs=host.procfs, gres=settings.gres(), user_name=users.name, uid_of=users.uid_of
            )
        return reader.read()

    return PolledIndex("slurm", read, NO_JOBS, period=_SLURM_PERIOD, clock=clock)


def owner_index_checks(
    values: Mapping[str, Any],
    node: str,
    environment: Mapping[str, str],
    clock: Clock,
    devices: Callable[[], tuple[Device, ...] | None] = lambda: None,
    needs: tuple[str, ...] = (),
) -> tuple[Check, ...]:
    """Checks whether each owner index can be read here.

    `devices` returns the source's, None where unread; `needs` are the checks that must not fail before it is
    called. The checks are imported lazily: only `doctor` and health queries need them.
    """
    from gpuledger.workloads.containers.checks import container_checks
    from gpuledger.workloads.job_map.checks import job_map_checks
    from gpuledger.workloads.pod_resources.checks import pod_resources_checks
    from gpuledger.workloads.pods.checks import kubernetes_checks, read_claims, read_slices
    from gpuledger.workloads.slurm.checks import slurm_checks

    host = build_settings(HostSettings, values)
    kubernetes = build_settings(KubernetesSettings, values)
    return (
        *kubernetes_checks(kubernetes, node, environment),
        *pod_resources_checks(
            build_settings(PodResourcesSettings, values),
            devices,
            partial(read_slices, kubernetes, node, environment),
            partial(read_claims, kubernetes, environment, clock),
            enabled=is_kubernetes_enabled(kubernetes, environment),
            needs=needs,
        ),
        *slurm_checks(build_settings(SlurmSettings, values), sysfs=host.sysfs, procfs=host.procfs),
        *job_map_checks(build_settings(JobMapSettings, values), clock, devices, needs),
        *container_checks(build_settings(ContainerSettings, values)),
    )
