"""Reads the jobs of Slurm on this machine: who they are, whose, and which GPUs they have."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from gpuledger.host.files import Read, read_whole
from gpuledger.host.procfs import real_uid
from gpuledger.model.text import clean_name, from_bytes
from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.gres import UNKNOWN_NUMBERING, USUAL, Numbering, numbering, parse_gres
from gpuledger.workloads.slurm.job import (
    NO_JOBS,
    Environment,
    SlurmJob,
    SlurmJobs,
    gpus_said,
    has_gpus,
    job_in_title,
    parse_environment,
)
from gpuledger.workloads.slurm.tree import JobCgroup, JobProcess, find_jobs, is_populated, processes, steps

# The same in every driver (NV_MAJOR_DEVICE_NUMBER); 254 and 255 are nvidia-modeset and nvidiactl.
_NVIDIA_MAJOR: Final = 195
_FIRST_OF_NO_GPU: Final = 254
_RULE: Final = re.compile(r"([abc]) (\*|\d+):(\*|\d+) [rwm]+", re.ASCII)
_GPU_FILE: Final = re.compile(r"/dev/nvidia(\d{1,3})", re.ASCII)
_CAP_FILE: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d{1,6})", re.ASCII)
_CAPS_MAJOR: Final = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE | re.ASCII)
# /proc/driver/nvidia-caps/mig-minors: `gpu1/gi3/access 111` and `gpu1/gi3/ci0/access 112`, gpu by minor.
_MIG_MINOR: Final = re.compile(r"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Caps:
    """How MIG instances are guarded on this machine: the major number of their device files, and which
    `minor/gi` or `minor/gi/ci` each minor number is.
    """

    major: int | None = None
    places: dict[int, str] = field(default_factory=dict)


NO_CAPS = Caps()


def parse_caps(devices: str, mig_minors: str) -> Caps:
    """Caps by the texts of /proc/devices and /proc/driver/nvidia-caps/mig-minors."""
    major = _CAPS_MAJOR.search(devices)
    places = {
        int(match[4]): "/".join(filter(None, match.group(1, 2, 3)))
        for match in _MIG_MINOR.finditer(mig_minors)
    }
    return Caps(int(major[1]) if major else None, places)


def refs_of_rules(rules: str, caps: Caps = NO_CAPS) -> tuple[DeviceRef, ...] | None:
    """GPUs that `devices.list` of cgroup v1 allows; None where it does not tell them from one another."""
    minors: list[int] = []
    opened: list[int] = []
    for line in rules.splitlines():
        rule = _RULE.fullmatch(line.strip())
        if not rule or rule[1] == "b":
            continue
        if rule[2] == "*" or (rule[2] == str(_NVIDIA_MAJOR) and rule[3] == "*"):
            return None
        if rule[2] == str(_NVIDIA_MAJOR) and int(rule[3]) < _FIRST_OF_NO_GPU:
            minors.append(int(rule[3]))
        elif rule[2] == str(caps.major) and rule[3] != "*":
            opened.append(int(rule[3]))
    return _refs(minors, opened, caps)


def refs_of_files(files: Iterable[str], caps: Caps = NO_CAPS) -> tuple[DeviceRef, ...]:
    """The GPU, or Instance, that device files of one entry of gres.conf are; none if they are no such."""
    names = tuple(files)
    minors = [int(match[1]) for name in names if (match := _GPU_FILE.fullmatch(name))]
    opened = [int(match[1]) for name in names if (match := _CAP_FILE.fullmatch(name))]
    return _refs(minors, opened, caps)


def _refs(minors: Collection[int], opened: Iterable[int], caps: Caps) -> tuple[DeviceRef, ...]:
    places = [caps.places[minor] for minor in sorted(set(opened)) if minor in caps.places]
    # Both the GPU instance and the compute instance in it have a file: the deeper one says more.
    deepest = [place for place in places if not any(other.startswith(f"{place}/") for other in places)]
    found: list[DeviceRef] = []
    for minor in sorted(set(minors)):
        inside = [DeviceRef("mig", place) for place in deepest if place.split("/")[0] == str(minor)]
        found += inside or [DeviceRef("minor", str(minor))]
    return tuple(found)


log = logging.getLogger("gpuledger.workloads")

# Each task of a step says the same. A job of thousands is not asked through.
_MOST_PROCESSES = 32

# By which a job's directory is known again: inode, and names of steps.
_Stamp = tuple[int, tuple[str, ...]]


@dataclass(slots=True)
class _Heard:
    """What the processes of one job said."""

    environments: list[Environment] = field(default_factory=list)
    number: str = ""
    uid: int | None = None
    forbidden: bool = False


class SlurmReader:
    """Reads SlurmJobs, to be polled. Used by one thread.

    `cgroups` is the root of the tree of cgroups, `procfs` where proc is mounted, `gres` the places where
    gres.conf may be; `user_name` names a uid. Environments can be read by root, or by who has CAP_SYS_PTRACE.
    What was found out of a job is looked up again only when it begins or ends a step.
    """

    def __init__(
        self,
        cgroups: Path,
        *,
        procfs: str = "/proc",
        gres: Sequence[Path] = USUAL,
        user_name: Callable[[int], str] = str,
        read: Read = read_whole,
    ) -> None:
        self._cgroups = cgroups
        self._procfs = procfs.rstrip("/")
        self._gres = gres
        self._user_name = user_name
        self._read = read
        self._known: dict[str, tuple[_Stamp, SlurmJob]] = {}
        self._last = NO_JOBS
        self._told = False

    def read(self) -> SlurmJobs:
        """The jobs that run now, the same object while they stay the same.

        Raises GpuledgerError where there is no tree of cgroups.
        """
        known: dict[str, tuple[_Stamp, SlurmJob]] = {}
        stale = 0
        caps, lines = self._caps(), self._gres_lines()
        for cgroup in find_jobs(self._cgroups):
            if not is_populated(cgroup):
                stale += 1
                continue
            now = (_inode(cgroup), steps(cgroup))
            before, job = self._known.get(cgroup.name, (None, None))
            if job is None or before != now or job.missing:
                job = self._look(cgroup, caps, lines)
            known[cgroup.name] = (now, job)
        self._known = known
        self._tell([job for _, job in known.values()])
        found = SlurmJobs((job for _, job in known.values()), stale)
        self._last = self._last if found == self._last else found
        return self._last

    def _look(self, cgroup: JobCgroup, caps: Caps, lines: list[dict[str, str]]) -> SlurmJob:
        heard = self._listen(cgroup)
        devices, found_by, missing = self._devices(cgroup, heard, caps, lines)
        return SlurmJob(
            job=heard.number if cgroup.has_sluid and heard.number else cgroup.name,
            sluid=cgroup.name if cgroup.has_sluid else "",
            user=self._user(cgroup, heard),
            devices=devices,
            found_by=found_by,
            missing=missing,
        )

    def _devices(
        self, cgroup: JobCgroup, heard: _Heard, caps: Caps, lines: list[dict[str, str]]
    ) -> tuple[tuple[DeviceRef, ...], str, str]:
        """The devices, by what they were found, and why they were not."""
        for folder in cgroup.folders:
            rules = self._try(str(folder / "devices.list"))
            allowed = None if rules is None else refs_of_rules(from_bytes(rules), caps)
            if allowed is not None:
                return allowed, "slurm_cgroup", ""
        said = gpus_said(heard.environments)
        if not said:
            return (), "", _why_nothing(heard)
        node = next((item["SLURMD_NODENAME"] for item in heard.environments if "SLURMD_NODENAME" in item), "")
        counted = numbering(lines, node) if lines else UNKNOWN_NUMBERING
        found = [_resolved(ref, counted, caps) for ref in said]
        if not all(found):
            return (), "", "not_told"
        return tuple(ref for refs in found for ref in refs), "slurm_environ", ""

    def _listen(self, cgroup: JobCgroup) -> _Heard:
        heard = _Heard()
        for process in islice(processes(cgroup), _MOST_PROCESSES):
            if process.daemon:
                self._hear_title(process, cgroup, heard)
            else:
                self._hear(process, cgroup, heard)
        if heard.environments and not heard.number:
            heard.number = heard.environments[0]["SLURM_JOB_ID"]
        return heard

    def _hear_title(self, process: JobProcess, cgroup: JobCgroup, heard: _Heard) -> None:
        # Everybody may read a title, and no user can write that of slurmstepd.
        if cgroup.has_sluid and not heard.number:
            heard.number = job_in_title(self._try(f"{self._procfs}/{process.pid}/cmdline") or b"")

    def _hear(self, process: JobProcess, cgroup: JobCgroup, heard: _Heard) -> None:
        if heard.uid is None:
            heard.uid = self._uid(process.pid)
        try:
            found = parse_environment(self._read(f"{self._procfs}/{process.pid}/environ"))
        except PermissionError:
            heard.forbidden = True
            return
        except OSError:
            return
        # Of a login adopted by the job, and of a daemon, the environment says nothing of this job.
        if found.get("SLURM_JOB_ID", "").isdigit() and (
            cgroup.has_sluid or found["SLURM_JOB_ID"] == cgroup.name
        ):
            heard.environments.append(found)

    def _user(self, cgroup: JobCgroup, heard: _Heard) -> str:
        if cgroup.uid is not None:
            return self._user_name(cgroup.uid)
        # What the kernel says is believed before what a user can write.
        if heard.uid is not None:
            return self._user_name(heard.uid)
        for found in heard.environments:
            if name := found.get("SLURM_JOB_USER"):
                return clean_name(name)
            if found.get("SLURM_JOB_UID", "").isdigit():
                return self._user_name(int(found["SLURM_JOB_UID"]))
        return ""

    def _uid(self, pid: int) -> int | None:
        """The real uid; root is answered as None, for root runs in the jobs of others."""
        return real_uid(self._try(f"{self._procfs}/{pid}/status") or b"") or None

    def _caps(self) -> Caps:
        minors = self._try(f"{self._procfs}/driver/nvidia-caps/mig-minors")
        if minors is None:
            return NO_CAPS
        return parse_caps(from_bytes(self._try(f"{self._procfs}/devices") or b""), from_bytes(minors))

    def _gres_lines(self) -> list[dict[str, str]]:
        for path in self._gres:
            if (raw := self._try(str(path))) is not None:
                return parse_gres(from_bytes(raw))
        return []

    def _tell(self, jobs: Sequence[SlurmJob]) -> None:
        """Log why devices of jobs are not known: once, and again only after all were known."""
        reasons = {job.missing for job in jobs if job.missing}
        if "permission" in reasons and not self._told:
            log.warning(
                "GPUs allocated to Slurm jobs are told only while a process uses them: the environment of "
                "jobs is readable to root alone; run as root, or add CAP_SYS_PTRACE"
            )
        self._told = "permission" in reasons

    def _try(self, path: str) -> bytes | None:
        try:
            return self._read(path)
        except OSError:
            return None


def _why_nothing(heard: _Heard) -> str:
    """Why no process said which GPUs; empty where that is because there are none."""
    if heard.environments:
        return "not_told" if has_gpus(heard.environments) else ""
    return "permission" if heard.forbidden else "no_environment"


def _resolved(ref: DeviceRef, counted: Numbering, caps: Caps) -> tuple[DeviceRef, ...]:
    if ref.by != "number":
        return (ref,)
    if counted.by_driver:
        return (DeviceRef("index", ref.name),)
    if counted.files:
        place = int(ref.name)
        return refs_of_files(counted.files[place], caps) if place < len(counted.files) else ()
    return (ref,)


def _inode(cgroup: JobCgroup) -> int:
    try:
        return cgroup.folders[0].stat().st_ino
    except OSError:
        return 0
