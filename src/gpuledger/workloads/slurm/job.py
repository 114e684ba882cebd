"""What is known of the jobs that Slurm runs on this machine: values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuledger.model.devices import Device
from gpuledger.model.text import from_bytes
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex, DeviceRef, uuids_of


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, whether or not a process of it uses a GPU.

    `job` is its number; where only the SLUID is known, that. `devices` are its GPUs, found by `found_by`
    (`slurm_cgroup`, `slurm_environ`). No devices and an empty `missing` mean that it has none; else `missing`
    says why they are not known: `permission` (its environment is its user's and root's alone),
    `no_environment` (no process in it came from Slurm's own hand), `not_told` (it has some, and what it calls
    them says not which).
    """

    job: str
    sluid: str = ""
    user: str = ""
    devices: tuple[DeviceRef, ...] = ()
    found_by: str = ""
    missing: str = ""


class SlurmJobs:
    """The jobs of one moment, by number and by SLUID. Immutable.

    `stale` is how many cgroups of jobs were left behind with no process in them.
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
        """The job of this number or SLUID."""
        return self._by_name.get(name)

    def user(self, name: str) -> str:
        """Whose job it is; empty where that, or the job, is not known."""
        found = self._by_name.get(name)
        return found.user if found else ""

    @property
    def missing(self) -> Mapping[str, int]:
        """How many jobs have devices that are not known, by reason."""
        return Counter(item.missing for item in self.jobs if item.missing)


NO_JOBS = SlurmJobs()


_SEEN: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_WANTED: Final = frozenset(
    (
        "SLURM_JOB_ID",
        "SLURM_JOB_USER",
        "SLURM_JOB_UID",
        "SLURMD_NODENAME",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_GPUS_ON_NODE",
        *_SEEN,
    )
)
_NUMBERS: Final = re.compile(r"\d{1,4}(?:,\d{1,4})*", re.ASCII)
# slurmstepd rewrites its title to this; 4294967290 and the like are steps with a name.
_TITLE: Final = re.compile(rb"slurmstepd: \[(\d{1,20})\.", re.ASCII)

Environment = Mapping[str, str]


def parse_environment(raw: bytes) -> Environment:
    """The variables of /proc/PID/environ that matter here."""
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        key = from_bytes(name[:64])
        if equals and key in _WANTED and value:
            found.setdefault(key, from_bytes(value[:4096]))
    return found


def job_in_title(cmdline: bytes) -> str:
    """The number of the job that a slurmstepd serves, by its title; empty for anything else."""
    match = _TITLE.match(cmdline)
    return match[1].decode("ascii") if match else ""


def gpus_said(environments: Sequence[Environment]) -> tuple[DeviceRef, ...]:
    """The GPUs of the job that these environments are of.

    Of the job as a whole the first says all; of its steps each says its own. Numbers are told as `number`:
    what they count, gres.conf knows. Where as many UUIDs as numbers are said, by one process or by all
    together, these are told instead.
    """
    whole = next((found for item in environments if (found := _numbers(item.get("SLURM_JOB_GPUS")))), ())
    by_step = [_numbers(item.get("SLURM_STEP_GPUS")) for item in environments]
    numbers = whole or tuple(dict.fromkeys(ref for refs in by_step for ref in refs))
    seen = [uuids_of(item.get(name, "")) for item in environments for name in _SEEN]
    together = tuple(dict.fromkeys(ref for refs in seen for ref in refs))
    if numbers:
        return next((uuids for uuids in (*seen, together) if len(uuids) == len(numbers)), numbers)
    return together


def has_gpus(environments: Sequence[Environment]) -> bool:
    """Whether Slurm gave the job any GPU on this machine, whatever it calls them."""
    return any(item.get("SLURM_GPUS_ON_NODE", "0").lstrip("0").isdigit() for item in environments)


def _numbers(text: str | None) -> tuple[DeviceRef, ...]:
    if not text or not _NUMBERS.fullmatch(text):
        return ()
    return tuple(DeviceRef("number", str(int(word))) for word in text.split(","))


def allocations(jobs: SlurmJobs, devices: Sequence[Device]) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of jobs; a name that is no Device here has none."""
    index = DeviceIndex(devices)
    return tuple(item for job in jobs for item in _of_job(job, index))


def _of_job(job: SlurmJob, index: DeviceIndex) -> Iterator[Allocation]:
    workload = Workload(kind="slurm", job=job.job, user=job.user, found_by=job.found_by)
    found = dict.fromkeys(device for ref in job.devices for device in index.find(ref))
    for device in found:
        yield Allocation(device, workload, found_by=job.found_by)
