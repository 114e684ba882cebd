"""Owner lookup: sets the Workload of every process in a Snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessKey, ProcessStart
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import PENDING_NAMES, Allocation, Workload
from gpuledger.workloads.cgroup import CgroupOwner, parse_cgroup
from gpuledger.workloads.device_index import same_objects

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
        return host.workload if host.workload.user else _with_user(host.workload, host.user)
    found = parse_cgroup(host.cgroup)
    user = host.user
    if found.uid is not None and found.uid != host.uid:
        user = user_name(found.uid)
    if found.kind == "unknown":
        return _from_user(user, host.missing or found.missing)
    return _from_cgroup(found, user)


class OwnerDirectory(Protocol):
    """Owner facts beyond a process's own cgroup. No method may block."""

    def identity_inputs(self) -> tuple[object, ...]:
        """Objects that all results depend on: results change only when one of these objects does."""

    def allocations(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        """All device allocations; the same object while nothing changes."""

    def resolve_owner(
        self, found: Workload, allocations: Sequence[Allocation], *, computes: bool
    ) -> Workload:
        """The owner, from its cgroup (`found`) and the allocations of its Device."""

    def nudge(self) -> None:
        """Request an early refresh: a process has an owner without a name."""


class OwnerLookup:
    """Assigns owners to the processes of one Snapshot per tick.

    Results are cached for the processes of the last Snapshot only. A process is resolved again only when its
    host facts or the owner indexes change.
    """

    def __init__(self, user_name: UserName = str, directory: OwnerDirectory | None = None) -> None:
        self._user_name = user_name
        self._directory = directory
        self._found: dict[tuple[int, ProcessStart], tuple[HostFacts, Workload]] = {}
        self._resolved: dict[ProcessKey, tuple[Workload, Workload]] = {}
        self._inputs: tuple[object, ...] = ()
        self._devices: tuple[Device, ...] = ()
        self._without_name: set[ProcessKey] = set()

    @property
    def cached_processes(self) -> int:
        """Number of processes in the cache."""
        return len(self._found)

    def assign_owners(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the Workload of every process set; the same object if nothing changes."""
        allocations = snapshot.allocations
        if self._directory is not None:
            allocations = self._directory.allocations(self._devices_of(snapshot))
            inputs = (*self._directory.identity_inputs(), allocations)
            if not same_objects(inputs, self._inputs):
                self._inputs, self._resolved = inputs, {}
        run = _SnapshotLookup(self, allocations)
        readings = tuple([run.assign_reading(reading) for reading in snapshot.readings])
        self._found, self._resolved = run.found, run.resolved
        # Once per new process: a name that remains missing must not cause a refresh every second.
        if self._directory is not None and run.without_name - self._without_name:
            self._directory.nudge()
        self._without_name = run.without_name
        if allocations is snapshot.allocations and same_objects(readings, snapshot.readings):
            return snapshot
        return replace(snapshot, readings=readings, allocations=allocations)

    def _devices_of(self, snapshot: Snapshot) -> tuple[Device, ...]:
        devices = tuple([reading.device for reading in snapshot.readings])
        if not same_objects(devices, self._devices):
            self._devices = devices
        return self._devices

    def find_by_host(
        self, process: GpuProcess, found: dict[tuple[int, ProcessStart], tuple[HostFacts, Workload]]
    ) -> Workload:
        """The owner by host facts alone, computed once per process."""
        key, host = (process.pid, process.host.start), process.host
        entry = found.get(key) or self._found.get(key)
        if entry is None or (entry[0] is not host and entry[0] != host):
            entry = (host, owner_from_host(host, self._user_name))
        found[key] = entry
        return entry[1]

    def resolve(self, process: GpuProcess, found: Workload, allocations: Sequence[Allocation]) -> Workload:
        """The owner `found`, completed from the directory once per process and directory state."""
        if self._directory is None or process.host.workload is not None:
            return found
        before = self._resolved.get(process.key)
        if before is not None and before[0] is found:
            return before[1]
        return self._directory.resolve_owner(found, allocations, computes=process.computes)


class _SnapshotLookup:
    """Owner lookup for one Snapshot; collects the cache entries for the next one."""

    def __init__(self, lookup: OwnerLookup, allocations: tuple[Allocation, ...]) -> None:
        self._lookup = lookup
        self._by_device: dict[str, list[Allocation]] = {}
        for item in allocations:
            self._by_device.setdefault(item.device.uuid, []).append(item)
        self.found: dict[tuple[int, ProcessStart], tuple[HostFacts, Workload]] = {}
        self.resolved: dict[ProcessKey, tuple[Workload, Workload]] = {}
        self.without_name: set[ProcessKey] = set()

    def assign_reading(self, reading: Reading) -> Reading:
        if not reading.processes:
            return reading
        allocations = self._by_device.get(reading.device.uuid, ())
        processes = tuple([self._assign_process(process, allocations) for process in reading.processes])
        return (
            reading if same_objects(processes, reading.processes) else replace(reading, processes=processes)
        )

    def _assign_process(self, process: GpuProcess, allocations: Sequence[Allocation]) -> GpuProcess:
        found = self._lookup.find_by_host(process, self.found)
        owner = self._lookup.resolve(process, found, allocations)
        self.resolved[process.key] = (found, owner)
        if owner.missing in PENDING_NAMES:
            self.without_name.add(process.key)
        return process if process.workload == owner else replace(process, workload=owner)


def _from_cgroup(found: CgroupOwner, user: str) -> Workload:
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


def _from_user(user: str, missing: str) -> Workload:
    if not user:
        return Workload(missing=missing)
    return Workload(kind="user", user=user, found_by="uid", missing=missing)


def _with_user(known: Workload, user: str) -> Workload:
    return replace(known, user=user) if user else known
