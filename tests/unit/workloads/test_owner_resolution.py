"""Owners by cgroup, completed with pods: the process first, the allocations of its Device second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.workload import UNSEEN, Allocation, Workload
from gpuledger.workloads.containers.container import RuntimeList
from gpuledger.workloads.owner_resolution import PodAtWork
from gpuledger.workloads.pods.pod import Pod, Pods
from unit.workloads.resolved_owners import (
    CLUSTER,
    DOCKER,
    EMPTY,
    FOUND,
    GPU,
    ID,
    KNOWN,
    MINE,
    NONE,
    ONLY,
    OUTER,
    REFUSED,
    RESERVED,
    STRANGER,
    TRAINER,
    TWO_PODS,
    UID,
    UNREAD,
    allocated,
    container,
    inner,
    names,
    owner,
    unnamed,
)


def test_a_pod_is_found_by_uid_with_labels_and_controller() -> None:
    known = owner(FOUND, KNOWN)
    assert names(known) == ("ml", "train-0", "main", "cgroup", "")
    assert (known.labels, known.controller_kind, known.controller) == ((("team", "nlp"),), "Job", "train")
    assert (known.user, known.container_id) == ("root", ID)


def test_a_changed_pod_names_its_processes_again_and_others_keep_theirs() -> None:
    known = owner(FOUND, KNOWN)
    assert owner(FOUND, Pods([TRAINER, replace(TRAINER, uid="other", name="other")])) is known
    assert owner(FOUND, Pods([replace(TRAINER, labels=())])).labels == ()


def test_a_pod_in_which_containers_come_and_go_needs_no_more_memory() -> None:
    pod = replace(TRAINER)
    for number in range(1000):
        nested = owner(replace(FOUND, inner_container_id=f"{number:064x}"), Pods([pod]))
        assert nested.inner_container_id == f"{number:064x}"
    assert len(pod.named) <= 64


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
    assert names(owner(FOUND, pods, allocations)) == expected


@pytest.mark.parametrize("kind", ["pod", "container"])
def test_a_path_without_a_uid_finds_the_pod_by_container_id(kind: str) -> None:
    found = Workload(kind=kind, container_id=ID, user="root", found_by="cgroup", missing="container_name")
    known = owner(found, KNOWN, (allocated("other"),))
    assert (known.kind, known.pod_uid) == ("pod", UID)
    assert names(known) == ("ml", "train-0", "main", "cgroup", "")


def test_a_container_missing_in_the_pod_status_is_named_by_the_allocation() -> None:
    late = Pods([replace(TRAINER, containers={})])
    assert names(owner(FOUND, late, (allocated(),)))[2:] == ("main", "cgroup", "")
    assert names(owner(FOUND, late, (allocated("other"),)))[2:] == (
        "",
        "cgroup",
        "container_name",
    )


@pytest.mark.parametrize("missing", sorted(UNSEEN))
def test_an_unseen_compute_process_belongs_to_the_only_pod_that_has_and_uses_its_device(missing: str) -> None:
    unseen = Workload(kind="user", user="root", found_by="uid", missing=missing)
    at_work = (MINE,)
    for has in ((allocated(),), (allocated(uid=UID),)):
        assert names(owner(unseen, NONE, has, beside=at_work)) == NAMED
        alone = owner(unseen, NONE, has)
        if missing == "pid_namespace":
            assert names(alone) == NAMED, "nobody at work can be seen: the allocation is all that is known"
        else:
            assert alone is unseen, "no pod works there"
        assert owner(unseen, NONE, has, beside=(*at_work, STRANGER)) is unseen
        assert owner(unseen, NONE, has, beside=at_work, computes=False) is unseen, "graphics process"
    assert owner(unseen, NONE, (allocated(uid=UID),), beside=[STRANGER]) is unseen
    assert owner(unseen, NONE, (allocated(), allocated("train-1")), beside=at_work) is unseen


@pytest.mark.parametrize("missing", ["no_cgroup", "cgroup_namespace", "unknown_cgroup", "remote"])
@pytest.mark.parametrize("beside", [(), (MINE,)])
def test_a_process_with_a_cgroup_outside_of_pods_is_never_the_pods(
    missing: str, beside: Sequence[PodAtWork]
) -> None:
    outside = Workload(kind="user", user="eve", found_by="uid", missing=missing)
    assert owner(outside, KNOWN, (allocated(uid=UID),), beside=beside) is outside


@pytest.mark.parametrize("kind", ["unit", "user", "slurm", "container"])
def test_a_process_with_cgroup_evidence_ignores_the_allocation(kind: str) -> None:
    container = "lxc-one" if kind == "container" else ""
    known = Workload(kind=kind, container=container, user="alice", found_by="cgroup")
    assert owner(known, KNOWN, (allocated(),)) is known


def test_an_allocation_of_a_slurm_job_names_no_pod() -> None:
    job = Allocation(GPU, Workload(kind="slurm", job="815"), "slurm_cgroup")
    assert owner(FOUND, NONE, (job,)) is FOUND


NAMED = ("ml", "train-0", "main", "pod_resources", "")
NO_NAME = ("", "", "", "cgroup", "pod_name")


@pytest.mark.parametrize(
    ("what", "allocations", "beside", "expected"),
    [
        ("it alone", ONLY, (), NAMED),
        ("its second process", ONLY, (MINE,), NAMED),
        ("a second pod works there", ONLY, (STRANGER,), NO_NAME),
        ("a second pod, known only by its container", ONLY, (("b" * 64, "b" * 64),), NO_NAME),
        ("a second pod has a part of it", TWO_PODS, (), NO_NAME),
        ("both", TWO_PODS, (STRANGER,), NO_NAME),
        ("two allocations of one pod", (allocated(), allocated()), (), NAMED),
        ("the UID of the allocation is known", (allocated(uid=UID),), (STRANGER,), NAMED),
        ("its UID is another", (allocated(uid=STRANGER[0]),), (), NO_NAME),
        ("a pod with a known UID beside it", (allocated(), allocated("b", uid=STRANGER[0])), (), NO_NAME),
        ("a pod with a known UID that works", (allocated(uid=UID), allocated("b")), (STRANGER,), NAMED),
        ("a job has the GPU, too", (*ONLY, Allocation(GPU, Workload("slurm", job="7"))), (), NO_NAME),
        # Two containers work, and one of them has the GPU: which one is not known.
        (
            "another container of it",
            ONLY,
            ((UID, "c" * 64),),
            ("ml", "train-0", "", "pod_resources", "container_name"),
        ),
        ("a reservation", (RESERVED,), (), NO_NAME),
    ],
)  # fmt: skip
def test_an_allocation_without_a_uid_names_a_pod_only_if_no_other_can_be_meant(
    what: str, allocations: tuple[Allocation, ...], beside: Sequence[PodAtWork], expected: tuple[str, ...]
) -> None:
    assert names(owner(FOUND, NONE, allocations, beside=beside)) == expected, what


INNER = unnamed(STRANGER)
OUTSIDE = unnamed(OUTER)
NESTED = (INNER, OUTSIDE)
SERVER = allocated("vc-server-0", "k3s")


@pytest.mark.parametrize(
    ("what", "pods", "allocations", "beside", "expected"),
    [
        ("the API knows the outer pod", Pods([CLUSTER]), (), (), ("vc-server-0", "k3s", "inner_name")),
        ("and it has the GPU", Pods([CLUSTER]), (SERVER,), (), ("vc-server-0", "k3s", "inner_name")),
        ("and another pod has it", Pods([CLUSTER]), ONLY, (), ("vc-server-0", "k3s", "inner_name")),
        ("the kubelet alone", NONE, (SERVER,), (), ("vc-server-0", "k3s", "inner_name")),
        ("the kubelet alone, of two pods", NONE, (SERVER,), (MINE,), ("", "", "pod_name")),
        ("nobody", NONE, (), (), ("", "", "pod_name")),
    ],
)
def test_the_outer_pod_owns_what_runs_in_a_pod_of_a_cluster_inside_it(
    what: str, pods: Pods, allocations: tuple[Allocation, ...], beside: Sequence[PodAtWork], expected: object
) -> None:
    found = owner(NESTED, pods, allocations, beside=beside)
    assert (found.pod, found.container, found.missing) == expected, what
    # Never names of the one with ids of the other.
    ids = (*OUTER, *STRANGER) if found.pod else (*STRANGER, "", "")
    assert inner(found) == ids, what
    assert found.ids == ("", STRANGER[1]), "by which its late names find it"


def test_the_outermost_pod_that_the_list_has_is_the_owner() -> None:
    """One cluster's pods do not contain each other: a pod that seems to can have named its cgroup so."""
    inside = Pod(STRANGER[0], "team", "job-0", containers={STRANGER[1]: "main"})
    found = owner(NESTED, Pods([inside]))
    assert (found.pod, found.missing, inner(found)) == ("job-0", "", (*STRANGER, "", ""))
    found = owner(NESTED, Pods([CLUSTER, inside]))
    assert (found.pod, found.missing, inner(found)) == ("vc-server-0", "inner_name", (*OUTER, *STRANGER))
    three = (unnamed(MINE), INNER, OUTSIDE)
    found = owner(three, Pods([inside]))
    assert (found.pod, found.missing, inner(found)) == ("job-0", "inner_name", (*STRANGER, *MINE))
    found = owner(three, Pods([CLUSTER, inside]))
    assert (found.pod, found.missing, inner(found)) == ("vc-server-0", "inner_name", (*OUTER, *MINE))
    found = owner(three, Pods([CLUSTER]))
    assert (found.pod, found.missing, inner(found)) == ("vc-server-0", "inner_name", (*OUTER, *MINE))


@pytest.mark.parametrize("uid", [UID, ""])
def test_of_two_containers_at_work_none_is_taken_for_the_allocated_one(uid: str) -> None:
    """Also of a static pod (its cgroup has a hash in place of the UID), and by container ids alone."""
    hashed = "f" * 32
    at_work = [(hashed, ID), (hashed, "c" * 64)] if uid else [(ID, ID), ("c" * 64, "c" * 64)]
    mine = replace(FOUND, pod_uid=hashed if uid else "")
    static = Pods([replace(TRAINER, hash=hashed, containers={} if uid else {"c" * 64: "", ID: ""})])
    alone = owner(mine, static, (allocated(uid=UID),), beside=at_work[:1])
    assert names(alone) == ("ml", "train-0", "main", "cgroup", "")
    both = owner(mine, static, (allocated(uid=UID),), beside=at_work)
    assert names(both) == ("ml", "train-0", "", "cgroup", "container_name")


def test_a_static_pod_alone_owns_an_unseen_process() -> None:
    static = Pods([replace(TRAINER, hash="f" * 32)])
    unseen = Workload(missing="exited")
    assert owner(unseen, static, (allocated(uid=UID),), beside=[("f" * 32, ID)]).pod == "train-0"


IDS = st.sampled_from([MINE, STRANGER, OUTER, ("", "d" * 64)])
LEVEL = st.one_of(IDS.map(unnamed), st.sampled_from(["e" * 64, "f" * 64]).map(container))
POD_NAMES = {UID: "train-0", STRANGER[0]: "job-0", OUTER[0]: "vc-server-0"}
KNOWN_UIDS = st.sets(st.sampled_from(sorted(POD_NAMES)))
BOXES = {MINE[1]: UID, STRANGER[1]: STRANGER[0], OUTER[1]: OUTER[0]}


def holding(uid: str, *, is_known: bool) -> Allocation:
    return allocated(POD_NAMES[uid], uid=uid if is_known else "")


@given(
    st.lists(LEVEL, min_size=1, max_size=4, unique=True),
    KNOWN_UIDS,
    st.lists(st.builds(holding, st.sampled_from(sorted(POD_NAMES)), is_known=st.booleans()), max_size=3),
    st.lists(IDS, max_size=2),
    st.lists(st.sampled_from([EMPTY, REFUSED, UNREAD, DOCKER]), max_size=2),
    st.booleans(),
)
def test_names_of_one_pod_never_stand_beside_ids_of_another(
    found: list[Workload],
    listed: set[str],
    allocations: list[Allocation],
    beside: list[PodAtWork],
    runtimes: list[RuntimeList],
    names_pods: bool,
) -> None:
    pods = Pods(
        Pod(uid, "ml", POD_NAMES[uid], containers={box: "main" for box, of in BOXES.items() if of == uid})
        for uid in listed
    )
    one = owner(tuple(found), pods, allocations, beside=beside, runtimes=runtimes, names_pods=names_pods)
    uids = {level.pod_uid for level in found} | {item.workload.pod_uid for item in allocations} | listed
    assert one.pod_uid in uids | {""}
    assert one.container_id in {level.container_id for level in found} | {""}
    assert one.pod or one.missing or one.kind != "pod", "what is not known has a reason"
    if one.pod and one.pod_uid in listed:
        assert one.pod == POD_NAMES[one.pod_uid]
    for item in allocations:
        if one.pod == item.workload.pod and item.workload.pod_uid:
            assert one.pod_uid == item.workload.pod_uid
    outermost = [level for level in found if level.kind == "pod"][-1:]
    if one.found_by == "pod_resources" and one.pod and outermost and outermost[0].pod_uid:
        same = {item.workload.pod for item in allocations if item.workload.pod_uid == one.pod_uid}
        assert same == {one.pod} or {item.workload.pod for item in allocations} == {one.pod}
