"""Slurm jobs as Allocations of Devices."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs, slurm_allocations

ZERO = gpu(0, minor=1)
ONE = gpu(1, minor=0)


def holding(job: str, *names: str, by: str = "minor", user: str = "alice") -> SlurmJob:
    return SlurmJob(job, user=user, devices=tuple(DeviceRef(by, n) for n in names), found_by="slurm_environ")


def test_a_job_without_processes_has_its_allocations() -> None:
    workload = Workload(kind="slurm", job="7", user="alice", found_by="slurm_environ")
    assert slurm_allocations(SlurmJobs([holding("7", "1", "0")]), [ZERO, ONE]) == (
        Allocation(ZERO, workload, found_by="slurm_environ"),
        Allocation(ONE, workload, found_by="slurm_environ"),
    )


def test_a_minor_is_not_an_index() -> None:
    (found,) = slurm_allocations(SlurmJobs([holding("7", "1")]), [ZERO, ONE])
    assert found.device is ZERO


def test_an_instance_is_allocated_not_its_gpu() -> None:
    small, other = instance(ONE, 1, 0, 0), instance(ONE, 2, 0, 1)
    found = slurm_allocations(SlurmJobs([holding("7", "0/2/0", by="mig")]), [ZERO, ONE, small, other])
    assert [item.device for item in found] == [other]


def test_a_device_named_twice_is_allocated_once() -> None:
    job = SlurmJob("7", devices=(DeviceRef("minor", "0"), DeviceRef("uuid", ONE.uuid)))
    assert len(slurm_allocations(SlurmJobs([job]), [ZERO, ONE])) == 1


def test_each_job_on_a_device_has_an_allocation_in_the_order_of_jobs() -> None:
    found = slurm_allocations(SlurmJobs([holding("10", "0"), holding("9", "0")]), [ONE])
    assert [item.workload.job for item in found] == ["9", "10"]


def test_a_name_without_a_device_has_no_allocation() -> None:
    assert [one.device for one in slurm_allocations(SlurmJobs([holding("7", "0", "5")]), [ZERO, ONE])] == [
        ONE
    ]


def test_a_job_without_devices_has_no_allocations() -> None:
    assert slurm_allocations(SlurmJobs([SlurmJob("7", missing="permission")]), [ZERO]) == ()


@pytest.mark.parametrize("fraction", [Fraction(1), Fraction(1, 4), None])
def test_an_allocation_has_the_fraction_of_its_job(fraction: Fraction | None) -> None:
    job = replace(holding("7", "0"), fraction=fraction)
    assert [one.fraction for one in slurm_allocations(SlurmJobs([job]), [ONE])] == [fraction]


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5))
def test_every_name_with_a_device_is_an_allocation(minors: list[list[int]]) -> None:
    jobs = SlurmJobs(holding(str(n + 1), *map(str, names)) for n, names in enumerate(minors))
    found = {(item.workload.job, item.device.gpu.minor) for item in slurm_allocations(jobs, [ZERO, ONE])}
    assert found == {
        (str(n + 1), minor) for n, names in enumerate(minors) for minor in names if minor in (0, 1)
    }
