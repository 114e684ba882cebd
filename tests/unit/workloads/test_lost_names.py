"""Names that an index loses, also while lists fail and after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import reading
from gpuledger.model.process import GpuProcess
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.owner_resolution import OwnerFacts
from gpuledger.workloads.pods.pod import Pod, Pods
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs
from ledger_helpers import Run
from owner_machine import (
    CARD,
    FIT,
    RANK,
    RESERVATION,
    SHOP,
    UID_A,
    UID_B,
    WEB,
    A,
    Machine,
    billed,
    has,
    held,
    in_pod,
    runs,
)

UNNAMED = "pod"
OUTER = Pod(UID_B, "tenants", "vc-server-0", containers={"b" * 64: "k3s"})
HASH = "8d3b1f0e9c7a6b5d4e3f2a1b0c9d8e7f"
STATIC = Pod(UID_B, "kube-system", "static-n1", containers={"a" * 64: "main"}, hash=HASH)
JOB = SlurmJob("131", sluid="s5K1KKYAYG5D00", user="ann")


@pytest.mark.parametrize(
    ("cgroup", "known", "row"),
    [
        (in_pod(UID_A, "a"), OwnerFacts(Pods([RANK]), names_pods=True), "rank-a"),
        (in_pod(UID_A, "c"), OwnerFacts(Pods([RANK]), names_pods=True), "rank-a"),
        (in_pod(HASH, "a"), OwnerFacts(Pods([STATIC]), names_pods=True), "static-n1"),
        (in_pod(UID_B, "b") + in_pod(UID_A, "a"), OwnerFacts(Pods([OUTER]), names_pods=True), "vc-server-0"),
        (f"/docker/{'c' * 64}{in_pod(UID_A, 'a')}", OwnerFacts(runtimes=(WEB,)), "web"),
        (f"/docker/{'c' * 64}", OwnerFacts(runtimes=(WEB,)), "web"),
        ("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00", OwnerFacts(jobs=SlurmJobs([JOB])), "131"),
    ],
)
def test_a_name_that_is_lost_remains(tmp_path: Path, cgroup: str, known: OwnerFacts, row: str) -> None:
    """A pod that is deleted before its process ends, or an index that starts empty again."""
    node = Machine(tmp_path, facts=known)
    one = runs(1, cgroup)
    node.ticks(60, one)
    others = Pods([Pod("1f", "lab", "other")]) if known.names_pods else None
    empty = tuple(each._replace(names={}) for each in known.runtimes)
    node.facts = OwnerFacts(others, known.jobs and SlurmJobs(), empty, names_pods=known.names_pods)
    state = node.ticks(60, one)
    assert sum(billed(state).values()) == 119 and len(billed(state)) == len(held(state)) == 1
    assert UNNAMED not in billed(state)
    assert node.report("job" if known.jobs else "owner") == {row: (119, 0, 11800)}


OF_NEXT = (has(replace(FIT, pod="next", container="a")), has(replace(FIT, pod="next", container="b")))


def test_an_allocation_that_was_over_named_the_pod_first(tmp_path: Path) -> None:
    """The kubelet is read every ten seconds; which container of the next pod it is, is not known."""
    node = Machine(tmp_path, has(FIT))
    node.ticks(5, A)
    assert node.owners()[1] == ("pod", "fit-0", "")
    node.allocations = OF_NEXT
    node.ticks(60, A)
    # In the first second, the GPU was allocated to the other one.
    assert {name: row[0] for name, row in node.report().items()} == {"next": 63, "fit-0": 1}


def test_a_pod_that_an_index_has_named_keeps_its_process_when_its_gpu_is_allocated_again(
    tmp_path: Path,
) -> None:
    """A pod that is deleted by force can have a process for some time."""
    node = Machine(tmp_path, facts=SHOP)
    node.ticks(30, A)
    node.facts, node.allocations = OwnerFacts(Pods([Pod("1f", "lab", "other")]), names_pods=True), OF_NEXT[:1]
    node.ticks(30, A)
    assert node.owners()[1] == ("pod", "rank-a", "")
    assert {name: row[2] for name, row in node.report().items()} == {"rank-a": 5800, "next": 0}


SPACE = has(replace(FIT, namespace="dev", pod="space-7", pod_uid=UID_B))


def test_a_container_of_the_machine_that_its_runtime_no_longer_lists_is_not_inside_a_pod(
    tmp_path: Path,
) -> None:
    """Docker lists no container that has stopped; a process in the driver can end later."""
    node = Machine(tmp_path, SPACE, facts=OwnerFacts(runtimes=(WEB,)))
    box = runs(1, f"/docker/{'c' * 64}")
    node.ticks(30, box)
    node.facts = OwnerFacts(runtimes=(WEB._replace(names={}),))
    node.ticks(30, box)
    assert node.owners() == {1: ("container", "web", "")}
    assert node.report() == {"space-7": (59, 59, 0), "web": (0, 0, 5800)}


@pytest.mark.parametrize("gap", ["no list", "no GPU", "restart"])
@pytest.mark.parametrize(
    ("cgroup", "known", "row"),
    [
        (in_pod(UID_A, "a"), OwnerFacts(Pods([RANK]), names_pods=True), "rank-a"),
        (f"/docker/{'c' * 64}", OwnerFacts(runtimes=(WEB,)), "web"),
    ],
)
def test_a_name_that_is_lost_while_a_process_is_not_seen_remains(
    tmp_path: Path, gap: str, cgroup: str, known: OwnerFacts, row: str
) -> None:
    """A pod or container that goes while a list fails, or before this program is started again."""
    node = Machine(tmp_path, facts=known)
    one = runs(1, cgroup)
    node.ticks(60, one)
    if gap == "restart":
        node.run.store.close()
        node.start(Run(tmp_path, clock=node.run.clock))
    else:
        node.fail(*([replace(reading(CARD), processes=None)] if gap == "no list" else []))
    empty = tuple(each._replace(names={}) for each in known.runtimes)
    node.facts = OwnerFacts(Pods([Pod("1f", "lab", "other")]), runtimes=empty, names_pods=known.names_pods)
    state = node.ticks(60, one)
    assert (node.owners()[1][1], [*billed(state)], [*held(state)]) == (row, [row], [row])


def test_a_restart_does_not_bring_back_a_name_by_an_allocation_of_another_pod(tmp_path: Path) -> None:
    node = Machine(tmp_path, has(FIT))
    node.ticks(60, A)
    node.run.store.close()
    node.start(Run(tmp_path, clock=node.run.clock))
    node.allocations = (NEXT,)
    node.ticks(60, A)
    assert node.owners()[1][1] == "next"


@pytest.mark.parametrize(("failed", "seconds"), [(20, 79), (100, 58)])
def test_a_placeholder_holds_nothing_while_the_list_of_processes_fails(
    tmp_path: Path, failed: int, seconds: int
) -> None:
    node = Machine(tmp_path, has(RESERVATION), facts=SHOP)
    node.ticks(30, A)
    for _ in range(failed):
        node.fail(replace(reading(CARD), processes=None))
    node.ticks(30, A)
    assert {name: row[0] for name, row in node.report().items() if row[0]} == {"rank-a": seconds}


@pytest.mark.parametrize(("failed", "seconds"), [(1, 60), (20, 79), (55, 114), (100, 119)])
def test_a_gpu_that_cannot_be_listed_is_still_allocated_for_a_minute(
    tmp_path: Path, failed: int, seconds: int
) -> None:
    node = Machine(tmp_path, has(replace(FIT, pod_uid=UID_A)))
    node.ticks(30)
    for _ in range(failed):
        node.fail()
    node.ticks(30)
    assert {name: row[0] for name, row in node.report().items() if row[0]} == {"fit-0": seconds}


MAPPED = Allocation(CARD, Workload("job", job="77", found_by="job_map"), "job_map")


def in_job(user: str, pid: int = 1, uid: int = 812345) -> GpuProcess:
    one = runs(pid, "/pbs_jobs.service/jobid/77")
    return replace(one, host=replace(one.host, uid=uid, user=user))


def test_the_idle_time_of_a_mapped_job_is_of_its_user_also_after_a_restart(tmp_path: Path) -> None:
    """The name of the user arrives late; a process of root is a command such as sudo."""
    node = Machine(tmp_path, MAPPED, facts=OwnerFacts())
    node.ticks(2, in_job("812345"))
    node.ticks(28, in_job("lena"))
    node.ticks(10, in_job("lena"), in_job("root", pid=2, uid=0))
    node.ticks(10)
    node.run.store.close()
    node.start(Run(tmp_path, clock=node.run.clock))
    node.ticks(30)
    assert {user: row[0] for user, row in node.report("user").items() if row[0]} == {"lena": 73, "root": 5}


NEXT, LAST = has(replace(FIT, pod="next")), has(replace(FIT, pod="last"))


@pytest.mark.parametrize(
    ("later", "name", "seconds"),
    [
        ((), "fit-0", {"fit-0": 119}),
        ((has(FIT), NEXT), "fit-0", {"fit-0": 90, "next": 30}),
        ((NEXT, LAST), "", {"next": 30, "last": 30}),
    ],
)
def test_a_name_by_an_allocation_remains_until_only_others_have_the_gpu(
    tmp_path: Path, later: tuple[Allocation, ...], name: str, seconds: dict[str, int]
) -> None:
    """The kubelet forgets a pod before its last process ends; it also lists a new pod late."""
    node = Machine(tmp_path, has(FIT))
    node.ticks(60, A)
    node.allocations = later
    state = node.ticks(60, A)
    assert (node.owners()[1][1], billed(state)) == (name, seconds)
