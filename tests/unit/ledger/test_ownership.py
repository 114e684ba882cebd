"""The owner of a process from two lookups: a name that is lost remains, another owner replaces it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.ledger.ownership import owner_fields, owner_from_fields
from gpuledger.model.workload import Workload, merge_owner

UID, OUTER_UID = "1a1a1a1a-0001-4001-8001-000000000001", "2b2b2b2b-0002-4002-8002-000000000002"
HASH = "8d3b1f0e9c7a6b5d4e3f2a1b0c9d8e7f"
ID, OUTER_ID = "a" * 64, "b" * 64
POD = Workload("pod", "ml", "train-0", "main", UID, ID)
STATIC = Workload("pod", "kube-system", "static-n1", "main", UID, ID)
OUTER = Workload(
    "pod", "tenants", "vc-0", "k3s", OUTER_UID, OUTER_ID,
    missing="inner_name", inner_pod_uid=UID, inner_container_id=ID,
)  # fmt: skip
WEB = Workload("container", container="web", container_id=ID, runtime="docker")
JOB = Workload("slurm", job="131", user="ann", slurm_account="chem")


def unnamed(uid: str = UID, container_id: str = ID) -> Workload:
    return Workload("pod", pod_uid=uid, container_id=container_id, missing="pod_name")


def stored(owner: Workload) -> Workload:
    """The owner as the ledger has it after a restart."""
    return owner_from_fields(owner_fields(owner))


def allocated(pod: str, container: str) -> Workload:
    """The owner of the same process by an Allocation, which has no UID."""
    missing = "" if container else "container_name"
    return replace(POD, pod=pod, container=container, found_by="pod_resources", missing=missing)


NO_CONTAINER = replace(POD, container="", missing="container_name")
INDEXED = replace(POD, found_by="cgroup")


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (POD, unnamed()),
        (STATIC, unnamed(HASH)),
        (OUTER, unnamed()),
        # Of a pod around a pod, only the slice of the inner one is named.
        (OUTER, unnamed(container_id="")),
        (WEB, replace(WEB, container="", missing="container_name")),
        (WEB, replace(WEB, container=ID[:12], missing="container_unnamed")),
        (JOB, Workload("slurm", job="s5K1KKYAYG5D00", user="root")),
        (POD, Workload("user", user="root", missing="permission")),
        (NO_CONTAINER, unnamed()),
        (POD, NO_CONTAINER),
        # The GPU was allocated to another pod meanwhile.
        (INDEXED, allocated("next", "main")),
        (INDEXED, allocated("next", "")),
        (replace(INDEXED, container="", missing="container_name"), allocated("next", "main")),
        (replace(WEB, found_by="cgroup"), replace(allocated("next", "main"), pod_uid="", container_id="",
         inner_container_id=ID)),
        (POD, Workload(missing="exited")),
    ],
)  # fmt: skip
def test_the_same_owner_without_a_name_takes_no_name_away(
    is_stored: bool, before: Workload, now: Workload
) -> None:
    known = stored(before) if is_stored else before
    assert merge_owner(known, now) == known


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (POD, unnamed("9" + UID[1:], "c" * 64)),
        (WEB, replace(WEB, container="", container_id="c" * 64, missing="container_name")),
        (JOB, Workload("slurm", job="132", user="ann")),
        (replace(JOB, job="s5K1KKYAYG5D00"), JOB),
        (unnamed(), POD),
        (OUTER, POD),
        (Workload("user", user="ann"), unnamed()),
        # An Allocation that was over named the pod first.
        (allocated("late", "main"), allocated("next", "")),
        (allocated("late", "main"), INDEXED),
        (allocated("late", "main"), replace(INDEXED, container="", missing="container_name")),
        (INDEXED, replace(allocated("next", ""), pod_uid="9" + UID[1:], container_id="c" * 64)),
        (NO_CONTAINER, POD),
        # An index has the container in the list of a pod; a short id is no name.
        (replace(WEB, found_by="cgroup"), INDEXED),
        (
            replace(WEB, container=ID[:12], found_by="cgroup", missing="container_unnamed"),
            allocated("a", "b"),
        ),
    ],
)
def test_another_owner_and_a_better_name_replace_it(before: Workload, now: Workload) -> None:
    assert merge_owner(before, now) == now


def test_facts_that_an_index_no_longer_has_are_kept() -> None:
    before = replace(POD, labels=(("team", "nlp"),), controller_kind="Job", controller="train")
    assert merge_owner(before, POD) == before
    assert merge_owner(JOB, replace(JOB, slurm_account="")) == JOB


def test_a_pod_that_an_index_has_named_keeps_that_evidence() -> None:
    """An Allocation that also names it, and later another one, do not make its name a guess."""
    by_allocation = merge_owner(INDEXED, replace(allocated("train-0", "main"), namespace=INDEXED.namespace))
    assert by_allocation == INDEXED
    assert merge_owner(by_allocation, allocated("next", "main")) == INDEXED
    named_first = allocated("train-0", "main")
    assert merge_owner(named_first, replace(INDEXED, container="", missing="container_name")) == INDEXED
