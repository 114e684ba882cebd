"""Gives every process of a Snapshot its Workload, from what its Host says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuledger.model.process import GpuProcess, HostFacts, Start
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.workload import Workload
from gpuledger.workloads.cgroup import CgroupOwner, owner

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


class Workloads:
    """Names Snapshots, tick after tick. Remembers each `(pid, start)` of the last Snapshot, and no other."""

    def __init__(self, user_name: UserName = str) -> None:
        self._user_name = user_name
        self._known: dict[tuple[int, Start], tuple[HostFacts, Workload]] = {}

    @property
    def remembered(self) -> int:
        """How many processes are held in memory."""
        return len(self._known)

    def name(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the Workload of every process filled in; itself when all were already so."""
        seen: dict[tuple[int, Start], tuple[HostFacts, Workload]] = {}
        readings = tuple([self._name_reading(reading, seen) for reading in snapshot.readings])
        self._known = seen
        if all(new is old for new, old in zip(readings, snapshot.readings, strict=True)):
            return snapshot
        return replace(snapshot, readings=readings)

    def _name_reading(
        self, reading: Reading, seen: dict[tuple[int, Start], tuple[HostFacts, Workload]]
    ) -> Reading:
        if not reading.processes:
            return reading
        named = tuple([self._name_process(process, seen) for process in reading.processes])
        if all(new is old for new, old in zip(named, reading.processes, strict=True)):
            return reading
        return replace(reading, processes=named)

    def _name_process(
        self, process: GpuProcess, seen: dict[tuple[int, Start], tuple[HostFacts, Workload]]
    ) -> GpuProcess:
        key = (process.pid, process.host.start)
        entry = seen.get(key) or self._known.get(key)
        if entry is None or (entry[0] is not process.host and entry[0] != process.host):
            entry = (process.host, workload(process.host, self._user_name))
        seen[key] = entry
        return process if process.workload == entry[1] else replace(process, workload=entry[1])


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
