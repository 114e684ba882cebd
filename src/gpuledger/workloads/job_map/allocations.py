"""From the job-mapping directory to Allocations of the Devices of a Snapshot: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from gpuledger.model.devices import Device
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex
from gpuledger.workloads.job_map.files import JobMap
from gpuledger.workloads.sameness import same_objects

FOUND_BY: Final = "job_map"


class Users(Protocol):
    """Who knows whose a job is, such as SlurmJobs."""

    def user(self, name: str) -> str:
        """The user; empty where not known."""


def allocations(
    jobs: JobMap, devices: Sequence[Device], *, kind: str = "slurm", users: Users | None = None
) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of files and lines.

    `kind` is that of the processes of these jobs (`slurm`, or `job` for other batch systems), for the two to
    be one owner.
    """
    return tuple(_each(jobs, DeviceIndex(devices), kind, users))


def _each(jobs: JobMap, index: DeviceIndex, kind: str, users: Users | None) -> Iterator[Allocation]:
    told: set[tuple[str, str]] = set()
    for item in jobs:
        user = users.user(item.job) if users is not None else ""
        workload = Workload(kind=kind, job=item.job, user=user, found_by=FOUND_BY)
        for device in index.find(item.device):
            # The file of a GPU and that of its instance may both name the job.
            if (item.job, device.uuid) not in told:
                told.add((item.job, device.uuid))
                yield Allocation(device, workload, found_by=FOUND_BY)


class JobMapAllocations:
    """Answers `allocations`, the same object again while it is given the same objects."""

    def __init__(self, *, kind: str = "slurm") -> None:
        self._kind = kind
        self._jobs: JobMap | None = None
        self._users: Users | None = None
        self._devices: tuple[Device, ...] = ()
        self._found: tuple[Allocation, ...] = ()

    def of(
        self, jobs: JobMap, devices: Sequence[Device], users: Users | None = None
    ) -> tuple[Allocation, ...]:
        """The Allocations of this map. To be called every tick."""
        same = jobs is self._jobs and users is self._users and same_objects(devices, self._devices)
        if not same:
            self._jobs, self._users, self._devices = jobs, users, tuple(devices)
            self._found = allocations(jobs, devices, kind=self._kind, users=users)
        return self._found
