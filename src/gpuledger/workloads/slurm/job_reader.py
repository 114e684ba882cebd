"""Reads the Slurm jobs of this machine with their users and allocated GPUs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from gpuledger.host.files import ReadFile, read_or_none, read_text, read_whole
from gpuledger.host.procfs import parent_pid, real_uid
from gpuledger.model.text import decode_utf8
from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.device_files import (
    MigCapabilities,
    minor_of_file,
    parse_mig_capabilities,
    refs_from_device_files,
    refs_from_device_rules,
)
from gpuledger.workloads.slurm.gres_conf import GpuNumbering, gpu_numbering, node_gres, parse_gres_conf
from gpuledger.workloads.slurm.gres_shares import GresFiles, job_fraction
from gpuledger.workloads.slurm.job_cgroups import (
    JobCgroup,
    JobKey,
    JobProcess,
    find_job_cgroups,
    is_populated,
    job_processes,
    job_steps,
)
from gpuledger.workloads.slurm.job_identity import (
    Environment,
    ProcessIdentity,
    deciding_processes,
    find_job_uid,
    find_user,
    job_facts,
    job_number,
)
from gpuledger.workloads.slurm.jobs import (
    SlurmJob,
    SlurmJobs,
    gpus_in_environments,
    has_gpus,
    job_id_in_title,
    join_jobs,
    parse_environment,
    without_inherited_gpus,
)
from gpuledger.workloads.slurm.settings import GRES_CONF_PATHS

log = logging.getLogger("gpuledger.workloads")

# All processes of a task have the same variables, so a job with thousands of them is not read completely.
_MAX_PROCESSES, _MAX_PER_CGROUP = 512, 32

# Changes when a job is replaced or begins or ends a step: inode of its directory, names of its steps.
_Stamp = tuple[int, tuple[str, ...]]

_NODE: Final = "SLURMD_NODENAME"
_INCLUDE: Final = re.compile(rb"^[ \t]*include[ \t]+([^\s\0]+)[ \t]*$", re.IGNORECASE | re.MULTILINE)
# Files that include each other end here.
_MAX_INCLUDES: Final = 4
# The value of `SlurmJob.found_by` for GPUs that the device cgroup allows: these are all.
_BY_CGROUP: Final = "slurm_cgroup"


class _Source(IntEnum):
    """Where something that is known of a job is from, the least reliable first.

    PROCESS is any process of the job, SLURMSTEPD one that slurmstepd started itself.
    """

    NONE = 0
    PROCESS = 1
    SLURMSTEPD = 2
    CGROUP = 3


@dataclass(slots=True)
class _JobEvidence:
    """Facts read from the processes of one job. `job_id` is that in the title of slurmstepd."""

    processes: list[ProcessIdentity] = field(default_factory=list)
    job_id: str = ""
    forbidden: bool = False

    @property
    def environments(self) -> list[Environment]:
        """The variables of Slurm in the processes that have them."""
        return [one.environment for one in self.processes if one.environment]

    def gpus(self, numbering: GpuNumbering) -> tuple[tuple[DeviceRef, ...], _Source]:
        """The GPUs that the processes list: those that slurmstepd started itself decide.

        A user can set other UUIDs for further processes. These help only where the numbers of the first ones
        cannot be interpreted.
        """
        first = gpus_in_environments([one.environment for one in self.processes if one.first])
        if first and (numbering.is_known or all(ref.by == "uuid" for ref in first)):
            return first, _Source.SLURMSTEPD
        found = gpus_in_environments(self.environments)
        return found, _Source.PROCESS if found else _Source.NONE

    def source_of_facts(self, uid: int | None) -> _Source:
        """Which processes have the variables of the job's user."""
        deciding = deciding_processes(self.processes, uid)
        if not deciding:
            return _Source.NONE
        return _Source.SLURMSTEPD if deciding[0].first else _Source.PROCESS

    @property
    def node(self) -> str:
        """Slurm's name of this node; empty if not known."""
        return next((item[_NODE] for item in self.environments if _NODE in item), "")


class _KnownJob(NamedTuple):
    """A job as it was read.

    `facts_from` is NONE until a process shows the variables of the job: none has them before its first task
    begins. `has_machine_name` is whether its user has the name by which the machine knows the uid.
    """

    stamp: _Stamp
    job: SlurmJob
    facts_from: _Source
    gpus_from: _Source
    has_machine_name: bool = False

    def completed_by(self, before: _KnownJob) -> _KnownJob:
        """With what an earlier read of the same job showed from a better source, or beside this one.

        Between the steps of a job none of its processes may have variables of Slurm, and each step lists only
        its GPUs: the job still has its user and all its GPUs.
        """
        job, earlier = self.job, before.job
        known = self
        if self.facts_from < before.facts_from or job.uid is None:
            known = before._replace(stamp=self.stamp)
        elif before.has_machine_name and job.uid == earlier.uid:
            known = self._replace(job=replace(job, user=earlier.user), has_machine_name=True)
        source = max(self.gpus_from, before.gpus_from)
        devices, found_by = job.devices, job.found_by
        if self.gpus_from < source:
            devices, found_by = earlier.devices, earlier.found_by
        elif before.gpus_from == source < _Source.CGROUP and _kinds(devices) <= _kinds(earlier.devices):
            devices = tuple(dict.fromkeys((*earlier.devices, *devices)))
        is_same = devices == earlier.devices and job.fraction is None
        return known._replace(
            gpus_from=source,
            job=replace(
                known.job,
                # Once known, the number remains: later nothing may say it in a job with a SLUID.
                job=next((one.job for one in (job, earlier) if one.job != one.sluid), job.job),
                devices=devices,
                found_by=found_by,
                missing="" if devices else job.missing,
                fraction=earlier.fraction if is_same else job.fraction,
            ),
        )


def _kinds(devices: Iterable[DeviceRef]) -> set[str]:
    return {ref.by for ref in devices}


class SlurmReader:
    """Reads SlurmJobs for a PolledIndex. Not thread-safe.

    `cgroups` is the root of the cgroup tree, `procfs` the mount point of proc, `gres` the candidate paths of
    gres.conf; `user_name` maps a uid to the machine's name of the user, else to the number as text, `uid_of`
    such a name to the uid. Reading environments takes root or CAP_SYS_PTRACE. A job is
    read again only when it begins or ends a step, or while its devices or its variables are not known.
    """

    def __init__(
        self,
        cgroups: Path,
        *,
        procfs: str = "/proc",
        gres: Sequence[Path] = GRES_CONF_PATHS,
        user_name: Callable[[int], str] = str,
        uid_of: Callable[[str], int | None] = lambda _: None,
        read: ReadFile = read_whole,
    ) -> None:
        self._cgroups = cgroups
        self._procfs = procfs.rstrip("/")
        self._gres_paths = gres
        self._user_name = user_name
        self._uid_of = uid_of
        self._read = read
        self._known: dict[JobKey, _KnownJob] = {}
        # The files as read, and parsed: slurm.conf of a large cluster is long.
        self._gres_raw: tuple[bytes | None, ...] = ()
        self._gres = GresFiles()
        self._warned = False

    def read(self) -> SlurmJobs:
        """The jobs that run now. Raises GpuledgerError if there is no cgroup tree."""
        known: dict[JobKey, _KnownJob] = {}
        stale = 0
        minors = read_text(f"{self._procfs}/driver/nvidia-caps/mig-minors")
        caps = parse_mig_capabilities(read_text(f"{self._procfs}/devices"), minors)
        files = self._gres_files()
        for cgroup in find_job_cgroups(self._cgroups):
            if not is_populated(cgroup):
                stale += 1
                continue
            now = (_inode(cgroup), job_steps(cgroup))
            one = self._known.get(cgroup.key)
            if one is None or one.stamp != now or one.job.missing or not one.facts_from:
                before, one = one, self._read_job(cgroup, now, caps, files)
                if before is not None and before.stamp[0] == now[0]:
                    one = one.completed_by(before)
            known[cgroup.key] = one if one.has_machine_name else self._with_machine_name(one)
        self._known = known
        found = SlurmJobs(join_jobs(one.job for one in known.values()), stale)
        self._log_missing_permission(forbidden="permission" in found.missing)
        return found

    def _with_machine_name(self, known: _KnownJob) -> _KnownJob:
        """The job with the machine's name of its user, which can become known later, if it has one."""
        uid = known.job.uid
        name = "" if uid is None else self._user_name(uid)
        if not name or name == str(uid):
            return known
        return known._replace(job=replace(known.job, user=name), has_machine_name=True)

    def _read_job(
        self, cgroup: JobCgroup, stamp: _Stamp, caps: MigCapabilities, files: GresFiles
    ) -> _KnownJob:
        evidence = self._collect_evidence(cgroup)
        configured = node_gres(files.slurm, evidence.node)
        numbering = gpu_numbering(files.gres, evidence.node, configured)
        gpus, source = evidence.gpus(numbering)
        devices, found_by, missing = _find_devices(cgroup, evidence, gpus, numbering, caps)
        processes = evidence.processes
        uid = find_job_uid(processes) if cgroup.uid is None else cgroup.uid
        number = evidence.job_id or job_number(uid, processes)
        job = SlurmJob(
            job=number if cgroup.has_sluid and number else cgroup.name,
            sluid=cgroup.name if cgroup.has_sluid else "",
            user=find_user(uid, processes, self._user_name, self._uid_of),
            uid=uid,
            **job_facts(uid, processes),
            devices=devices,
            found_by=found_by,
            missing=missing,
            fraction=job_fraction(processes, files, evidence.node, numbering, gpus),
        )
        source = _Source.CGROUP if found_by == _BY_CGROUP else source if devices else _Source.NONE
        return _KnownJob(stamp, job, evidence.source_of_facts(uid), source)

    def _collect_evidence(self, cgroup: JobCgroup) -> _JobEvidence:
        evidence = _JobEvidence()
        processes = list(islice(job_processes(cgroup, _MAX_PER_CGROUP), _MAX_PROCESSES))
        statuses = {one.pid: read_or_none(f"{self._procfs}/{one.pid}/status") or b"" for one in processes}
        daemons = {one.pid for one in processes if one.daemon or self._is_v1_daemon(one, statuses, cgroup)}
        for process in processes:
            if process.pid not in daemons:
                self._read_process(process, statuses[process.pid], cgroup, daemons, evidence)
            elif cgroup.has_sluid and not evidence.job_id:
                # Readable without privileges, and no user can change the title of slurmstepd.
                title = read_or_none(f"{self._procfs}/{process.pid}/cmdline")
                evidence.job_id = job_id_in_title(title or b"")
        return evidence

    def _is_v1_daemon(self, process: JobProcess, statuses: Mapping[int, bytes], cgroup: JobCgroup) -> bool:
        """Whether this is the slurmstepd of a step on cgroup v1, which has no own cgroup there.

        A process below another one of the job is none: it is root's by a command such as sudo.
        """
        status = statuses[process.pid]
        if cgroup.uid is None or real_uid(status) != 0 or parent_pid(status) in statuses:
            return False
        title = read_or_none(f"{self._procfs}/{process.pid}/cmdline") or b""
        return job_id_in_title(title) == cgroup.name

    def _read_process(
        self,
        process: JobProcess,
        status: bytes,
        cgroup: JobCgroup,
        daemons: Collection[int],
        evidence: _JobEvidence,
    ) -> None:
        """Add what the user, the parent and the environment of a process say."""
        found: Environment = {}
        try:
            found = parse_environment(self._read(f"{self._procfs}/{process.pid}/environ"))
        except PermissionError:
            evidence.forbidden = True
        except OSError:
            pass
        first = parent_pid(status) in daemons
        one = ProcessIdentity(real_uid(status), without_inherited_gpus(found, process.step), first)
        # Ignore the environments of adopted logins and of daemons: they do not describe this job. In the
        # later parts of a heterogeneous job, slurmstepd writes the number of the first part.
        number = found.get("SLURM_JOB_ID", "")
        is_own = cgroup.has_sluid or number == cgroup.name or (first and one.agrees)
        evidence.processes.append(one if number.isdigit() and is_own else one._replace(environment={}))

    def _gres_files(self) -> GresFiles:
        """The first readable gres.conf, and the slurm.conf beside it; without any, the first slurm.conf."""
        found = [
            tuple(_read_conf(file) for file in (path, path.with_name("slurm.conf")))
            for path in self._gres_paths
        ]
        raw = next((one for one in found if one[0] is not None), next(filter(any, found), ()))
        if raw != self._gres_raw:
            self._gres_raw = raw
            self._gres = GresFiles(*(parse_gres_conf(decode_utf8(file or b"")) for file in raw))
        return self._gres

    def _log_missing_permission(self, *, forbidden: bool) -> None:
        """Log a missing permission once; again only after a read that had it."""
        if forbidden and not self._warned:
            log.warning(
                "GPUs allocated to Slurm jobs are known only while a process uses them: only root can read "
                "the environment of jobs; run as root, or add CAP_SYS_PTRACE"
            )
        self._warned = forbidden


def _read_conf(path: Path, depth: int = 0) -> bytes | None:
    """The text of a file of Slurm with those that it includes; None if it cannot be read."""
    raw = read_or_none(str(path))
    if raw is None or depth == _MAX_INCLUDES:
        return raw
    return _INCLUDE.sub(lambda found: _read_conf(path.parent / decode_utf8(found[1]), depth + 1) or b"", raw)


def _find_devices(
    cgroup: JobCgroup,
    evidence: _JobEvidence,
    gpus: Sequence[DeviceRef],
    numbering: GpuNumbering,
    caps: MigCapabilities,
) -> tuple[tuple[DeviceRef, ...], str, str]:
    """Three values: the devices, the evidence (`found_by`), and why they are not known (`missing`).

    `gpus` are those in the environments of its processes.
    """
    for folder in cgroup.folders:
        rules = read_or_none(str(folder / "devices.list"))
        allowed = None if rules is None else refs_from_device_rules(decode_utf8(rules), caps)
        if allowed is not None:
            return allowed, _BY_CGROUP, ""
    if not gpus:
        return (), "", _missing_reason(evidence)
    found = [_resolve_number(ref, numbering, caps) for ref in gpus]
    if not all(found):
        return (), "", "unmatched"
    return tuple(ref for refs in found for ref in refs), "slurm_environ", ""


def _missing_reason(evidence: _JobEvidence) -> str:
    """Why no environment lists GPUs; empty if the job has none."""
    if evidence.environments:
        return "unmatched" if has_gpus(evidence.environments) else ""
    return "permission" if evidence.forbidden else "no_environment"


def _resolve_number(ref: DeviceRef, numbering: GpuNumbering, caps: MigCapabilities) -> tuple[DeviceRef, ...]:
    if ref.by != "number":
        return (ref,)
    if numbering.by_minor:
        return (DeviceRef("minor", ref.name),)
    if numbering.by_driver:
        if numbering.vendor:
            return (DeviceRef(f"index:{numbering.vendor}", ref.name),)
        minors = [minor_of_file(*group) for group in numbering.files]
        if minors and None not in minors:
            return (DeviceRef("listed", "/".join(map(str, (ref.name, *minors)))),)
        return (DeviceRef("index", ref.name),)
    if numbering.files:
        position = int(ref.name)
        return (
            refs_from_device_files(numbering.files[position], caps) if position < len(numbering.files) else ()
        )
    return (ref,)


def _inode(cgroup: JobCgroup) -> int:
    try:
        return cgroup.folders[0].stat().st_ino
    except OSError:
        return 0
