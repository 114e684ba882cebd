"""Finds Slurm jobs, their steps and their processes in the cgroup tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from gpuledger.host.files import folder_names, read_text
from gpuledger.model.errors import GpuledgerError

# Places of Slurm's scope under systemd: system.slice, the slice that CgroupSlice names, and the cgroup of
# a container that slurmd runs in.
_SCOPES: Final = (
    "*.slice/*slurmstepd.scope",
    "*.slice/*.slice/*slurmstepd.scope",
    "*.slice/*.scope/system.slice/*slurmstepd.scope",
)
_V2_JOB: Final = re.compile(r"job_(\d{1,20})|(s[0-9A-HJKMNP-TV-Z]{13})", re.ASCII)
_V1_JOB: Final = re.compile(r"job_(\d{1,20})", re.ASCII)
_V1_USER: Final = re.compile(r"uid_(\d{1,10})", re.ASCII)
_V1_BASE: Final = re.compile(r"slurm(?:_.+)?")
_SCOPE: Final = re.compile(r"(?:.+_)?slurmstepd\.scope")


# Name, user and slurmd.
JobKey = tuple[str, int | None, str]


class JobCgroup(NamedTuple):
    """The cgroup directories of one job: one on cgroup v2, one per hierarchy on v1.

    `name` is the job number, or the SLUID if Slurm writes that. `uid` is the user of the job, known only
    on v1. `slurmd` is the cgroup of the slurmd that runs it, the same in all hierarchies.
    """

    name: str
    uid: int | None
    slurmd: str
    folders: tuple[Path, ...]

    @property
    def key(self) -> JobKey:
        """What distinguishes it from other jobs of the machine."""
        return self.name, self.uid, self.slurmd

    @property
    def has_sluid(self) -> bool:
        """Whether `name` is a SLUID, not a number."""
        return not self.name.isdigit()


class JobProcess(NamedTuple):
    """One process in a job. `daemon` marks the slurmstepd of a step (known only on cgroup v2).

    `step` is the name of the step such as `batch` or `0`, empty if its cgroup is that of the job.
    """

    pid: int
    daemon: bool
    step: str = ""


def find_job_cgroups(root: Path) -> list[JobCgroup]:
    """Every job below `root` (/sys/fs/cgroup) in cgroup v1, v2 and hybrid layouts, including empty jobs.

    Each slurmd and, on v1, each user has other jobs, also with one number: parts of a job, those of two
    clusters, or one of which v1 has left a cgroup behind.
    Directories that vanish or cannot be read are skipped. Raises GpuledgerError if `root` is no directory.
    """
    if not root.is_dir():
        raise GpuledgerError(
            f"no cgroup tree at {root}; mount the machine's /sys/fs/cgroup and set its path with "
            "--slurm-cgroup-root"
        )
    found: dict[JobKey, list[Path]] = {}
    for name, uid, slurmd, folder in (*_on_v2(root), *_on_v1(root)):
        found.setdefault((name, uid, slurmd), []).append(folder)
    return [JobCgroup(*key, tuple(folders)) for key, folders in found.items()]


def has_slurm_cgroup(root: Path) -> bool:
    """Whether Slurm has created its cgroup below `root`; true even without a running job."""
    return any(True for _ in _scopes(root)) or any(True for _ in _v1_bases(root))


def is_populated(job: JobCgroup) -> bool:
    """Whether the job has any process, at any depth."""
    return any(_is_populated(folder) for folder in job.folders)


def job_processes(job: JobCgroup, most: int) -> Iterator[JobProcess]:
    """The processes of a job by step, each once, at most so many of each cgroup: the oldest, as a rule.

    Cgroups that vanish meanwhile are skipped.
    """
    seen: set[int] = set()
    for folder in job.folders:
        for path in _folders(folder):
            # step_0/slurm holds the daemon, step_0/user/task_0 the processes of the user.
            parts = path.relative_to(folder).parts
            step = parts[0].removeprefix("step_") if parts else ""
            daemon = parts[1:2] == ("slurm",)
            for pid in islice(_pids(path), most):
                if pid not in seen:
                    seen.add(pid)
                    yield JobProcess(pid, daemon, step)


def job_steps(job: JobCgroup) -> tuple[str, ...]:
    """Directory names of the steps of a job: `step_extern`, `step_batch`, `step_0`, ..."""
    names = {path.name for folder in job.folders for path in _children(folder)}
    return tuple(sorted(name for name in names if name.startswith("step_")))


def _on_v2(root: Path) -> Iterator[tuple[str, int | None, str, Path]]:
    for scope in _scopes(root):
        for folder in _children(scope):
            if match := _V2_JOB.fullmatch(folder.name):
                yield match[1] or match[2], None, str(scope), folder


def _on_v1(root: Path) -> Iterator[tuple[str, int | None, str, Path]]:
    for base in _v1_bases(root):
        for user in _children(base):
            if owner := _V1_USER.fullmatch(user.name):
                for folder in _children(user):
                    if job := _V1_JOB.fullmatch(folder.name):
                        yield job[1], int(owner[1]), base.name, folder


def _scopes(root: Path) -> Iterator[Path]:
    # `unified` is the v2 hierarchy of the hybrid layout.
    for base in (root, root / "unified"):
        for pattern in _SCOPES:
            yield from sorted(path for path in base.glob(pattern) if _SCOPE.fullmatch(path.name))


def _v1_bases(root: Path) -> Iterator[Path]:
    # Without links: `cpu` is a link to `cpu,cpuacct`.
    for hierarchy in _children(root):
        yield from (path for path in _children(hierarchy) if _V1_BASE.fullmatch(path.name))


def _is_populated(folder: Path) -> bool:
    # v2 has cgroup.events; on v1 the tree is walked.
    for line in read_text(f"{folder}/cgroup.events").splitlines():
        if line.startswith("populated "):
            return line != "populated 0"
    return any(True for path in _folders(folder) for _ in _pids(path))


def _folders(folder: Path) -> Iterator[Path]:
    yield folder
    for child in _children(folder):
        yield from _folders(child)


def _children(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(folder_names(str(folder)))]


def _pids(folder: Path) -> Iterator[int]:
    # A 0 is a process outside our pid namespace.
    words = read_text(f"{folder}/cgroup.procs").split()
    yield from sorted(int(word) for word in words if word.isdecimal())
