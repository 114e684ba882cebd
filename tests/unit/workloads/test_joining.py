"""A process's cgroup joined with what Kubernetes says: the process first, its Device second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, process, reading, snapshot
from gpuledger.model.devices import Device
from gpuledger.model.process import HostFacts, Start
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.joining import join
from gpuledger.workloads.naming import Workloads
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


def handed(pod: str = "train-0", container: str = "main", uid: str = "") -> Allocation:
    holder = Workload(kind="pod", namespace="ml", pod=pod, container=container, pod_uid=uid)
    return Allocation(GPU, holder, "pod_resources", "nvidia.com/gpu")


def names(owner: Workload) -> tuple[str, str, str, str, str]:
    return (owner.namespace, owner.pod, owner.container, owner.found_by, owner.missing)


def test_a_pod_is_named_by_its_uid_and_brings_its_labels_and_controller() -> None:
    owner = join(FOUND, KNOWN, (), computes=True)
    assert names(owner) == ("ml", "train-0", "main", "cgroup", "")
    assert (owner.labels, owner.controller_kind, owner.controller) == ((("team", "nlp"),), "Job", "train")
    assert (owner.user, owner.container_id) == ("root", ID)


@pytest.mark.parametrize(
    ("pods", "allocations", "expected"),
    [
        # The process wins over to whom its Device was handed.
        (KNOWN, (handed("other"),), ("ml", "train-0", "main", "cgroup", "")),
        # Named by its Device, until its UID is known.
        (NONE, (handed(),), ("ml", "train-0", "main", "pod_resources", "")),
        (NONE, (handed(uid=UID),), ("ml", "train-0", "main", "pod_resources", "")),
        (NONE, (handed(uid="another"),), ("", "", "", "cgroup", "pod_name")),
        # Replicas of a shared Device in one container are one answer, two pods are none.
        (NONE, (handed(), handed()), ("ml", "train-0", "main", "pod_resources", "")),
        (NONE, (handed(), handed("train-1")), ("", "", "", "cgroup", "pod_name")),
        (
            NONE,
            (handed(container="a"), handed(container="b")),
            ("ml", "train-0", "", "pod_resources", "container_name"),
        ),
        # The checkpoint knows UIDs and no names.
        (NONE, (handed("", uid=UID),), ("", "", "", "cgroup", "pod_name")),
        (NONE, (), ("", "", "", "cgroup", "pod_name")),
    ],
)  # fmt: skip
def test_the_process_comes_first_and_its_device_second(
    pods: Pods, allocations: tuple[Allocation, ...], expected: tuple[str, ...]
) -> None:
    assert names(join(FOUND, pods, allocations, computes=True)) == expected


@pytest.mark.parametrize("kind", ["pod", "container"])
def test_where_the_path_has_no_uid_the_pod_is_found_by_its_container(kind: str) -> None:
    found = Workload(kind=kind, container_id=ID, user="root", found_by="cgroup", missing="container_name")
    owner = join(found, KNOWN, (handed("other"),), computes=True)
    assert (owner.kind, owner.pod_uid) == ("pod", UID)
    assert names(owner) == ("ml", "train-0", "main", "cgroup", "")


def test_a_container_of_no_pod_stays_one() -> None:
    docker = Workload(kind="container", container_id="b" * 64, found_by="cgroup", missing="container_name")
    assert join(docker, KNOWN, (handed(),), computes=True) is docker


def test_a_container_not_in_the_status_yet_is_named_by_the_device_handed_to_its_pod() -> None:
    late = Pods([replace(TRAINER, containers={})])
    assert names(join(FOUND, late, (handed(),), computes=True))[2:] == ("main", "cgroup", "")
    assert names(join(FOUND, late, (handed("other"),), computes=True))[2:] == ("", "cgroup", "container_name")


@pytest.mark.parametrize("missing", ["no_cgroup", "cgroup_namespace", "unknown_cgroup", "pid_namespace"])
def test_a_process_without_evidence_belongs_to_the_one_pod_that_has_its_device(missing: str) -> None:
    blind = Workload(kind="user", user="root", found_by="uid", missing=missing)
    assert names(join(blind, NONE, (handed(),), computes=True)) == (
        *("ml", "train-0", "main", "pod_resources", ""),
    )
    assert join(blind, NONE, (handed(), handed("train-1")), computes=True) is blind
    assert join(blind, NONE, (handed(),), computes=False) is blind, "what only draws is no pod's"


@pytest.mark.parametrize("kind", ["unit", "user", "slurm", "container"])
def test_a_process_with_evidence_of_its_own_is_not_given_to_who_has_the_device(kind: str) -> None:
    known = Workload(kind=kind, user="alice", found_by="cgroup")
    assert join(known, KNOWN, (handed(),), computes=True) is known


def test_a_device_of_a_slurm_job_names_no_pod() -> None:
    job = Allocation(GPU, Workload(kind="slurm", job="815"), "slurm_cgroup")
    assert join(FOUND, NONE, (job,), computes=True) is FOUND


class Maps:
    """Knowledge that counts what is asked of it."""

    def __init__(self, pods: Pods, allocations: tuple[Allocation, ...] = ()) -> None:
        self.pods, self.handed = pods, allocations
        self.joins = self.nudges = 0

    def moment(self) -> tuple[object, ...]:
        return (self.pods,)

    def allocations(self, _devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        return self.handed

    def join(self, found: Workload, allocations: object, *, computes: bool) -> Workload:
        self.joins += 1
        return join(found, self.pods, self.handed, computes=computes)

    def nudge(self) -> None:
        self.nudges += 1


def tick() -> Snapshot:
    cgroup = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
    one = replace(process(GPU, workload=Workload()), host=HostFacts(Start("b", 1, 0.0), cgroup=cgroup))
    return snapshot(reading(GPU, one))


def test_nothing_is_joined_twice_while_the_maps_stand_still() -> None:
    maps = Maps(KNOWN, (handed(),))
    workloads = Workloads(knowledge=maps)
    first = workloads.name(tick())
    for _ in range(5):
        again = workloads.name(tick())
    assert maps.joins == 1
    assert [item.workload for item in again.processes] == [item.workload for item in first.processes]
    assert again.allocations == (handed(),)


def test_a_name_that_comes_late_comes_with_the_next_tick() -> None:
    maps = Maps(NONE)
    workloads = Workloads(knowledge=maps)
    (before,) = workloads.name(tick()).processes
    maps.pods = KNOWN
    (after,) = workloads.name(tick()).processes
    assert (before.workload.pod, after.workload.pod) == ("", "train-0")


def test_who_stays_without_a_name_is_asked_for_once() -> None:
    maps = Maps(NONE)
    workloads = Workloads(knowledge=maps)
    for _ in range(5):
        workloads.name(tick())
    assert maps.nudges == 1


def test_owners_that_the_source_itself_knows_are_not_joined() -> None:
    told = Workload(kind="pod", namespace="sim", pod="p", found_by="simulator")
    simulated = tick()
    (one,) = simulated.processes
    one = replace(one, host=replace(one.host, workload=told))
    maps = Maps(KNOWN)
    (named,) = Workloads(knowledge=maps).name(snapshot(reading(GPU, one))).processes
    assert (named.workload, maps.joins) == (told, 0)
