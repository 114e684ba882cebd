"""From the jobs of Slurm to Allocations of the Devices of a Snapshot: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger.model.devices import Device
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceIndex
from gpuledger.workloads.slurm.job import SlurmJob, SlurmJobs


def allocations(jobs: SlurmJobs, devices: Sequence[Device]) -> tuple[Allocation, ...]:
    """One Allocation per job and Device, in the order of jobs; a name that is no Device here has none."""
    index = DeviceIndex(devices)
    return tuple(item for job in jobs for item in _of_job(job, index))


def _of_job(job: SlurmJob, index: DeviceIndex) -> Iterator[Allocation]:
    workload = Workload(kind="slurm", job=job.job, user=job.user, found_by=job.found_by)
    found = dict.fromkeys(device for ref in job.devices for device in index.find(ref))
    for device in found:
        yield Allocation(device, workload, found_by=job.found_by)
