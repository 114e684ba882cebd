"""Gives every process of a Snapshot its Workload, from what its Host says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessKey, Start
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import AWAITED, Allocation, Workload
from gpuledger.workloads.cgroup import CgroupOwner, owner
from gpuledger.workloads.device_index import same_objects

UserName = Callable[[int], str]


def workload(host: HostFacts, user_name: UserName = str) -> Workload:
    """The owner of one process; `missing` is empty when nothing more is to be found out.

    A Host that knows the owner itself (simulator, replay) is believed. Else the cgroup tells: a pod or
    container by its id, its name to come (`pod_name`, `container_name`); a job, a unit or a login. Where
    it tells nothing, the user of the process is the deepest answer there is, and `missing` is the Host's
    reason or the cgroup's (`no_cgroup`, `cgroup_namespace`, `unknown_cgroup`).

    `user` is the one whose login or job it is where the cgroup tells that (so a root process under sudo is
    its caller's), else the process's own. `user_name` names a uid that the Host did not.
    """
    if host.workload is not None:
        return host.workload if host.workload.user else _with_user(host.workload, host.user)
    found = owner(host.cgroup)
    user = host.user
    if found.uid is not None and found.uid != host.uid:
        user = user_name(found.uid)
    if found.kind == "unknown":
        return _by_user(user, host.missing or found.missing)
    return _by_cgroup(found, user)


class Knowledge(Protocol):
    """What the maps of owners know beyond a process's own cgroup. Nothing here may block."""

    def moment(self) -> tuple[object, ...]:
        """The values that answers rest on: while each is the same object, so are the answers."""

    def allocations(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        """Devices as they were handed out; the same object while nothing changed."""

    def join(self, found: Workload, handed: Sequence[Allocation], *, computes: bool) -> Workload:
        """The owner, from what its cgroup told and to whom its Device was handed."""

    def nudge(self) -> None:
        """Somebody's name is still missing."""


class Workloads:
    """Names Snapshots, tick after tick. Remembers the processes of the last Snapshot, and no other.

    Nothing is read or joined twice for a process while neither its Host's facts nor the maps change.
    """

    def __init__(self, user_name: UserName = str, knowledge: Knowledge | None = None) -> None:
        self._user_name = user_name
        self._knowledge = knowledge
        self._found: dict[tuple[int, Start], tuple[HostFacts, Workload]] = {}
        self._joined: dict[ProcessKey, tuple[Workload, Workload]] = {}
        self._moment: tuple[object, ...] = ()
        self._devices: tuple[Device, ...] = ()
        self._awaited: set[ProcessKey] = set()

    @property
    def remembered(self) -> int:
        """How many processes are held in memory."""
        return len(self._found)

    def name(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the Workload of every process filled in; itself when all were already so."""
        handed = snapshot.allocations
        if self._knowledge is not None:
            handed = self._knowledge.allocations(self._devices_of(snapshot))
            moment = (*self._knowledge.moment(), handed)
            if not same_objects(moment, self._moment):
                self._moment, self._joined = moment, {}
        turn = _Turn(self, handed)
        readings = tuple([turn.reading(reading) for reading in snapshot.readings])
        self._found, self._joined = turn.found, turn.joined
        # Once for each newcomer: who stays without a name is not asked for every second.
        if self._knowledge is not None and turn.awaited - self._awaited:
            self._knowledge.nudge()
        self._awaited = turn.awaited
        if handed is snapshot.allocations and same_objects(readings, snapshot.readings):
            return snapshot
        return replace(snapshot, readings=readings, allocations=handed)

    def _devices_of(self, snapshot: Snapshot) -> tuple[Device, ...]:
        devices = tuple([reading.device for reading in snapshot.readings])
        if not same_objects(devices, self._devices):
            self._devices = devices
        return self._devices

    def find(
        self, process: GpuProcess, found: dict[tuple[int, Start], tuple[HostFacts, Workload]]
    ) -> Workload:
        """What the Host's facts tell of the owner, looked into once per process."""
        key, host = (process.pid, process.host.start), process.host
        entry = found.get(key) or self._found.get(key)
        if entry is None or (entry[0] is not host and entry[0] != host):
            entry = (host, workload(host, self._user_name))
        found[key] = entry
        return entry[1]

    def join(self, process: GpuProcess, found: Workload, handed: Sequence[Allocation]) -> Workload:
        """That joined with what the maps know, once per process and state of the maps."""
        if self._knowledge is None or process.host.workload is not None:
            return found
        before = self._joined.get(process.key)
        if before is not None and before[0] is found:
            return before[1]
        return self._knowledge.join(found, handed, computes=process.computes)


class _Turn:
    """The naming of one Snapshot, and what it found out on the way, for the next one."""

    def __init__(self, names: Workloads, handed: tuple[Allocation, ...]) -> None:
        self._names = names
        self._handed: dict[str, list[Allocation]] = {}
        for item in handed:
            self._handed.setdefault(item.device.uuid, []).append(item)
        self.found: dict[tuple[int, Start], tuple[HostFacts, Workload]] = {}
        self.joined: dict[ProcessKey, tuple[Workload, Workload]] = {}
        self.awaited: set[ProcessKey] = set()

    def reading(self, reading: Reading) -> Reading:
        if not reading.processes:
            return reading
        handed = self._handed.get(reading.device.uuid, ())
        named = tuple([self._process(process, handed) for process in reading.processes])
        return reading if same_objects(named, reading.processes) else replace(reading, processes=named)

    def _process(self, process: GpuProcess, handed: Sequence[Allocation]) -> GpuProcess:
        found = self._names.find(process, self.found)
        owner = self._names.join(process, found, handed)
        self.joined[process.key] = (found, owner)
        if owner.missing in AWAITED:
            self.awaited.add(process.key)
        return process if process.workload == owner else replace(process, workload=owner)


def _by_cgroup(found: CgroupOwner, user: str) -> Workload:
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


def _by_user(user: str, missing: str) -> Workload:
    if not user:
        return Workload(missing=missing)
    return Workload(kind="user", user=user, found_by="uid", missing=missing)


def _with_user(known: Workload, user: str) -> Workload:
    return replace(known, user=user) if user else known
