"""Owner lookup: sets the Workload of every process in a Snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessKey, ProcessStart
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import PENDING_NAMES, Allocation, Workload
from gpuledger.workloads.cgroup import parse_cgroup
from gpuledger.workloads.device_index import same_objects
from gpuledger.workloads.owner_indexes import OwnerIndexes

UserName = Callable[[int], str]


def owner_from_host(host: HostFacts, user_name: UserName = str) -> Workload:
    """The owner of one process; an empty `missing` means that the owner is fully known.

    An owner that the Host already knows (simulator, replay) is used unchanged. Otherwise the cgroup names it:
    a pod or container by its id, with the name still missing (`pod_name`, `container_name`), a job, a unit or
    a login. If the cgroup names nothing, the owner is the user of the process, and `missing` is the reason
    of the Host or of the cgroup (`no_cgroup`, `cgroup_namespace`, `unknown_cgroup`).

    `user` is the user of the login or job if the cgroup names one (a root process under sudo belongs to its
    caller), else the user of the process. `user_name` maps a uid that the Host did not resolve to a name.
    """
    if host.workload is not None:
        lacks_user = host.user and not host.workload.user
        return replace(host.workload, user=host.user) if lacks_user else host.workload
    found = parse_cgroup(host.cgroup)
    user = host.user
    if found.uid is not None and found.uid != host.uid:
        user = user_name(found.uid)
    if found.kind != "unknown":
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
        )
    missing = host.missing or found.missing
    return (
        Workload(kind="user", user=user, found_by="uid", missing=missing)
        if user
        else Workload(missing=missing)
    )


class OwnerLookup:
    """Assigns owners to the processes of one Snapshot per tick.

    Results are cached for the processes of the last Snapshot only. A process is resolved again only when its
    host facts or the owner indexes change. Without a `directory` the allocations of Snapshots are kept.
    """

    def __init__(self, user_name: UserName = str, directory: OwnerIndexes | None = None) -> None:
        self._user_name = user_name
        self._directory = directory
        # The caches of this Snapshot and of the one before.
        self._found: dict[tuple[int, ProcessStart], tuple[HostFacts, Workload]] = {}
        self._found_before = self._found
        self._resolved: dict[ProcessKey, tuple[Workload, Workload]] = {}
        self._resolved_before = self._resolved
        self._inputs: tuple[object, ...] = ()
        self._devices: tuple[Device, ...] = ()
        self._without_name: set[ProcessKey] = set()
        # Users of allocated jobs, by kind and job.
        self._users: dict[tuple[str, str], str] = {}
        # The allocations that were last given users, the users, and the result.
        self._unnamed: Sequence[Allocation] = ()
        self._allocation_users: list[str] = []
        self._named: tuple[Allocation, ...] = ()

    @property
    def cached_processes(self) -> int:
        """Number of processes in the cache."""
        return len(self._found)

    def assign_owners(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the Workload of every process set; the same object if nothing changes."""
        allocations, complete = snapshot.allocations, snapshot.allocations_complete
        if self._directory is not None:
            complete = self._directory.has_all_allocations(snapshot.unix)
            allocations = self._directory.allocations(self._devices_of(snapshot))
            inputs = (*self._directory.identity_inputs(), allocations)
            if not same_objects(inputs, self._inputs):
                self._inputs, self._resolved = inputs, {}
        self._found_before, self._found = self._found, {}
        self._resolved_before, self._resolved = self._resolved, {}
        by_device: dict[str, list[Allocation]] = {}
        for item in allocations:
            by_device.setdefault(item.device.uuid, []).append(item)
        readings = tuple([self._assign_reading(reading, by_device) for reading in snapshot.readings])
        pending = {key for key, (_, owner) in self._resolved.items() if owner.missing in PENDING_NAMES}
        # Once per new process: a name that remains missing must not cause a refresh every second.
        if self._directory is not None and pending - self._without_name:
            self._directory.nudge()
        self._without_name = pending
        if self._directory is not None and any(
            item.workload.job and not item.workload.user for item in allocations
        ):
            allocations = self._add_users(allocations, readings)
        is_same = allocations is snapshot.allocations and complete == snapshot.allocations_complete
        if is_same and same_objects(readings, snapshot.readings):
            return snapshot
        return replace(snapshot, readings=readings, allocations=allocations, allocations_complete=complete)

    def _add_users(
        self, allocations: Sequence[Allocation], readings: Sequence[Reading]
    ) -> tuple[Allocation, ...]:
        """Allocations of jobs with the user of their processes: a job-mapping file names no user."""
        owners = [process.workload for reading in readings for process in reading.processes or ()]
        found = {
            (owner.kind, owner.job): owner.user for owner in owners if owner.job and owner.user
        } | self._users
        jobs = [(item.workload.kind, item.workload.job) for item in allocations]
        self._users = {job: found[job] for job in jobs if job in found}
        users = [
            item.workload.user or found.get(job, "") for item, job in zip(allocations, jobs, strict=True)
        ]
        if allocations is not self._unnamed or users != self._allocation_users:
            self._unnamed, self._allocation_users = allocations, users
            self._named = tuple(
                [
                    replace(item, workload=replace(item.workload, user=user))
                    for item, user in zip(allocations, users, strict=True)
                ]
            )
        return self._named

    def _devices_of(self, snapshot: Snapshot) -> tuple[Device, ...]:
        devices = tuple([reading.device for reading in snapshot.readings])
        if not same_objects(devices, self._devices):
            self._devices = devices
        return self._devices

    def _assign_reading(self, reading: Reading, by_device: Mapping[str, Sequence[Allocation]]) -> Reading:
        if not reading.processes:
            return reading
        allocations = by_device.get(reading.device.uuid, ())
        processes = tuple([self._assign_process(process, allocations) for process in reading.processes])
        if same_objects(processes, reading.processes):
            return reading
        return replace(reading, processes=processes)

    def _assign_process(self, process: GpuProcess, allocations: Sequence[Allocation]) -> GpuProcess:
        found = self._find_by_host(process)
        owner = self._resolve(process, found, allocations)
        self._resolved[process.key] = (found, owner)
        return process if process.workload == owner else replace(process, workload=owner)

    def _find_by_host(self, process: GpuProcess) -> Workload:
        """The owner by host facts alone, computed once per process."""
        key, host = (process.pid, process.host.start), process.host
        entry = self._found.get(key) or self._found_before.get(key)
        if entry is None or (entry[0] is not host and entry[0] != host):
            entry = (host, owner_from_host(host, self._user_name))
        self._found[key] = entry
        return entry[1]

    def _resolve(self, process: GpuProcess, found: Workload, allocations: Sequence[Allocation]) -> Workload:
        """The owner `found`, completed from the directory once per process and directory state."""
        if self._directory is None or process.host.workload is not None:
            return found
        before = self._resolved_before.get(process.key)
        if before is not None and before[0] is found:
            return before[1]
        return self._directory.resolve_owner(found, allocations, computes=process.computes)
