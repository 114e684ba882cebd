"""From the job-mapping directory to Allocations of the Devices of a Snapshot: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from gpuledger.model.devices import Device
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex
from gpuledger.workloads.job_map.files import JobMap

FOUND_BY: Final = "job_map"


class Users(Protocol):
    """Who knows whose a job is, such as SlurmJobs."""

    def user(self, name: str) -> str:
        """The user; empty where not known."""


def allocations(
    jobs: JobMap, devices: Sequence[Device], users: Users | None = None, *, kind: str = "slurm"
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
