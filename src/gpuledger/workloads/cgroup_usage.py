"""Reads what the cgroups of the owners of processes used of the machine: CPU time and memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpuledger.host.files import read_text
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import CgroupUsage, Snapshot
from gpuledger.model.workload import Workload
from gpuledger.workloads.cgroup import CgroupOwner, parse_cgroup
from gpuledger.workloads.slurm.job_cgroups import JobCgroup, find_job_cgroups

# Seconds between two readings: four small files of each owner.
_PERIOD: Final = 10.0
# What cgroup v1 reports without a limit: the largest number of pages.
_NO_LIMIT: Final = 1 << 62
_NANO_PER_MICRO: Final = 1000
# Controllers of cgroup v1, and the fields of `_Folders` that have their folder.
_CONTROLLERS: Final = (("cpuacct", "cpu"), ("memory", "memory"), ("cpuset", "cpuset"))


@dataclass(frozen=True, slots=True)
class _Folders:
    """The cgroup of an owner: one folder of cgroup v2, or one of each hierarchy of v1; None without it.

    `sluid` is that of a Slurm job in its name.
    """

    unified: Path | None = None
    cpu: Path | None = None
    memory: Path | None = None
    cpuset: Path | None = None
    sluid: str = ""


class CgroupUsageReader:
    """Adds to a Snapshot what the cgroups of its owners used so far, every ten seconds. Never raises.

    `root` is the cgroup tree of this machine (/sys/fs/cgroup): use it only for processes of this machine.
    Owners are pods, jobs, containers and units, as the cgroup of a process names them, and Slurm jobs that
    have a Device allocated.
    """

    def __init__(self, root: Path, period: float = _PERIOD) -> None:
        self._root = root
        self._period = period
        self._due: float | None = None
        # By text of /proc/PID/cgroup and its owner, of the processes of the last reading.
        self._known: dict[tuple[str, Workload], _Folders | None] = {}
        self._before = self._known
        # Slurm jobs by number, as last searched for.
        self._jobs: dict[str, _Folders] = {}

    def add(self, snapshot: Snapshot) -> Snapshot:
        """The Snapshot with the readings; the same object if it is not time, or nothing can be read."""
        now = snapshot.elapsed
        if self._due is not None and 0 < self._due - now <= self._period:
            return snapshot
        self._due = now + self._period
        self._before, self._known = self._known, {}
        owners: dict[_Folders, Workload] = {}
        for process in snapshot.processes:
            folders = self._folders(process)
            if folders is not None:
                owners.setdefault(folders, process.workload)
        self._add_jobs(snapshot, owners)
        readings = [_read(self._root, folders, owner) for folders, owner in owners.items()]
        found = tuple([usage for usage in readings if usage is not None])
        return replace(snapshot, cgroups=found) if found else snapshot

    def _add_jobs(self, snapshot: Snapshot, owners: dict[_Folders, Workload]) -> None:
        """Add the Slurm jobs that have a Device allocated and no process on it."""
        known = {owner.job for owner in owners.values() if owner.kind == "slurm"}
        for allocation in snapshot.allocations:
            owner = allocation.workload
            if owner.kind != "slurm" or owner.job in known or owner.found_by == "simulator":
                continue
            known.add(owner.job)
            if owner.job not in self._jobs:
                self._jobs = _job_folders(self._root)
            if owner.job in self._jobs:
                owners.setdefault(self._jobs[owner.job], owner)

    def _folders(self, process: GpuProcess) -> _Folders | None:
        """The cgroup of the owner of a process; None if its path does not name that owner."""
        text, owner = process.host.cgroup, process.workload
        if not text or process.host.workload is not None:
            return None
        key = (text, owner)
        if key in self._before:
            self._known[key] = self._before[key]
        elif key not in self._known:
            named = _find_named(parse_cgroup(text), owner)
            folders = _Folders() if named is None else _owner_folders(self._root, text, named)
            self._known[key] = None if folders == _Folders() else folders
        return self._known[key]


def _find_named(found: CgroupOwner, owner: Workload) -> CgroupOwner | None:
    """The part of a cgroup's path that names the owner of its process, the innermost first; None without one.

    The hash of a static pod and the SLUID of a Slurm job cannot be compared with the owner: they count if no
    other part names it.
    """
    levels = [found]
    while (outer := levels[-1].outer) is not None:
        levels.append(outer)
    same = [one for one in levels if one.kind == owner.kind]
    exact = [one for one in same if _is_named(one, owner)]
    others = [one for one in same if _has_other_name(one, owner)]
    return next(iter(exact or others), None)


def _is_named(found: CgroupOwner, owner: Workload) -> bool:
    if owner.kind == "pod":
        return found.pod_uid == owner.pod_uid
    if owner.kind == "container":
        # The cgroup has the name of a container only if it has no id.
        return found.container_id == owner.container_id and found.container in ("", owner.container)
    return (found.job, found.unit) == (owner.job, owner.unit)


def _has_other_name(found: CgroupOwner, owner: Workload) -> bool:
    if owner.kind == "pod":
        return bool(found.pod_uid) and "-" not in found.pod_uid and found.pod_uid != owner.inner_pod_uid
    return owner.kind == "slurm" and not found.job.isdigit()


def _job_folders(root: Path) -> dict[str, _Folders]:
    """The cgroups of all Slurm jobs by number, unless jobs of several users or slurmd have it."""
    try:
        jobs = find_job_cgroups(root)
    except GpuledgerError:
        return {}
    numbers = Counter(job.name for job in jobs)
    return {
        job.name: _Folders(**dict(_hierarchies(root, job)), sluid=job.name if job.has_sluid else "")
        for job in jobs
        if numbers[job.name] == 1
    }


def _hierarchies(root: Path, job: JobCgroup) -> Iterator[tuple[str, Path]]:
    for folder in job.folders:
        controllers = folder.relative_to(root).parts[0].split(",")
        names = [name for controller, name in _CONTROLLERS if controller in controllers]
        is_unified = not names and (folder.parent.name.endswith(".scope") or controllers == ["unified"])
        for name in names or (["unified"] if is_unified else []):
            yield name, folder


def _identity(owner: CgroupOwner) -> str:
    """What identifies an owner of its kind: a job can have a container inside, and a container a unit."""
    container = owner.container_id or owner.container
    return {"pod": owner.pod_uid, "container": container, "unit": owner.unit}.get(owner.kind, owner.job)


def _owner_folders(root: Path, text: str, owner: CgroupOwner) -> _Folders:
    """The folders of the outermost cgroup that names the owner, in each hierarchy of /proc/PID/cgroup."""
    if owner.kind not in ("pod", "slurm", "job", "container", "unit"):
        return _Folders()
    found: dict[str, Path] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        folder = _outermost(path, owner)
        if folder is None:
            continue
        if not controllers:
            # Beside v1, the v2 hierarchy has no controllers, or those in `unified`.
            is_hybrid = (root / "unified").is_dir()
            found["unified"] = root / "unified" / folder if is_hybrid else root / folder
        for controller, name in _CONTROLLERS:
            if controller in controllers.split(","):
                found[name] = root / controller / folder
    sluid = owner.job if found and owner.kind == "slurm" and not owner.job.isdigit() else ""
    return _Folders(**found, sluid=sluid)


def _outermost(path: str, owner: CgroupOwner) -> str | None:
    """The shortest part of a cgroup path, relative to the root, that names the owner; None without one."""
    parts = path.removesuffix(" (deleted)").strip("/").split("/")
    if ".." in parts:
        # Seen from a cgroup namespace: the path of the machine is not known.
        return None
    for count in range(1, len(parts) + 1):
        folder = "/".join(parts[:count])
        named = parse_cgroup(f"0::/{folder}")
        if named.kind == owner.kind and _identity(named) == _identity(owner):
            return folder
    return None


def _read(root: Path, folders: _Folders, owner: Workload) -> CgroupUsage | None:
    """The values of a cgroup; None if there is none of CPU time and memory."""
    cpu, peak, is_sampled = _cpu(folders), _number(folders.unified, "memory.peak"), False
    if peak is None:
        peak = _number(folders.memory, "memory.max_usage_in_bytes")
    if peak is None:
        # Linux before 5.19.
        peak = _number(folders.unified, "memory.current")
        is_sampled = peak is not None
    if cpu is None and peak is None:
        return None
    limit = _memory_limit(root, folders)
    return CgroupUsage(
        owner,
        cpu,
        peak,
        is_sampled,
        _machine_memory() if limit is None else limit,
        _cpus(root, folders),
        limit is not None,
        folders.sluid,
    )


def _memory_limit(root: Path, folders: _Folders) -> int | None:
    """The lowest limit of the cgroup and of those around it in bytes; None without one."""
    limits = [
        limit
        for folder, name in ((folders.unified, "memory.max"), (folders.memory, "memory.limit_in_bytes"))
        for around in _with_parents(root, folder)
        if (limit := _number(around, name)) is not None and limit < _NO_LIMIT
    ]
    return min(limits, default=None)


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _cpus(root: Path, folders: _Folders) -> int | None:
    """The number of CPUs of the cgroup: a folder without the file has those of the folder around it."""
    for folder, name in (
        (folders.cpuset, "cpuset.effective_cpus"),
        (folders.unified, "cpuset.cpus.effective"),
    ):
        for around in _with_parents(root, folder):
            count = _cpu_count(_text(around, name))
            if count is not None:
                return count
    return os.cpu_count()


def _with_parents(root: Path, folder: Path | None) -> Iterator[Path]:
    """The folder and those around it, up to the root of the tree."""
    while folder is not None and folder.is_relative_to(root):
        yield folder
        folder = folder.parent


def _cpu(folders: _Folders) -> int | None:
    """CPU time in microseconds."""
    for line in _text(folders.unified, "cpu.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec" and value.isdecimal():
            return int(value)
    nanoseconds = _number(folders.cpu, "cpuacct.usage")
    return None if nanoseconds is None else nanoseconds // _NANO_PER_MICRO


def _text(folder: Path | None, name: str) -> str:
    return "" if folder is None else read_text(f"{folder}/{name}").strip()


def _number(folder: Path | None, name: str) -> int | None:
    text = _text(folder, name)
    return int(text) if text.isdecimal() else None


def _cpu_count(ranges: str) -> int | None:
    """The number of CPUs in a list such as `0-3,8`; None if it is empty or not such a list."""
    count = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return None
        count += int(last or first) - int(first) + 1
    return count
