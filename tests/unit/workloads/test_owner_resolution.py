"""Owners by cgroup, completed with pods: the process first, the allocations of its Device second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, process, reading, snapshot
from gpuledger.model.devices import Device
from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.owner_lookup import OwnerLookup
from gpuledger.workloads.owner_resolution import resolve_owner
from gpuledger.workloads.pods.pod import Pod, Pods

GPU = gpu(0)
UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
FOUND = Workload(kind="pod", pod_uid=UID, container_id=ID, user="root", found_by="cgroup", missing="pod_name")


TRAINER = Pod(
    UID,
    "ml",
    "train-0",
    containers={ID: "main"},
    labels=(("team", "nlp"),),
    controller_kind="Job",
    controller="train",
)
KNOWN, NONE = Pods([TRAINER]), Pods()


def allocated(pod: str = "train-0", container: str = "main", uid: str = "") -> Allocation:
    holder = Workload(kind="pod", namespace="ml", pod=pod, container=container, pod_uid=uid)
    return Allocation(GPU, holder, "pod_resources", "nvidia.com/gpu")


def names(owner: Workload) -> tuple[str, str, str, str, str]:
    return (owner.namespace, owner.pod, owner.container, owner.found_by, owner.missing)


def test_a_pod_is_found_by_uid_with_labels_and_controller() -> None:
    owner = resolve_owner(FOUND, KNOWN, (), computes=True)
    assert names(owner) == ("ml", "train-0", "main", "cgroup", "")
    assert (owner.labels, owner.controller_kind, owner.controller) == ((("team", "nlp"),), "Job", "train")
    assert (owner.user, owner.container_id) == ("root", ID)


@pytest.mark.parametrize(
    ("pods", "allocations", "expected"),
    [
        # The cgroup wins over the allocation.
        (KNOWN, (allocated("other"),), ("ml", "train-0", "main", "cgroup", "")),
        # Named by the allocation until the pod is known by UID.
        (NONE, (allocated(),), ("ml", "train-0", "main", "pod_resources", "")),
        (NONE, (allocated(uid=UID),), ("ml", "train-0", "main", "pod_resources", "")),
        (NONE, (allocated(uid="another"),), ("", "", "", "cgroup", "pod_name")),
        # Replicas of a shared Device in one container give one owner, two pods give none.
        (NONE, (allocated(), allocated()), ("ml", "train-0", "main", "pod_resources", "")),
        (NONE, (allocated(), allocated("train-1")), ("", "", "", "cgroup", "pod_name")),
        (
            NONE,
            (allocated(container="a"), allocated(container="b")),
            ("ml", "train-0", "", "pod_resources", "container_name"),
        ),
        # The checkpoint has UIDs but no names.
        (NONE, (allocated("", uid=UID),), ("", "", "", "cgroup", "pod_name")),
        (NONE, (), ("", "", "", "cgroup", "pod_name")),
    ],
)  # fmt: skip
def test_cgroup_evidence_comes_before_the_allocations_of_the_device(
    pods: Pods, allocations: tuple[Allocation, ...], expected: tuple[str, ...]
) -> None:
    assert names(resolve_owner(FOUND, pods, allocations, computes=True)) == expected


@pytest.mark.parametrize("kind", ["pod", "container"])
def test_a_path_without_a_uid_finds_the_pod_by_container_id(kind: str) -> None:
    found = Workload(kind=kind, container_id=ID, user="root", found_by="cgroup", missing="container_name")
    owner = resolve_owner(found, KNOWN, (allocated("other"),), computes=True)
    assert (owner.kind, owner.pod_uid) == ("pod", UID)
    assert names(owner) == ("ml", "train-0", "main", "cgroup", "")


def test_a_container_outside_pods_is_unchanged() -> None:
    docker = Workload(kind="container", container_id="b" * 64, found_by="cgroup", missing="container_name")
    assert resolve_owner(docker, KNOWN, (allocated(),), computes=True) is docker


def test_a_container_missing_in_the_pod_status_is_named_by_the_allocation() -> None:
    late = Pods([replace(TRAINER, containers={})])
    assert names(resolve_owner(FOUND, late, (allocated(),), computes=True))[2:] == ("main", "cgroup", "")
    assert names(resolve_owner(FOUND, late, (allocated("other"),), computes=True))[2:] == (
        "",
        "cgroup",
        "container_name",
    )


@pytest.mark.parametrize("missing", ["no_cgroup", "cgroup_namespace", "unknown_cgroup", "pid_namespace"])
def test_a_compute_process_without_evidence_belongs_to_the_only_pod_of_its_device(missing: str) -> None:
    blind = Workload(kind="user", user="root", found_by="uid", missing=missing)
    assert names(resolve_owner(blind, NONE, (allocated(),), computes=True)) == (
        *("ml", "train-0", "main", "pod_resources", ""),
    )
    assert resolve_owner(blind, NONE, (allocated(), allocated("train-1")), computes=True) is blind
    assert resolve_owner(blind, NONE, (allocated(),), computes=False) is blind, "graphics process"


@pytest.mark.parametrize("kind", ["unit", "user", "slurm", "container"])
def test_a_process_with_cgroup_evidence_ignores_the_allocation(kind: str) -> None:
    known = Workload(kind=kind, user="alice", found_by="cgroup")
    assert resolve_owner(known, KNOWN, (allocated(),), computes=True) is known


def test_an_allocation_of_a_slurm_job_names_no_pod() -> None:
    job = Allocation(GPU, Workload(kind="slurm", job="815"), "slurm_cgroup")
    assert resolve_owner(FOUND, NONE, (job,), computes=True) is FOUND


class FakeDirectory:
    """An OwnerDirectory that counts its calls."""

    def __init__(self, pods: Pods, allocations: tuple[Allocation, ...] = ()) -> None:
        self.pods, self.known_allocations = pods, allocations
        self.resolutions = self.nudges = 0

    def identity_inputs(self) -> tuple[object, ...]:
        return (self.pods,)

    def allocations(self, _devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        return self.known_allocations

    def has_all_allocations(self, _unix: float) -> bool:
        return True

    def resolve_owner(self, found: Workload, allocations: object, *, computes: bool) -> Workload:
        self.resolutions += 1
        return resolve_owner(found, self.pods, self.known_allocations, computes=computes)

    def nudge(self) -> None:
        self.nudges += 1


def tick() -> Snapshot:
    cgroup = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
    one = replace(process(GPU, workload=Workload()), host=HostFacts(ProcessStart("b", 1, 0.0), cgroup=cgroup))
    return snapshot(reading(GPU, one))


def test_owners_are_resolved_once_while_the_indexes_do_not_change() -> None:
    directory = FakeDirectory(KNOWN, (allocated(),))
    lookup = OwnerLookup(directory=directory)
    first = lookup.assign_owners(tick())
    for _ in range(5):
        again = lookup.assign_owners(tick())
    assert directory.resolutions == 1
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


def test_owners_known_to_the_source_are_not_resolved() -> None:
    known = Workload(kind="pod", namespace="sim", pod="p", found_by="simulator")
    simulated = tick()
    (one,) = simulated.processes
    one = replace(one, host=replace(one.host, workload=known))
    directory = FakeDirectory(KNOWN)
    (named,) = OwnerLookup(directory=directory).assign_owners(snapshot(reading(GPU, one))).processes
    assert (named.workload, directory.resolutions) == (known, 0)
