"""Owner lookup: sets the Workload of every process in a Snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Generic, NamedTuple, TypeVar

from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessKey, ProcessStart
from gpuledger.model.snapshot import LONGEST_INTERVAL, Reading, Snapshot
from gpuledger.model.workload import PENDING_NAMES, Allocation, Workload, merge_owner
from gpuledger.workloads.cgroup import CgroupOwner, parse_cgroup
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.memory_fractions import MemoryFractions
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.owner_resolution import (
    DeviceEvidence,
    OwnerFacts,
    PodAtWork,
    enrich_owner,
    pod_at_work,
    resolve_owner,
)
from gpuledger.workloads.pods.placeholder import is_placeholder

UserName = Callable[[int], str]
KnownOwner = Callable[[ProcessKey], Workload | None]
# By kind and job.
JobUsers = Mapping[tuple[str, str], str]


# Seconds after its start in which a process without a name requests new readings at each tick.
_YOUNG = 5.0
# Seconds between two looks for the names of users of logins and jobs that have none.
_NAMES_GOOD_FOR = 10.0


def owners_from_host(host: HostFacts, user_name: UserName = str) -> tuple[Workload, ...]:
    """The owner of one process, then the pods, containers and jobs in which that one runs, inside out.

    An empty `missing` means that an owner is fully known.

    An owner that the Host already knows (simulator, replay) is used unchanged. Otherwise the cgroup names it:
    a pod or container by its id, with the name still missing (`pod_name`, `container_name`), a job, a unit or
    a login. If the cgroup names nothing, the owner is the user of the process, and `missing` is the reason
    of the Host or of the cgroup (`no_cgroup`, `cgroup_namespace`, `unknown_cgroup`).

    `user` is the user of the login or job if the cgroup names one (a root process under sudo belongs to its
    caller), else the user of the process. `user_name` maps a uid that the Host did not resolve to a name.
    """
    if host.workload is not None:
        lacks_user = host.user and not host.workload.user
        return (replace(host.workload, user=host.user) if lacks_user else host.workload,)
    found: CgroupOwner | None = parse_cgroup(host.cgroup)
    owners = []
    while found is not None and found.kind != "unknown":
        found = _check_flux(found, host.uid)
        user = host.user if found.uid in (None, host.uid) else user_name(found.uid)
        owners.append(_owner_from_cgroup(found, user))
        found = found.outer
    if found is None:
        return tuple(owners)
    missing = host.missing or found.missing
    if host.user:
        return (Workload(kind="user", user=host.user, found_by="uid", missing=missing),)
    return (Workload(missing=missing),)


def _check_flux(found: CgroupOwner, uid: int | None) -> CgroupOwner:
    """A Flux job belongs to the user of its processes, not to Flux, although it is a unit of Flux's user.

    Every user can give a unit of the own service manager the name of a job: that is not one.
    """
    if found.runtime != "flux":
        return found
    if uid is None or found.uid in (None, uid):
        return replace(found, kind="user", job="", runtime="")
    return replace(found, uid=None)


def _owner_from_cgroup(found: CgroupOwner, user: str) -> Workload:
    return Workload(
        kind=found.kind,
        container=found.container,
        pod_uid=found.pod_uid,
        container_id=found.container_id,
        runtime=found.runtime,
        job=found.job,
        step=found.step,
        unit=found.unit,
        user=user,
        found_by="cgroup",
        missing=found.missing,
        inner_container_id=found.inner_container,
    )


class _Found(NamedTuple):
    """The owners that the host names, inside out, and the pod at work (see DeviceEvidence)."""

    owners: tuple[Workload, ...]
    pod: PodAtWork | None


class _Allocated:
    """Allocations, and what is computed once for all Snapshots that have them."""

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        self.allocations = allocations
        self.by_device: dict[str, list[Allocation]] = {}
        for item in allocations:
            self.by_device.setdefault(item.device.uuid, []).append(item)
        self.has_placeholder = any(is_placeholder(item.workload) for item in allocations)
        self.lacks_users = any(item.workload.job and not item.workload.user for item in allocations)


Value = TypeVar("Value")


class _ChangedAllocations(Generic[Value]):
    """Applies `change` to Allocations and one value for each; the same object while both stay the same."""

    def __init__(self, change: Callable[[Allocation, Value], Allocation]) -> None:
        self._change = change
        self._before: Sequence[Allocation] = ()
        self._values: list[Value] = []
        self._result: tuple[Allocation, ...] = ()

    def __call__(self, allocations: Sequence[Allocation], values: list[Value]) -> tuple[Allocation, ...]:
        if allocations is not self._before or values != self._values:
            self._before, self._values = allocations, values
            self._result = tuple([self._change(*pair) for pair in zip(allocations, values, strict=True)])
        return self._result


def _with_release(item: Allocation, is_released: bool) -> Allocation:
    return replace(item, fraction=Fraction(0)) if is_released else item


def _with_user(item: Allocation, user: str) -> Allocation:
    return replace(item, workload=replace(item.workload, user=user))


class OwnerLookup:
    """Assigns owners to the processes of one Snapshot per tick.

    Results are cached for the processes of the last Snapshot only. A process is resolved again only when its
    host facts, the owner indexes or the pods at work on its Device change; it keeps names that it has then
    lost, so that all accounts have them. `known_owner` has the owners of processes that are not in the last
    Snapshot, because their list failed or this program was not running, `job_users` the users of jobs that
    were allocated then. Without a `directory` the allocations of Snapshots are kept.
    """

    def __init__(
        self,
        user_name: UserName = str,
        directory: OwnerIndexes | None = None,
        name_changes: Callable[[], int] = lambda: 0,
        known_owner: KnownOwner = lambda _: None,
        job_users: JobUsers | None = None,
    ) -> None:
        self._user_name = user_name
        self._known_owner = known_owner
        # Grows when a user can have got a name.
        self._name_changes = name_changes
        self._names_at = name_changes()
        # When names of users were last looked up again, on the source's clock, and whether this tick does it.
        self._named_at = -inf
        self._renews_names = False
        self._directory = directory
        # The caches of this Snapshot and of the one before.
        self._found: dict[tuple[int, ProcessStart], tuple[HostFacts, _Found]] = {}
        self._found_before = self._found
        self._resolved: dict[ProcessKey, tuple[_Found, Workload]] = {}
        self._resolved_before = self._resolved
        self._facts = OwnerFacts()
        self._inputs: tuple[object, ...] = ()
        self._same_inputs = False
        self._devices: tuple[Device, ...] = ()
        # When all Devices were last listed, on the source's clock.
        self._listed_at = -inf
        # The pods at work on each Device, by its uuid, of this Snapshot and of the one before.
        self._working: dict[str, frozenset[PodAtWork]] = {}
        self._working_before = self._working
        self._without_name: set[ProcessKey] = set()
        self._memory = MemoryFractions()
        self._allocated = _Allocated(())
        self._released = _ChangedAllocations(_with_release)
        self._named = _ChangedAllocations(_with_user)
        # Devices, by uuid, on which a placeholder pod holds nothing.
        self._served: set[str] = set()
        # Users of allocated jobs.
        self._users = dict(job_users or {})

    @property
    def cached_processes(self) -> int:
        """Number of processes in the cache."""
        return len(self._found)

    def assign_owners(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the Workload of every process set; the same object if nothing changes."""
        allocations, complete = snapshot.allocations, snapshot.allocations_complete
        if self._directory is not None:
            allocations = self._directory.allocations(self._devices_of(snapshot))
            complete = self._directory.has_all_allocations(snapshot.unix)
            self._facts = self._directory.facts()
            inputs = (*self._facts.objects, allocations)
            self._same_inputs = same_objects(inputs, self._inputs)
            self._inputs = inputs
        if self._names_at != (names_at := self._name_changes()):
            self._names_at, self._found = names_at, {}
        self._renews_names = abs(snapshot.elapsed - self._named_at) >= _NAMES_GOOD_FOR
        if self._renews_names:
            self._named_at = snapshot.elapsed
        self._found_before, self._found = self._found, {}
        self._resolved_before, self._resolved = self._resolved, {}
        self._working_before, self._working = self._working, {}
        allocations = self._memory.complete(allocations, snapshot.readings)
        if allocations is not self._allocated.allocations:
            self._allocated = _Allocated(allocations)
        allocated = self._allocated
        readings = tuple([self._assign_reading(reading) for reading in snapshot.readings])
        if self._directory is not None:
            self._request_names(self._directory, readings, snapshot.unix)
        if allocated.has_placeholder:
            allocations = self._release_placeholders(allocations, readings)
        if self._directory is not None and allocated.lacks_users:
            allocations = self._add_users(allocations, readings)
        is_same = allocations is snapshot.allocations and complete == snapshot.allocations_complete
        if is_same and same_objects(readings, snapshot.readings):
            return snapshot
        return replace(snapshot, readings=readings, allocations=allocations, allocations_complete=complete)

    def _request_names(self, directory: OwnerIndexes, readings: Iterable[Reading], unix: float) -> None:
        """Request new readings of the indexes for new processes without a name, and while these are young.

        A name that remains missing must not cause a reading every second.
        """
        # The index of jobs knows names of users, too, and the numbers of jobs.
        pending = {
            key
            for key, (_, owner) in self._resolved.items()
            if owner.missing in PENDING_NAMES
            or (owner.kind == "slurm" and (owner.user.isdigit() or owner.has_sluid))
        }
        if pending - self._without_name or any(
            process.key in pending and unix - process.host.start.unix < _YOUNG
            for reading in readings
            for process in (pending and reading.processes) or ()
        ):
            directory.nudge()
        self._without_name = pending

    def _release_placeholders(
        self, allocations: Sequence[Allocation], readings: Sequence[Reading]
    ) -> tuple[Allocation, ...]:
        """Allocations in which a placeholder pod holds nothing while the pods it stands for are known.

        These have the Device allocated, too, or have a process there. While a process list cannot be read,
        the last one counts.
        """
        served = {
            item.device.uuid
            for item in allocations
            if item.workload.kind == "pod" and not is_placeholder(item.workload)
        }
        served |= {
            reading.device.uuid
            for reading in readings
            for process in reading.processes or ()
            if process.workload.kind == "pod" and not is_placeholder(process.workload)
        }
        served |= self._served - {one.device.uuid for one in readings if one.processes is not None}
        self._served = served
        return self._released(
            allocations,
            [item.device.uuid in served and is_placeholder(item.workload) for item in allocations],
        )

    def _add_users(
        self, allocations: Sequence[Allocation], readings: Sequence[Reading]
    ) -> tuple[Allocation, ...]:
        """Allocations of jobs with the user of their processes: a job-mapping file names no user.

        The first user of a job counts; the number of that user is replaced by the name. Of several at once,
        it is the one with the oldest process; root only if alone, as it runs commands such as sudo.
        """
        first: dict[tuple[str, str], tuple[bool, float, str]] = {}
        for reading in readings:
            for process in reading.processes or ():
                owner, host = process.workload, process.host
                job = (owner.kind, owner.job)
                if owner.job and owner.user and self._users.get(job, "") in ("", str(host.uid)):
                    is_root = host.uid == 0 and owner.user == host.user
                    one = (is_root, host.start.unix, owner.user)
                    first[job] = min(one, first.get(job, one))
        found = self._users | {job: user for job, (_, _, user) in first.items()}
        jobs = [(item.workload.kind, item.workload.job) for item in allocations]
        self._users = {job: found[job] for job in jobs if job in found}
        return self._named(
            allocations,
            [item.workload.user or found.get(job, "") for item, job in zip(allocations, jobs, strict=True)],
        )

    def _devices_of(self, snapshot: Snapshot) -> tuple[Device, ...]:
        """The Devices of the Snapshot. Those that cannot be listed are still there, for a minute."""
        devices = tuple([reading.device for reading in snapshot.readings])
        if not snapshot.devices_failed:
            self._listed_at = snapshot.elapsed
        elif 0 <= snapshot.elapsed - self._listed_at <= LONGEST_INTERVAL:
            absent = [device for device in self._devices if device not in devices]
            devices += tuple([device for device in absent if not snapshot.is_gone(device)])
        if not same_objects(devices, self._devices):
            self._devices = devices
        return self._devices

    def _assign_reading(self, reading: Reading) -> Reading:
        if not reading.processes:
            return reading
        uuid = reading.device.uuid
        found = [self._find_by_host(process) for process in reading.processes]
        working = self._working[uuid] = frozenset([one.pod for one in found if one.pod])
        device = DeviceEvidence(self._allocated.by_device.get(uuid, ()), working)
        is_same = self._same_inputs and working == self._working_before.get(uuid)
        processes = tuple(
            [
                self._assign_process(process, one, device, may_reuse=is_same)
                for process, one in zip(reading.processes, found, strict=True)
            ]
        )
        if same_objects(processes, reading.processes):
            return reading
        return replace(reading, processes=processes)

    def _assign_process(
        self, process: GpuProcess, found: _Found, device: DeviceEvidence, *, may_reuse: bool
    ) -> GpuProcess:
        owner = self._resolve(process, found, device, may_reuse=may_reuse)
        self._resolved[process.key] = (found, owner)
        return process if process.workload == owner else replace(process, workload=owner)

    def _find_by_host(self, process: GpuProcess) -> _Found:
        """The owner by host facts alone, computed once per process."""
        key, host = (process.pid, process.host.start), process.host
        entry = self._found.get(key) or self._found_before.get(key)
        if entry is None or (entry[0] is not host and entry[0] != host):
            owners = owners_from_host(host, self._user_name)
            entry = (host, _Found(owners, pod_at_work(owners)))
        elif self._renews_names and any(one.user.isdigit() for one in entry[1].owners):
            owners = owners_from_host(host, self._user_name)
            entry = entry if owners == entry[1].owners else (host, entry[1]._replace(owners=owners))
        self._found[key] = entry
        return entry[1]

    def _resolve(
        self, process: GpuProcess, found: _Found, device: DeviceEvidence, *, may_reuse: bool
    ) -> Workload:
        """The owner `found`, completed from the directory once per process and directory state."""
        if self._directory is None or process.host.workload is not None:
            return found.owners[0]
        before = self._resolved_before.get(process.key)
        if before is not None and may_reuse and before[0] is found:
            return before[1]
        owner = enrich_owner(resolve_owner(found.owners, self._facts, device, process), self._facts)
        earlier = self._known_owner(process.key) if before is None else before[1]
        if earlier is None or not (earlier.found_by == "cgroup" or device.may_have_named(earlier)):
            return owner
        return merge_owner(earlier, owner)
