"""Slurm jobs of this machine, the GPUs in their environments, and their Allocations. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from gpuledger.model.devices import Device
from gpuledger.model.text import decode_utf8
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef, parse_uuids
from gpuledger.workloads.slurm.gres_shares import SHARDS, SHARE_VARIABLES
from gpuledger.workloads.slurm.job_identity import IDENTITY_VARIABLES, Environment


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One running job, with or without GPU processes.

    `job` is the job number, or the SLUID if the number is not known. `account`, `partition` and `name` are
    those of the job, `array_job` is the id of its array and `array_task` its number there; empty if they are
    not known. `uid` is that of its user, None if it is not known. `devices` are its allocated GPUs;
    `found_by` is the evidence (`slurm_cgroup`, `slurm_environ`). No devices and an empty `missing` mean a job
    without GPUs. Otherwise `missing` says why the GPUs are not known: `permission` (only root and the user
    can read the environment), `no_environment` (no process has Slurm's variables), `unmatched` (the job has
    GPUs, but their names match no device). `fraction` is the part of each device that the job has: 1 for
    whole GPUs, None if it is not known.
    """

    job: str
    sluid: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    devices: tuple[DeviceRef, ...] = ()
    found_by: str = ""
    missing: str = ""
    fraction: Fraction | None = None
    name: str = ""
    array_job: str = ""
    array_task: str = ""
    uid: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The job's facts by field of Workload."""
        return {
            "slurm_account": self.account,
            "partition": self.partition,
            "job_name": self.name,
            "array_job": self.array_job,
            "array_task": self.array_task,
        }


def join_jobs(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """The jobs, each once: several slurmd of this machine can run one job, which has one user.

    It has the GPUs that each of them allocated, and the facts that the processes of one of them show.
    """
    by_number: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        by_number.setdefault(job.job, []).append(job)
    joined: list[SlurmJob] = []
    for parts in by_number.values():
        if len({job.uid for job in parts} - {None}) > 1:
            joined += parts
            continue
        with_gpus = [job for job in parts if job.devices]
        fractions = {job.fraction for job in with_gpus}
        joined.append(
            replace(
                min(parts, key=lambda job: (job.uid is None, not job.name)),
                devices=tuple(dict.fromkeys(ref for job in parts for ref in job.devices)),
                found_by=next((job.found_by for job in with_gpus), ""),
                missing=next((job.missing for job in parts if job.missing), ""),
                fraction=fractions.pop() if len(fractions) == 1 else None,
            )
            if len(parts) > 1
            else parts[0]
        )
    return joined


def _unambiguous(named: Sequence[tuple[str, SlurmJob]]) -> dict[str, SlurmJob]:
    """The jobs by name, without names of several."""
    counts = Counter(name for name, _ in named)
    return {name: job for name, job in named if counts[name] == 1}


class SlurmJobs:
    """The jobs at one moment, by number, by SLUID and by `ARRAY_TASK` as `squeue` writes it. Immutable.

    A number that two jobs have, of two clusters, names neither.
    `stale` is the number of job cgroups without a process, left behind by ended jobs.
    """

    def __init__(self, jobs: Iterable[SlurmJob] = (), stale: int = 0) -> None:
        self.jobs = tuple(sorted(jobs, key=lambda item: (len(item.job), item.job)))
        self.stale = stale
        tasks = [(f"{item.array_job}_{item.array_task}", item) for item in self.jobs if item.array_task]
        # Users can change these variables: two jobs that claim to be the same task are not known by it.
        self._by_name = _unambiguous(tasks)
        self._by_name |= {item.sluid: item for item in self.jobs if item.sluid}
        self._by_name |= _unambiguous([(item.job, item) for item in self.jobs])

    def __len__(self) -> int:
        return len(self.jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlurmJobs) and (self.jobs, self.stale) == (other.jobs, other.stale)

    def __hash__(self) -> int:
        return hash((self.jobs, self.stale))

    def __iter__(self) -> Iterator[SlurmJob]:
        return iter(self.jobs)

    def get(self, name: str) -> SlurmJob | None:
        """The job with this number or SLUID, or the task of an array such as 123_4."""
        return self._by_name.get(name)

    @property
    def missing(self) -> Mapping[str, int]:
        """Number of jobs with unknown devices, by reason."""
        return Counter(item.missing for item in self.jobs if item.missing)


NO_JOBS = SlurmJobs()


_VISIBLE_DEVICES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
)
# The number of nodes of a job, and of the parts of a heterogeneous one, which have different nodes.
_SIZES: Final = ("SLURM_JOB_NUM_NODES", "SLURM_HET_SIZE")
_VARIABLES: Final = frozenset(
    (
        *IDENTITY_VARIABLES,
        "SLURMD_NODENAME",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_GPUS_ON_NODE",
        *_SIZES,
        *SHARE_VARIABLES,
        *_VISIBLE_DEVICES,
    )
)
# The steps that have all GPUs of the job on their node.
_STEPS_OF_JOB: Final = ("batch", "interactive")
_NUMBERS: Final = re.compile(r"\d{1,4}(?:,\d{1,4})*", re.ASCII)
# slurmstepd sets its process title to this. Step numbers such as 4294967290 stand for named steps.
_TITLE: Final = re.compile(rb"slurmstepd: \[(\d{1,20})\.", re.ASCII)


def parse_environment(raw: bytes) -> Environment:
    """The GPU and job variables of /proc/PID/environ."""
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        key = decode_utf8(name[:64])
        if equals and key in _VARIABLES and value:
            found.setdefault(key, decode_utf8(value[:4096]))
    return found


def job_id_in_title(cmdline: bytes) -> str:
    """The job number in the title of a slurmstepd; empty for any other process."""
    match = _TITLE.match(cmdline)
    return match[1].decode("ascii") if match else ""


def without_inherited_gpus(environment: Environment, step: str) -> Environment:
    """The variables of a process in this step without those that describe GPUs of another node or job.

    slurmstepd writes SLURM_JOB_GPUS for batch and interactive steps and for those of an external launcher,
    and SLURM_STEP_GPUS for all others. The other one is inherited: by srun from the node of the batch script,
    by sbatch from the step in which a user called it.
    """
    if step in _STEPS_OF_JOB:
        inherited = "SLURM_STEP_GPUS"
    elif _has_other_nodes(environment) and (
        "SLURM_STEP_GPUS" in environment or "SLURM_GPUS_ON_NODE" not in environment
    ):
        inherited = "SLURM_JOB_GPUS"
    else:
        return environment
    return {name: value for name, value in environment.items() if name != inherited}


def _has_other_nodes(environment: Environment) -> bool:
    return any(environment.get(name, "1") != "1" for name in _SIZES)


def gpus_in_environments(environments: Sequence[Environment]) -> tuple[DeviceRef, ...]:
    """The GPUs of one job, from the environments of its processes.

    SLURM_JOB_GPUS lists the GPUs of the whole job, so the first environment that has it is enough;
    SLURM_STEP_GPUS lists those of one step, so all steps are combined. The refs are of kind `number`, and
    gres.conf defines what the numbers count. If one process, or all together, list as many UUIDs as there are
    numbers, the UUIDs are returned instead.
    """
    whole = next((found for item in environments if (found := _numbers(item.get("SLURM_JOB_GPUS")))), ())
    by_step = [_numbers(item.get("SLURM_STEP_GPUS")) for item in environments]
    numbers = whole or tuple(dict.fromkeys(ref for refs in by_step for ref in refs))
    listed = (parse_uuids(item.get(name, "")) for item in environments for name in _VISIBLE_DEVICES)
    seen = [tuple(dict.fromkeys(refs)) for refs in listed]
    together = tuple(dict.fromkeys(ref for refs in seen for ref in refs))
    if numbers:
        return next((uuids for uuids in (*seen, together) if len(uuids) == len(numbers)), numbers)
    return together


def has_gpus(environments: Sequence[Environment]) -> bool:
    """Whether Slurm allocated any GPU or shard on this machine to the job.

    Where both shards and MPS are gres, Slurm 22.05 removes the numbers of the GPUs from jobs with shards.
    """
    counts = (item.get(name, "0") for item in environments for name in ("SLURM_GPUS_ON_NODE", SHARDS))
    return any(count.lstrip("0").isdigit() for count in counts)


def _numbers(text: str | None) -> tuple[DeviceRef, ...]:
    if not text or not _NUMBERS.fullmatch(text):
        return ()
    return tuple(DeviceRef("number", str(int(word))) for word in text.split(","))


def slurm_allocations(jobs: SlurmJobs, devices: Sequence[Device]) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of jobs. Names without a Device are skipped."""
    index = DeviceIndex(devices)
    return tuple(item for job in jobs for item in _of_job(job, index))


def _of_job(job: SlurmJob, index: DeviceIndex) -> Iterator[Allocation]:
    workload = Workload(
        kind="slurm",
        job=job.job,
        user=job.user,
        found_by=job.found_by,
        **job.facts,
    )
    found = dict.fromkeys(device for ref in job.devices for device in index.find(ref))
    for device in found:
        yield Allocation(device, workload, job.found_by, fraction=job.fraction)
