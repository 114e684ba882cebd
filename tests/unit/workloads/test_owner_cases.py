"""Whole nodes, tick by tick: owners of processes, then their metrics, books and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from builders import gpu, process, reading
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart, ProcessType, UtilizationSample
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import RuntimeList
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup
from gpuledger.workloads.owner_resolution import OwnerFacts
from gpuledger.workloads.pods.pod import Pod, Pods
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs
from ledger_helpers import UNIX, Run
from report_helpers import report_of

CARD = gpu(0)
UID_A, UID_B = "1a1a1a1a-0001-4001-8001-000000000001", "2b2b2b2b-0002-4002-8002-000000000002"
FIT = Workload("pod", "science", "fit-0", "main")
RESERVATION = Workload("pod", "kai-resource-reservation", "gpu-reservation-n1-zz9", "resource-reservation")
RANK = Pod(UID_A, "shop", "rank-a", containers={"a" * 64: "app"})


def in_pod(uid: str, digit: str) -> str:
    return f"/kubepods/burstable/pod{uid}/{digit * 64}"


def runs(
    pid: int, cgroup: str, *, name: str = "python3", types: str = "C", sm: float | None = 0.5
) -> GpuProcess:
    """A process that started 5 s after the first tick, or with it."""
    one = process(CARD, pid, name=name, types=types, sm=sm)
    start = ProcessStart("boot", pid, UNIX)
    return replace(one, host=HostFacts(start, uid=0, user="root", cgroup=f"0::{cgroup}\n"))


def has(owner: Workload, fraction: Fraction | None = Fraction(1)) -> Allocation:
    return Allocation(CARD, owner, "pod_resources", "nvidia.com/gpu", fraction)


def in_a_pod(one: GpuProcess) -> GpuProcess:
    return replace(one, host=replace(one.host, cgroup=f"0::{in_pod(UID_B, 'b')}\n"))


class Machine:
    """A node with one GPU, from the host facts of its processes to its ledger file."""

    def __init__(self, folder: Path, *allocations: Allocation, facts: OwnerFacts | None = None) -> None:
        self.allocations = allocations
        self.facts = facts or OwnerFacts(names_pods=True)
        self.start(Run(folder))
        self.energy = 0
        self.seen: Snapshot | None = None
        # Use of an engine that no process shows.
        self.busy = 0.0

    def start(self, run: Run) -> None:
        """Start the program, with nothing but the ledger file of an earlier run."""
        self.run = run
        self.lookup = OwnerLookup(
            directory=OwnerIndexes((), lambda: self.facts, [self._allocations_of]),
            known_owner=run.ledger.sessions.owner_of,
            job_users=run.ledger.job_users,
        )

    def _allocations_of(self, devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
        found = tuple(one for one in self.allocations if one.device in devices)
        return self.allocations if found == self.allocations else found

    def fail(self, *readings: Reading) -> None:
        """A tick of one second that read no list of processes; without `readings`, no GPU either."""
        now = self.run.clock
        now.advance(1)
        seen = Snapshot(
            now.now_unix,
            now.now_elapsed,
            SourceInfo("test"),
            readings,
            devices_failed=not readings,
            boot_id="boot-1",
        )
        self.run.ledger.post(self.lookup.assign_owners(seen))

    def ticks(self, seconds: int, *processes: GpuProcess) -> LedgerState:
        """Ticks of one second; the GPU draws 100 W and is as busy as its processes."""
        for _ in range(seconds):
            self.run.clock.advance(1)
            self.energy += 100_000
            now = self.run.clock
            busy = max([self.busy, *(one.usage.sm or 0.0 for one in processes)])
            values = {q.ENERGY: self.energy, q.UTILIZATION: busy}
            samples = tuple(
                UtilizationSample(each.pid, round((now.now_elapsed - 0.5) * 1e6), each.usage.sm, 0, 0, 0)
                for each in processes
                if each.usage.sm
            )
            one = reading(CARD, *processes, values=values, samples=samples)
            seen = Snapshot(now.now_unix, now.now_elapsed, SourceInfo("test"), (one,), boot_id="boot-1")
            self.seen = self.lookup.assign_owners(seen)
            state = self.run.ledger.post(self.seen)
        return state

    def owners(self) -> dict[int, tuple[str, str, str]]:
        """Kind, name and what is missing by pid."""
        assert self.seen is not None
        found = {one.pid: one.workload for one in self.seen.processes}
        return {pid: (one.kind, one.pod or one.container, one.missing) for pid, one in found.items()}

    def report(self, by: str = "owner") -> dict[str, tuple[int, int, int]]:
        """Billed and held-idle seconds and joules of each row, by the last word of its key; zeros omitted."""
        self.run.store.close()
        found = report_of(self.run.store.file, by)
        rows = {}
        for line in (*found.lines, *found.gpu_accounts):
            amounts = (line.gpu_microseconds or 0) / 1e6, float(line.held or 0), line.millijoules / 1000
            if any(map(round, amounts)):
                rows[next(filter(None, reversed(line.key)), line.account)] = tuple(map(round, amounts))
        return rows


WEB = RuntimeList({"c" * 64: "web"}, UNIX + 1000)


def held(state: LedgerState) -> dict[str, int]:
    """Held seconds by pod or by container, user or kind."""
    return {next(filter(None, (*row.labels[2:5], row.labels[0]))): round(row.held) for row in state.owners}


def billed(state: LedgerState) -> dict[str, int]:
    """Exported GPU seconds by pod, container, user or account; zeros omitted."""
    found = {
        next(filter(None, (row.labels[5], row.labels[6], row.labels[7], row.labels[3], row.labels[2]))): row
        for row in state.time.rows
        if row.microseconds >= 500_000
    }
    return {name: round(row.microseconds / 1e6) for name, row in found.items()}


A, B = runs(1, in_pod(UID_A, "a")), runs(2, in_pod(UID_B, "b"))
SHOP = OwnerFacts(Pods([RANK]), names_pods=True)
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
