"""From the jobs of Slurm to Allocations of the Devices of a Snapshot: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger.model.devices import Device
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex
from gpuledger.workloads.sameness import same_objects
from gpuledger.workloads.slurm.job import SlurmJob, SlurmJobs


def allocations(jobs: SlurmJobs, devices: Sequence[Device]) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of jobs; a name that is no Device here has none."""
    index = DeviceIndex(devices)
    return tuple(item for job in jobs for item in _of_job(job, index))


def unmatched(jobs: SlurmJobs, devices: Sequence[Device]) -> tuple[tuple[str, str], ...]:
    """Job and name of each device that is none of these: for a person to look into."""
    index = DeviceIndex(devices)
    return tuple(
        (job.job, f"{ref.by} {ref.name}") for job in jobs for ref in job.devices if not index.find(ref)
    )


class SlurmAllocations:
    """Answers `allocations`, the same object again while it is given the same objects."""

    def __init__(self) -> None:
        self._jobs: SlurmJobs | None = None
        self._devices: tuple[Device, ...] = ()
        self._found: tuple[Allocation, ...] = ()

    def of(self, jobs: SlurmJobs, devices: Sequence[Device]) -> tuple[Allocation, ...]:
        """The Allocations of these jobs. To be called every tick."""
        if jobs is not self._jobs or not same_objects(devices, self._devices):
            self._jobs, self._devices = jobs, tuple(devices)
            self._found = allocations(jobs, devices)
        return self._found


def _of_job(job: SlurmJob, index: DeviceIndex) -> Iterator[Allocation]:
    workload = Workload(kind="slurm", job=job.job, user=job.user, found_by=job.found_by)
    found = dict.fromkeys(device for ref in job.devices for device in index.find(ref))
    for device in found:
        yield Allocation(device, workload, found_by=job.found_by)
