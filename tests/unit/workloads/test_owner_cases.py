"""Whole nodes, tick by tick: owners of processes, then their metrics, books and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gpuledger.model.process import GpuProcess, HostFacts, ProcessType
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import RuntimeList
from gpuledger.workloads.owner_resolution import OwnerFacts
from gpuledger.workloads.pods.pod import Pod, Pods
from ledger_helpers import UNIX
from owner_machine import (
    CARD,
    FIT,
    RANK,
    RESERVATION,
    SHOP,
    UID_A,
    UID_B,
    A,
    B,
    Machine,
    billed,
    has,
    held,
    in_a_pod,
    in_pod,
    runs,
)

UNNAMED = "pod"


def test_with_the_kubelet_alone_two_pods_on_one_gpu_are_both_unknown(tmp_path: Path) -> None:
    """The allocation is billed to its pod, which may be one of them: it does not certainly hold it idle."""
    node = Machine(tmp_path, has(FIT))
    state = node.ticks(60, A, B)
    assert node.owners() == {1: ("pod", "", "pod_name"), 2: ("pod", "", "pod_name")}
    assert (held(state), billed(state)) == ({"fit-0": 0, "unknown": 0}, {"fit-0": 59})
    assert node.report() == {"fit-0": (59, 0, 0), UNNAMED: (0, 0, 5800)}


def test_a_pod_named_by_its_allocation_is_billed_alone_when_a_stranger_comes(tmp_path: Path) -> None:
    node = Machine(tmp_path, has(FIT))
    node.ticks(60, A)
    assert node.owners() == {1: ("pod", "fit-0", "")}
    node.ticks(60, A, B)
    assert node.report() == {"fit-0": (119, 0, 8800), UNNAMED: (0, 0, 3000)}


def test_a_stranger_on_the_gpu_of_a_pod_with_a_known_uid_is_never_that_pod(tmp_path: Path) -> None:
    node = Machine(tmp_path, has(replace(FIT, pod_uid=UID_A)))
    state = node.ticks(60, B)
    assert node.owners() == {2: ("pod", "", "pod_name")}
    assert held(state) == {"fit-0": 59, "unknown": 0}, "its own pod certainly did nothing"
    assert node.report() == {"fit-0": (59, 59, 0), UNNAMED: (0, 0, 5800)}


def test_what_was_used_before_the_name_arrived_is_the_pods(tmp_path: Path) -> None:
    node = Machine(tmp_path, facts=OwnerFacts(names_pods=True))
    assert billed(node.ticks(20, A)) == {}
    node.facts = SHOP
    assert billed(node.ticks(40, A)) == {"rank-a": 59}
    assert node.report() == {"rank-a": (59, 0, 5800)}


OUTER = Pod(UID_B, "tenants", "vc-server-0", containers={"b" * 64: "k3s"})


@pytest.mark.parametrize("seconds", [0, 20])
def test_a_pod_inside_a_pod_is_billed_to_the_outer_one(tmp_path: Path, seconds: int) -> None:
    """Also for the time before the name of the outer one arrived."""
    node = Machine(tmp_path, facts=OwnerFacts(names_pods=True))
    nested = runs(1, in_pod(UID_B, "b") + in_pod(UID_A, "a"))
    if seconds:
        node.ticks(seconds, nested)
    node.facts = OwnerFacts(Pods([OUTER]), names_pods=True)
    state = node.ticks(60 - seconds, nested)
    assert node.owners() == {1: ("pod", "vc-server-0", "inner_name")}
    assert (held(state), billed(state)) == ({"vc-server-0": 0}, {"vc-server-0": 59})
    assert node.report() == {"vc-server-0": (59, 0, 5800)}


BOX = runs(1, f"/docker/{'c' * 64}")
SPACE = has(replace(FIT, namespace="dev", pod="space-7", pod_uid=UID_B))


def test_a_container_of_a_docker_in_a_pod_is_billed_to_the_pod(tmp_path: Path) -> None:
    """Also for the time before Docker's list of the machine could have had it."""
    node = Machine(tmp_path, SPACE, facts=OwnerFacts(runtimes=(RuntimeList({}, UNIX - 5),)))
    node.ticks(20, BOX)
    assert node.owners() == {1: ("container", "c" * 12, "container_name")}
    node.facts = OwnerFacts(runtimes=(RuntimeList({}, UNIX + 20),))
    state = node.ticks(40, BOX)
    assert node.owners() == {1: ("pod", "space-7", "")}
    assert (held(state)["space-7"], billed(state)) == (0, {"space-7": 59})
    assert node.report() == {"space-7": (59, 0, 5800)}


def test_a_container_of_the_machine_on_the_gpu_of_a_pod_is_itself(tmp_path: Path) -> None:
    node = Machine(tmp_path, SPACE, facts=OwnerFacts(runtimes=(RuntimeList({"c" * 64: "web"}, UNIX),)))
    state = node.ticks(60, BOX)
    assert held(state) == {"space-7": 59, "web": 0}
    assert node.report() == {"space-7": (59, 59, 0), "web": (0, 0, 5800)}


LOGIN = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("cgroup", "row", "idle"),
    [
        ("/custom/thing", "root", 59),
        ("/azure/agent", "root", 59),
        ("/", "root", 59),
        (f"{LOGIN}/user.slice/libpod-{'c' * 64}.scope/container", "c" * 12, 0),
        (f"{LOGIN}/user.slice/docker-{'c' * 64}.scope", "c" * 12, 0),
        (f"/system.slice/nerdctl-{'c' * 64}.scope", "c" * 12, 0),
        (f"/default/{'c' * 64}", "c" * 12, 0),
        (f"/machine.slice/libpod-{'c' * 64}.scope", "c" * 12, 0),
        (f"{LOGIN}/kubepods/pod{UID_B}", "1000", 59),
        (f"{LOGIN}/slurmstepd.scope/job_7", "1000", 59),
    ],
)
def test_what_runs_on_the_machine_is_not_billed_to_the_pod_that_has_the_gpu(
    tmp_path: Path, cgroup: str, row: str, idle: int
) -> None:
    """Only the socket of Docker is read. The pod pays for its GPU, and for no energy.

    A container may be inside the pod, which is then not idle.
    """
    space = Pod(UID_B, "dev", "space-7")
    docker = (RuntimeList({}, UNIX + 1000),)
    node = Machine(tmp_path, SPACE, facts=OwnerFacts(Pods([space]), runtimes=docker, names_pods=True))
    node.ticks(60, runs(1, cgroup))
    assert node.report() == {"space-7": (59, idle, 0), row: (0, 0, 5800)}


def test_a_process_that_cannot_be_read_may_be_of_the_pod_that_has_the_gpu(tmp_path: Path) -> None:
    node = Machine(tmp_path, SPACE)
    unseen = replace(BOX, host=HostFacts(BOX.host.start, missing="permission"))
    state = node.ticks(60, unseen)
    assert node.owners() == {1: ("unknown", "", "permission")}
    assert held(state)["space-7"] == 0


def test_a_pod_that_names_a_cgroup_after_another_pod_pays_itself(tmp_path: Path) -> None:
    pods = Pods([RANK, Pod(UID_B, "lab", "mal", containers={"b" * 64: "main"})])
    node = Machine(tmp_path, facts=OwnerFacts(pods, names_pods=True))
    node.ticks(60, runs(1, in_pod(UID_B, "b") + in_pod(UID_A, "a")))
    assert node.report() == {"mal": (59, 0, 5800)}


def test_a_miner_that_is_named_like_a_server_pays(tmp_path: Path) -> None:
    node = Machine(tmp_path, facts=SHOP)
    miner = runs(5, "/user.slice/user-1666.slice/session-1.scope", name="/tmp/nvidia-cuda-mps-server", sm=0.9)
    miner = replace(miner, host=replace(miner.host, uid=1666, user="mallory"))
    node.ticks(60, miner, SERVER, CLIENTS[0])
    assert node.report().keys() == {"mallory", "rank-a"}
    assert node.report()["mallory"][0] == node.report()["rank-a"][0]


TWO = (BOX, runs(2, f"/docker/{'d' * 64}"))
NAMES = OwnerFacts(runtimes=(RuntimeList({"c" * 64: "web", "d" * 64: "db"}, UNIX + 30),))
NOT_READ = OwnerFacts(runtimes=(RuntimeList({}, None, tried=False, success=False),))


def test_without_a_socket_each_container_is_an_owner(tmp_path: Path) -> None:
    node = Machine(tmp_path, facts=OwnerFacts())
    state = node.ticks(60, *TWO)
    short = ("c" * 12, "d" * 12)
    assert held(state) == dict.fromkeys(short, 0)
    assert billed(state) == dict.fromkeys(short, 30)
    assert node.report() == dict.fromkeys(short, (30, 0, 2900))
    assert {row.labels[6] for row in state.energy.owners if row.millijoules} == {*short}


@pytest.mark.parametrize(
    ("first", "seconds", "before"), [(OwnerFacts(), 40, 20), (NOT_READ, 20, 0), (NOT_READ, 50, 24)]
)
def test_a_report_joins_a_container_and_its_late_name(
    tmp_path: Path, first: OwnerFacts, seconds: int, before: int
) -> None:
    """As with pods: series that were exported end, and the names are posted backwards in the books."""
    node = Machine(tmp_path, facts=first)
    exported = billed(node.ticks(seconds, *TWO))
    assert exported == (dict.fromkeys(("c" * 12, "d" * 12), before) if before else {})
    node.facts = NAMES
    assert billed(node.ticks(91 - seconds, *TWO)).keys() >= {"web", "db"}
    assert node.report() == {"web": (45, 0, 4450), "db": (45, 0, 4450)}


def test_a_placeholder_holds_nothing_while_a_pod_works_on_its_gpu(tmp_path: Path) -> None:
    node = Machine(tmp_path, has(RESERVATION), facts=SHOP)
    state = node.ticks(60, A)
    assert (held(state), billed(state)) == ({"rank-a": 0}, {"rank-a": 59})
    assert node.report() == {"rank-a": (59, 0, 5800)}


def test_a_placeholder_of_unknown_pods_is_named(tmp_path: Path) -> None:
    node = Machine(tmp_path, has(RESERVATION), facts=SHOP)
    assert held(node.ticks(60)) == {RESERVATION.pod: 59}
    assert node.report() == {RESERVATION.pod: (59, 59, 0), "idle": (0, 0, 5800)}


def test_t17_a_placeholder_is_no_owner_beside_the_fractions_it_stands_for(tmp_path: Path) -> None:
    mine = replace(FIT, namespace="shop", pod="rank-a", container="app", pod_uid=UID_A)
    half = Allocation(CARD, mine, "kai", "kai", Fraction(1, 2))
    node = Machine(tmp_path, has(RESERVATION), half, facts=SHOP)
    state = node.ticks(61, A)
    assert (held(state), billed(state)) == ({"rank-a": 0}, {"rank-a": 30, "idle": 30})


XORG = runs(8, "/system.slice/gdm.service", name="Xorg", types="G", sm=0.02)
WAYLAND = runs(9, "/user.slice/user-1001.slice/session-4.scope", name="gnome-shell", types="G", sm=0.3)
SERVER = runs(7, "/system.slice/mps.service", name="nvidia-cuda-mps-server", sm=0.0)
DAEMON = runs(6, "/system.slice/nvidia-persistenced.service", name="nvidia-persistenced", sm=0.0)
DESKTOP = replace(A, types=XORG.types, usage=replace(A.usage, sm=0.0))
CLIENTS = [replace(one, types=frozenset({ProcessType.MPS, ProcessType.COMPUTE})) for one in (A, B)]
MINE = has(replace(FIT, namespace="shop", pod="rank-a", container="app", pod_uid=UID_A))


@pytest.mark.parametrize(
    ("what", "allocations", "processes", "expected"),
    [
        ("T19", [MINE], [A, XORG, WAYLAND], {"rank-a": (60, 0)}),
        ("T19, in a pod without an allocation", [], [A, XORG, WAYLAND], {"rank-a": (60, 0)}),
        ("a screen on an idle GPU", [], [XORG], {"idle": (60, 0)}),
        ("a game", [], [WAYLAND], {"1001": (60, 0)}),
        ("an idle desktop in the pod that has the GPU", [MINE], [DESKTOP], {"rank-a": (60, 60)}),
        ("a screen on an allocated, idle GPU", [MINE], [XORG], {"rank-a": (60, 60)}),
        ("T16", [], [SERVER, *CLIENTS], {"rank-a": (30, 0), "unknown": (30, 0)}),
        ("an MPS server without clients", [], [SERVER, DAEMON], {"idle": (60, 0)}),
        ("an MPS server in a pod", [], [in_a_pod(SERVER)], {"idle": (60, 0)}),
        ("an MPS server in a pod, and a client", [], [in_a_pod(SERVER), A], {"rank-a": (60, 0)}),
        ("T18", [has(FIT, Fraction(0))], [], {"idle": (60, 0)}),
        ("T18, and a pod", [has(FIT, Fraction(0)), MINE], [A], {"rank-a": (60, 0)}),
    ],
)  # fmt: skip
def test_infrastructure_is_no_holder(
    tmp_path: Path,
    what: str,
    allocations: Sequence[Allocation],
    processes: Sequence[GpuProcess],
    expected: dict[str, tuple[int, int]],
) -> None:
    node = Machine(tmp_path, *allocations, facts=SHOP)
    state = node.ticks(61, *processes)
    rows = {name: (seconds, held(state).get(name, 0)) for name, seconds in billed(state).items()}
    assert rows == expected, what
    assert held(state).keys() == expected.keys() - {"idle"}, what
    booked = {name: seconds for name, (seconds, *_) in node.report().items() if seconds}
    assert booked == {name.replace("unknown", UNNAMED): seconds for name, (seconds, _) in expected.items()}


def test_t28_busy_engines_of_nobody_are_unattributed(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    node.busy = 0.5
    assert billed(node.ticks(61)) == {"unattributed": 60}


QUARTER = Fraction(1, 4)


def test_t29_a_container_beside_the_allocated_one_is_the_pods(tmp_path: Path) -> None:
    sidecar = Pod(UID_A, "shop", "rank-a", containers={"a" * 64: "sidecar", "e" * 64: "app"})
    mine = replace(FIT, namespace="shop", pod="rank-a", container="app", pod_uid=UID_A)
    node = Machine(tmp_path, has(mine, QUARTER), facts=OwnerFacts(Pods([sidecar]), names_pods=True))
    assert billed(node.ticks(61, A)) == {"rank-a": 15, "idle": 45}
    assert node.report("container")["sidecar"][0] == 15


def test_t30_a_claim_of_two_containers_and_another_pod(tmp_path: Path) -> None:
    first = Pod(UID_A, "shop", "rank-a", containers={"a" * 64: "app", "e" * 64: "side"})
    second = Pod(UID_B, "lab", "q", containers={"b" * 64: "main"})
    owners = [
        ("shop", "rank-a", "app", UID_A),
        ("shop", "rank-a", "side", UID_A),
        ("lab", "q", "main", UID_B),
    ]
    claims = [Allocation(CARD, Workload("pod", *one), "dra", "claim", Fraction(1)) for one in owners]
    node = Machine(tmp_path, *claims, facts=OwnerFacts(Pods([first, second]), names_pods=True))
    node.ticks(61, A, runs(3, in_pod(UID_A, "e")), B)
    found = {name: seconds for name, (seconds, *_) in node.report("container").items()}
    assert found == {"app": 15, "side": 15, "main": 30}


def of_batch(job: str) -> Allocation:
    return has(Workload("job", job=job, found_by="job_map"))


PBS = runs(1, "/pbs_jobs.service/jobs/12345.1")


@pytest.mark.parametrize(
    ("ids", "job"),
    [
        (["12345.pbs"], "12345.pbs"),
        (["12345[1].pbs"], "12345[1].pbs"),
        (["12345"], "12345"),
        (["12345.pbs", "7.pbs"], "12345.pbs"),
        # Another job, and two tasks of which either may be it.
        (["123456.pbs"], "12345.1"),
        (["12345[1].pbs", "12345[2].pbs"], "12345.1"),
        ([], "12345.1"),
    ],
)
def test_a_job_of_pbs_on_cgroup_v2_has_the_id_of_the_only_such_job_on_its_gpu(
    tmp_path: Path, ids: list[str], job: str
) -> None:
    node = Machine(tmp_path, *map(of_batch, ids))
    node.ticks(5, PBS, runs(2, "/pbs_jobs.service/jobs/12345.1/child"))
    assert node.seen is not None
    assert {one.workload.job for one in node.seen.processes} == {job}


@pytest.mark.parametrize(
    ("ids", "job"), [(["4711[3]"], "4711[3]"), (["4711"], "4711"), (["4711[3]", "4711[4]"], "4711")]
)
def test_a_job_of_an_array_of_lsf_has_the_id_of_the_only_one_on_its_gpu(
    tmp_path: Path, ids: list[str], job: str
) -> None:
    node = Machine(tmp_path, *map(of_batch, ids))
    node.ticks(5, runs(1, "/lsf/cluster1/job.4711.20813.1432828463"))
    assert node.seen is not None
    assert {one.workload.job for one in node.seen.processes} == {job}


def test_a_job_of_pbs_keeps_its_id_after_its_epilog_and_does_not_hold_its_gpu_idle(tmp_path: Path) -> None:
    node = Machine(tmp_path, of_batch("12345.pbs"))
    node.ticks(30, PBS)
    node.allocations = ()
    node.ticks(30, PBS)
    assert node.report() == {"12345.pbs": (59, 0, 5800)}
