"""What is known of the jobs that Slurm runs on this machine: values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuledger.workloads.device_index import DeviceRef


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
