"""Slurm jobs of this machine, the GPUs in their environments, and their Allocations. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpuledger.model.devices import Device
from gpuledger.model.text import clean_name, decode_utf8
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef, parse_uuids


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One running job, with or without GPU processes.

    `job` is the job number, or the SLUID if the number is not known. `account` and `partition` are those of
    the job, empty if they are not known. `devices` are its allocated GPUs;
    `found_by` is the evidence (`slurm_cgroup`, `slurm_environ`). No devices and an empty `missing` mean a job
    without GPUs. Otherwise `missing` says why the GPUs are not known: `permission` (only root and the user
    can read the environment), `no_environment` (no process has Slurm's variables), `unmatched` (the job has
    GPUs, but their names match no device). `is_whole` is True if Slurm allocated whole GPUs, not shards.
    """

    job: str
    sluid: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    devices: tuple[DeviceRef, ...] = ()
    found_by: str = ""
    missing: str = ""
    is_whole: bool = False


class SlurmJobs:
    """The jobs at one moment, by number and by SLUID. Immutable.

    `stale` is the number of job cgroups without a process, left behind by ended jobs.
    """

    def __init__(self, jobs: Iterable[SlurmJob] = (), stale: int = 0) -> None:
        self.jobs = tuple(sorted(jobs, key=lambda item: (len(item.job), item.job)))
        self.stale = stale
        self._by_name = {item.sluid: item for item in self.jobs if item.sluid}
        self._by_name |= {item.job: item for item in self.jobs}

    def __len__(self) -> int:
        return len(self.jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlurmJobs) and (self.jobs, self.stale) == (other.jobs, other.stale)

    def __hash__(self) -> int:
        return hash((self.jobs, self.stale))

    def __iter__(self) -> Iterator[SlurmJob]:
        return iter(self.jobs)

    def get(self, name: str) -> SlurmJob | None:
        """The job with this number or SLUID."""
        return self._by_name.get(name)

    @property
    def missing(self) -> Mapping[str, int]:
        """Number of jobs with unknown devices, by reason."""
        return Counter(item.missing for item in self.jobs if item.missing)


NO_JOBS = SlurmJobs()


_VISIBLE_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_VARIABLES: Final = frozenset(
    (
        "SLURM_JOB_ID",
        "SLURM_JOB_USER",
        "SLURM_JOB_UID",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_PARTITION",
        "SLURMD_NODENAME",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_GPUS_ON_NODE",
        "SLURM_SHARDS_ON_NODE",
        *_VISIBLE_DEVICES,
    )
)
_NUMBERS: Final = re.compile(r"\d{1,4}(?:,\d{1,4})*", re.ASCII)
# slurmstepd sets its process title to this. Step numbers such as 4294967290 stand for named steps.
_TITLE: Final = re.compile(rb"slurmstepd: \[(\d{1,20})\.", re.ASCII)

Environment = Mapping[str, str]


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
    seen = [parse_uuids(item.get(name, "")) for item in environments for name in _VISIBLE_DEVICES]
    together = tuple(dict.fromkeys(ref for refs in seen for ref in refs))
    if numbers:
        return next((uuids for uuids in (*seen, together) if len(uuids) == len(numbers)), numbers)
    return together


def agreed_name(environments: Sequence[Environment], variable: str) -> str:
    """The value of a variable that all environments of a job agree on, else empty: a user can change it."""
    values = {item[variable] for item in environments if variable in item}
    return clean_name(values.pop()) if len(values) == 1 else ""


def has_gpus(environments: Sequence[Environment]) -> bool:
    """Whether Slurm allocated any GPU on this machine to the job."""
    return any(item.get("SLURM_GPUS_ON_NODE", "0").lstrip("0").isdigit() for item in environments)


def has_whole_gpus(environments: Sequence[Environment]) -> bool:
    """Whether Slurm allocated whole GPUs to the job. A job with shards has GPUs in its environment, too."""
    if any(item.get("SLURM_SHARDS_ON_NODE", "0").strip("0") for item in environments):
        return False
    numbered = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
    return has_gpus(environments) or any(name in item for item in environments for name in numbered)


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
        slurm_account=job.account,
        partition=job.partition,
    )
    found = dict.fromkeys(device for ref in job.devices for device in index.find(ref))
    for device in found:
        yield Allocation(device, workload, job.found_by, fraction=Fraction(1) if job.is_whole else None)
