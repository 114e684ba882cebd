"""Owners of processes in containers: beside the cgroups of pods, inside pods, and in each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import RuntimeList
from gpuledger.workloads.pods.pod import Pods
from unit.workloads.resolved_owners import (
    BOX,
    DOCKER,
    EMPTY,
    FOUND,
    KNOWN,
    MINE,
    NONE,
    ONLY,
    OTHERS,
    REFUSED,
    RESERVED,
    SHORT,
    STARTED,
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
)

OLD = RuntimeList({}, read_at=STARTED - 10)
PODMAN = RuntimeList({}, read_at=STARTED + 10, runtime="podman")
BROKEN = RuntimeList({}, read_at=STARTED - 10, success=False)
BY_ID, AWAITED = (("", "", SHORT, "cgroup", why) for why in ("container_unnamed", "container_name"))
INSIDE = ("ml", "train-0", "main", "pod_resources", "")


@pytest.mark.parametrize(
    ("what", "runtimes", "pods", "allocations", "expected"),
    [
        ("Docker knows it", [EMPTY, DOCKER], OTHERS, ONLY, ("", "", "web", "cgroup", "")),
        ("Docker does not: it is inside the pod", [EMPTY], OTHERS, ONLY, INSIDE),
        ("Docker does not, and pods are not read", [EMPTY], NONE, ONLY, INSIDE),
        ("no socket: the list of pods does not have it", [], OTHERS, ONLY, INSIDE),
        ("no socket, and pods are not read yet", [], NONE, ONLY, AWAITED),
        ("the socket is refused", [REFUSED], OTHERS, ONLY, BY_ID),
        ("one of two is", [EMPTY, REFUSED], OTHERS, ONLY, BY_ID),
        ("its list is old and it fails", [BROKEN], OTHERS, ONLY, BY_ID),
        ("its list is older than the process", [OLD], OTHERS, ONLY, AWAITED),
        ("it is not read yet", [UNREAD], OTHERS, ONLY, AWAITED),
        ("two pods have the GPU", [EMPTY], OTHERS, TWO_PODS, BY_ID),
        ("no pod has it", [EMPTY], OTHERS, (), BY_ID),
        ("only Podman is read", [PODMAN], OTHERS, ONLY, BY_ID),
        ("Podman is not read yet", [EMPTY, PODMAN._replace(tried=False)], OTHERS, ONLY, INSIDE),
        ("Podman is refused", [EMPTY, PODMAN._replace(success=False, read_at=None)], OTHERS, ONLY, INSIDE),
        ("only the Docker of a login is read", [EMPTY._replace(is_rootless=True)], OTHERS, ONLY, BY_ID),
        ("the Docker of a login has it", [DOCKER._replace(is_rootless=True)], OTHERS, ONLY, BY_ID),
        ("a reservation", [EMPTY], OTHERS, (RESERVED,), BY_ID),
    ],
)  # fmt: skip
def test_a_container_beside_the_cgroups_of_pods(
    what: str,
    runtimes: Sequence[RuntimeList],
    pods: Pods,
    allocations: tuple[Allocation, ...],
    expected: tuple[str, ...],
) -> None:
    found = owner(BOX, pods, allocations, runtimes=runtimes, started=STARTED)
    assert names(found) == expected, what
    is_inside = found.kind == "pod"
    assert (found.container_id, found.inner_container_id) == (("", "c" * 64) if is_inside else ("c" * 64, ""))
    assert found.ids == ("", "c" * 64)


LOGIN = Workload("user", user="eve")


@pytest.mark.parametrize("runtime", ["docker", "podman", "containerd", ""])
@pytest.mark.parametrize("runtimes", [[], [EMPTY, PODMAN], [DOCKER]])
@pytest.mark.parametrize("pods", [NONE, OTHERS, Pods([replace(TRAINER, containers={"c" * 64: "main"})])])
def test_a_container_of_a_login_is_in_no_pod_and_has_no_name_of_the_machine(
    runtime: str, runtimes: Sequence[RuntimeList], pods: Pods
) -> None:
    """Its user can give it any id, such as that of another's container."""
    found = owner((replace(BOX, runtime=runtime, user="eve"), LOGIN), pods, ONLY, runtimes=runtimes)
    assert (names(found), found.user) == (BY_ID, "eve")


def test_the_socket_of_a_login_names_its_containers() -> None:
    found = owner((BOX, LOGIN), OTHERS, ONLY, runtimes=[EMPTY, DOCKER._replace(is_rootless=True)])
    assert (found.kind, found.container, found.missing) == ("container", "web", "")
    nested = (container("d" * 64), BOX, LOGIN)
    found = owner(nested, OTHERS, ONLY, runtimes=[DOCKER._replace(is_rootless=True)])
    assert (found.container, found.missing, found.inner_container_id) == ("web", "inner_name", "d" * 64)


@pytest.mark.parametrize("runtime", ["containerd", ""])
@pytest.mark.parametrize("runtimes", [[], [EMPTY], [EMPTY, PODMAN]])
def test_a_container_of_a_runtime_without_a_socket_is_in_no_pod(
    runtime: str, runtimes: Sequence[RuntimeList]
) -> None:
    assert names(owner(replace(BOX, runtime=runtime), OTHERS, ONLY, runtimes=runtimes)) == BY_ID


def test_a_container_is_in_no_pod_while_another_pod_works_there() -> None:
    for allocations in (ONLY, (allocated(uid=UID),)):
        found = owner(BOX, OTHERS, allocations, beside=[STRANGER, MINE], runtimes=[EMPTY])
        assert (found.kind, found.container) == ("container", SHORT)
    found = owner(BOX, OTHERS, (allocated(uid=UID),), beside=[STRANGER], runtimes=[EMPTY])
    assert found.kind == "container"
    assert owner(BOX, OTHERS, (allocated(uid=UID),), beside=[MINE], runtimes=[EMPTY]).kind == "pod"


@pytest.mark.parametrize("container_id", ["c" * 64, "c" * 12, "0a1b2c3d4e5f60718293a4b5c6d7e8f9-123456789"])
def test_without_a_socket_a_container_is_named_by_its_id(container_id: str) -> None:
    found = owner(container(container_id), allocations=ONLY, names_pods=False)
    shown = container_id[:12] if len(container_id) == 64 else container_id
    assert (found.container, found.container_id, found.missing) == (shown, container_id, "container_unnamed")


def test_a_container_in_a_container_belongs_to_the_one_that_the_machine_knows() -> None:
    both = (container("d" * 64), BOX)
    found = owner(both, runtimes=[DOCKER])
    assert (found.container, found.missing, inner(found)) == (
        "web",
        "inner_name",
        ("", "c" * 64, "", "d" * 64),
    )
    found = owner(both, runtimes=[REFUSED])
    assert (found.container, found.missing) == (SHORT, "container_unnamed")
    assert found.ids == ("", "c" * 64)


def test_a_pod_of_kind_on_a_machine_without_kubernetes_belongs_to_its_node() -> None:
    """Where the names of pods are read, they are awaited until there are some."""
    node = (FOUND, BOX)
    found = owner(node, runtimes=[DOCKER], names_pods=False)
    assert (found.kind, found.container, found.missing) == ("container", "web", "inner_name")
    assert inner(found) == ("", "c" * 64, *MINE)
    assert owner(node, runtimes=[DOCKER]) == FOUND
    assert owner(node, KNOWN, runtimes=[DOCKER]).pod == "train-0"
    assert names(owner(node, OTHERS, runtimes=[DOCKER])) == ("", "", "web", "cgroup", "inner_name")
    assert owner(node, OTHERS, runtimes=[REFUSED]) == FOUND, "the node has no name, either"
    job = (FOUND, Workload("slurm", job="7", user="ann"))
    assert owner(job, names_pods=False).job == "7"
    assert owner(job) == FOUND
    found = owner(job, OTHERS)
    assert (found.job, found.missing, inner(found)) == ("7", "inner_name", ("", "", *MINE))


def test_two_containers_of_which_one_docker_knows_both_belong_to_the_outer_one() -> None:
    both = (container("d" * 64), BOX)
    found = owner(both, runtimes=[DOCKER._replace(names={"c" * 64: "mine", "d" * 64: "theirs"})])
    assert (found.container, found.missing, found.inner_container_id) == ("mine", "inner_name", "d" * 64)
