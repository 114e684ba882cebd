"""OwnerLookup with owner indexes: what is resolved again, and when names are requested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import instance, process, reading, snapshot
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.owner_lookup import OwnerLookup
from gpuledger.workloads.owner_resolution import (
    OwnerFacts,
    resolve_owner,
)
from gpuledger.workloads.pods.pod import Pods
from unit.workloads.resolved_owners import GPU, ID, KNOWN, MINE, NONE, STRANGER, UID


def allocated(pod: str = "train-0", container: str = "main", uid: str = "") -> Allocation:
    holder = Workload(kind="pod", namespace="ml", pod=pod, container=container, pod_uid=uid)
    return Allocation(GPU, holder, "pod_resources", "nvidia.com/gpu")


class FakeDirectory:
    """An OwnerDirectory that counts its calls."""

    def __init__(self, pods: Pods, allocations: tuple[Allocation, ...] = ()) -> None:
        self.pods, self.known_allocations = pods, allocations
        self.nudges = 0

    def facts(self) -> OwnerFacts:
        return OwnerFacts(self.pods)

    def allocations(self, _devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        return self.known_allocations

    def has_all_allocations(self, _unix: float) -> bool:
        return True

    def nudge(self) -> None:
        self.nudges += 1


@pytest.fixture
def resolutions(monkeypatch: pytest.MonkeyPatch) -> list[GpuProcess]:
    """The processes that were resolved."""
    found: list[GpuProcess] = []

    def count(*given: Any) -> Workload:
        found.append(given[-1])
        return resolve_owner(*given)

    monkeypatch.setattr("gpuledger.workloads.owner_lookup.resolve_owner", count)
    return found


def tick() -> Snapshot:
    cgroup = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
    one = replace(process(GPU, workload=Workload()), host=HostFacts(ProcessStart("b", 1, 0.0), cgroup=cgroup))
    return snapshot(reading(GPU, one))


def test_owners_are_resolved_once_while_the_indexes_do_not_change(resolutions: list[GpuProcess]) -> None:
    directory = FakeDirectory(KNOWN, (allocated(),))
    lookup = OwnerLookup(directory=directory)
    first = lookup.assign_owners(tick())
    for _ in range(5):
        again = lookup.assign_owners(tick())
    assert len(resolutions) == 1
    assert [item.workload for item in again.processes] == [item.workload for item in first.processes]
    assert again.allocations == (allocated(),)


def test_a_late_pod_name_appears_with_the_next_tick() -> None:
    directory = FakeDirectory(NONE)
    lookup = OwnerLookup(directory=directory)
    (before,) = lookup.assign_owners(tick()).processes
    directory.pods = KNOWN
    (after,) = lookup.assign_owners(tick()).processes
    assert (before.workload.pod, after.workload.pod) == ("", "train-0")


def test_a_missing_name_requests_one_refresh() -> None:
    directory = FakeDirectory(NONE)
    lookup = OwnerLookup(directory=directory)
    for _ in range(5):
        lookup.assign_owners(tick())
    assert directory.nudges == 1


@pytest.mark.parametrize(("job", "nudges"), [("s5K1KKYAYG5D00", 1), ("131", 0)])
def test_a_job_without_its_number_requests_a_refresh(job: str, nudges: int) -> None:
    directory, seen = FakeDirectory(NONE), tick()
    (one,) = seen.processes
    cgroup = (
        f"0::/system.slice/slurmstepd.scope/{job if job[0] == 's' else f'job_{job}'}/step_0/user/task_0\n"
    )
    one = replace(one, host=replace(one.host, user="lena", cgroup=cgroup))
    lookup = OwnerLookup(directory=directory)
    for _ in range(2):
        (named,) = lookup.assign_owners(replace(seen, readings=(reading(GPU, one),))).processes
    assert (named.workload.job, directory.nudges) == (job, nudges)


def test_owners_known_to_the_source_are_not_resolved(resolutions: list[GpuProcess]) -> None:
    known = Workload(kind="pod", namespace="sim", pod="p", found_by="simulator")
    simulated = tick()
    (one,) = simulated.processes
    one = replace(one, host=replace(one.host, workload=known))
    directory = FakeDirectory(KNOWN)
    (named,) = OwnerLookup(directory=directory).assign_owners(snapshot(reading(GPU, one))).processes
    assert (named.workload, resolutions) == (known, [])


def test_a_process_without_a_name_requests_more_refreshes_while_it_is_young() -> None:
    """A list of containers that was read at its start can lack it."""
    directory = FakeDirectory(NONE)
    lookup = OwnerLookup(directory=directory)
    seen = tick()
    (one,) = seen.processes
    young = replace(one, host=replace(one.host, start=ProcessStart("b", 2, seen.unix - 1)))
    for _ in range(10):
        lookup.assign_owners(replace(seen, readings=(reading(GPU, young),)))
        seen = replace(seen, unix=seen.unix + 1)
    assert directory.nudges == 4


def test_mig_instances_are_separate_devices() -> None:
    first, second = instance(GPU, 1), instance(GPU, 2)
    places = ((first, "train-0", MINE), (second, "train-1", STRANGER))
    directory = FakeDirectory(NONE, tuple(replace(allocated(name), device=part) for part, name, _ in places))
    cgroups = {part: f"0::/kubepods/burstable/pod{uid}/{box}\n" for part, _, (uid, box) in places}
    running = [
        replace(process(part), host=HostFacts(ProcessStart("b", 1, 0.0), cgroup=cgroups[part]))
        for part, _, _ in places
    ]
    seen = snapshot(reading(GPU), *(reading(one.device, one) for one in running))
    named = OwnerLookup(directory=directory).assign_owners(seen)
    assert [one.workload.pod for one in named.processes] == ["train-0", "train-1"]


def test_a_name_by_allocation_ends_with_the_tick_in_which_a_second_pod_works() -> None:
    directory = FakeDirectory(NONE, (allocated(),))
    lookup = OwnerLookup(directory=directory)
    (mine,) = lookup.assign_owners(tick()).processes
    host = HostFacts(ProcessStart("b", 7, 0.0), cgroup=f"0::/kubepods/pod{STRANGER[0]}/{STRANGER[1]}\n")
    stranger = replace(mine, pid=7, host=host)
    both = lookup.assign_owners(snapshot(reading(GPU, mine, stranger)))
    (again,) = lookup.assign_owners(tick()).processes
    assert mine.workload.pod == again.workload.pod == "train-0"
    assert [one.workload.pod for one in both.processes] == ["", ""]
