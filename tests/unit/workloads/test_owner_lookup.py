"""OwnerLookup: the owners of the processes in a Snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup, owners_from_host

GPU = Gpu("GPU-0", 0)
GPU1 = Gpu("GPU-1", 1)
UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
POD = f"0::/kubepods/burstable/pod{UID}/{ID}\n"
LOGIN = "0::/user.slice/user-1000.slice/session-3.scope\n"
SERVICE = "0::/system.slice/ollama.service\n"
ROOT = "0::/\n"


def facts(
    cgroup: str = "", *, ticks: int = 1, missing: str = "", user: str = "", uid: int | None = None
) -> HostFacts:
    start = ProcessStart(boot_id="b", ticks=ticks, unix=0.0)
    return HostFacts(start=start, cgroup=cgroup, missing=missing, user=user, uid=uid)


def snapshot(*processes: GpuProcess) -> Snapshot:
    gpus = dict.fromkeys(process.device for process in processes)
    readings = [Reading(gpu, processes=tuple(p for p in processes if p.device == gpu)) for gpu in gpus]
    return Snapshot(unix=0.0, elapsed=0.0, source=SourceInfo("test"), readings=tuple(readings))


FLUX = "0::/user.slice/user-990.slice/user@990.service/app.slice/imp-shell-0-f23sRkNe3.service\n"


@pytest.mark.parametrize(
    ("uid", "kind", "job", "user"),
    [
        (1000, "job", "f23sRkNe3", "mira"),
        # A unit of a user's own service manager can have any name.
        (990, "user", "", "mira"),
        (None, "user", "", ""),
    ],
)
def test_a_flux_job_belongs_to_the_user_of_its_processes(
    uid: int | None, kind: str, job: str, user: str
) -> None:
    host = facts(FLUX, user="" if uid is None else "mira", uid=uid)
    (owner,) = owners_from_host(host, lambda uid: "flux" if uid == 990 and host.uid is not None else "")
    assert (owner.kind, owner.job, owner.user) == (kind, job, user)


def test_a_login_has_the_name_of_its_user_as_soon_as_it_is_known() -> None:
    names: dict[int, str] = {}
    lookup = OwnerLookup(lambda uid: names.get(uid, str(uid)), name_changes=lambda: len(names))
    seen = snapshot(GpuProcess(GPU, 1, facts(LOGIN, user="root", uid=0)))
    assert [one.workload.user for one in lookup.assign_owners(seen).processes] == ["1000"]
    names[1000] = "alice"
    assert [one.workload.user for one in lookup.assign_owners(seen).processes] == ["alice"]


def test_the_user_of_a_login_is_looked_up_again_while_only_root_works_there() -> None:
    """A directory that was down says nothing when it is back: it is only queried again."""
    names: dict[int, str] = {}
    lookup = OwnerLookup(lambda uid: names.get(uid, str(uid)))
    seen = snapshot(GpuProcess(GPU, 1, facts(LOGIN, user="root", uid=0)))
    users = []
    for second in range(12):
        (process,) = lookup.assign_owners(replace(seen, elapsed=float(second))).processes
        users.append(process.workload.user)
        names[1000] = "alice"
    assert users == ["1000"] * 10 + ["alice"] * 2


def test_a_pod_has_its_uid_before_its_name() -> None:
    assert owners_from_host(facts(POD, user="root", uid=0))[0] == Workload(
        kind="pod", pod_uid=UID, container_id=ID, user="root", found_by="cgroup", missing="pod_name"
    )


@pytest.mark.parametrize(
    ("host", "kind", "user", "missing"),
    [
        (facts(SERVICE, user="ollama", uid=990), "unit", "ollama", ""),
        (facts(LOGIN, user="alice", uid=1000), "user", "alice", ""),
        (facts(f"0::/docker/{ID}\n", user="root", uid=0), "container", "root", "container_name"),
        (facts("0::/lxc.payload.web\n", user="root", uid=0), "container", "root", ""),
        (facts("0::/slurm/uid_1000/job_1\n", user="alice", uid=1000), "slurm", "alice", ""),
        (facts(ROOT, user="alice", uid=1000), "user", "alice", "no_cgroup"),
        (facts(ROOT), "unknown", "", "no_cgroup"),
        (facts("", user="alice", uid=1000), "user", "alice", "no_cgroup"),
        (facts("0::/../x\n", user="alice", uid=1000), "user", "alice", "cgroup_namespace"),
        (facts("0::/strange/form\n", user="alice", uid=1000), "user", "alice", "unknown_cgroup"),
        (facts(missing="pid_namespace"), "unknown", "", "pid_namespace"),
        (facts(missing="not_found"), "unknown", "", "not_found"),
        (facts(missing="remote"), "unknown", "", "remote"),
        (facts(missing="permission"), "unknown", "", "permission"),
        (facts(missing="exited"), "unknown", "", "exited"),
        (facts(POD, missing="exited"), "pod", "", "pod_name"),
        (facts(SERVICE, missing="exited"), "unit", "", ""),
    ],
)
def test_the_kind_is_the_most_specific_owner_and_missing_is_the_reason(
    host: HostFacts, kind: str, user: str, missing: str
) -> None:
    found = owners_from_host(host)[0]
    assert (found.kind, found.user, found.missing) == (kind, user, missing)


@pytest.mark.parametrize(
    ("cgroup", "user"),
    [
        (LOGIN, "alice"),
        ("0::/slurm/uid_1000/job_1/step_0\n", "alice"),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n", "alice"),
        (SERVICE, "root"),
        ("0::/lxc.payload.web/user.slice/user-1000.slice/session-3.scope\n", "root"),
    ],
)
def test_a_process_in_a_login_or_job_belongs_to_its_user_whatever_its_uid(cgroup: str, user: str) -> None:
    assert owners_from_host(facts(cgroup, user="root", uid=0), {1000: "alice"}.__getitem__)[0].user == user


def test_an_owner_known_to_the_host_is_used_unchanged() -> None:
    known = Workload(
        kind="pod", namespace="ml", pod="train-0", container="main", user="u", found_by="simulator"
    )
    host = replace(facts(SERVICE, user="root"), workload=known)
    assert owners_from_host(host)[0] is known


def test_a_known_owner_without_a_user_gets_the_user_of_the_process() -> None:
    known = Workload(kind="pod", pod="train-0", found_by="simulator")
    assert owners_from_host(replace(facts(user="root"), workload=known)) == (replace(known, user="root"),)


def test_every_process_of_every_device_gets_an_owner() -> None:
    instance = Instance("MIG-1", GPU1, 1, 0, 0)
    named = OwnerLookup().assign_owners(
        snapshot(
            GpuProcess(GPU, 1, facts(POD)),
            GpuProcess(GPU, 2, facts(SERVICE)),
            GpuProcess(instance, 3, facts(LOGIN)),
        )
    )
    assert [process.workload.kind for process in named.processes] == ["pod", "unit", "user"]


def test_a_device_without_a_process_list_is_unchanged() -> None:
    blind = Snapshot(0.0, 0.0, SourceInfo("test"), readings=(Reading(GPU, processes=None),))
    assert OwnerLookup().assign_owners(blind) is blind


def test_unchanged_readings_are_the_same_objects() -> None:
    lookup = OwnerLookup()
    first = lookup.assign_owners(
        snapshot(GpuProcess(GPU, 1, facts(POD)), GpuProcess(GPU1, 2, facts(SERVICE)))
    )
    assert lookup.assign_owners(first) is first
    fresh = replace(first.readings[1], processes=(GpuProcess(GPU1, 2, facts(SERVICE)),))
    again = lookup.assign_owners(replace(first, readings=(first.readings[0], fresh)))
    assert again.readings[0] is first.readings[0]
    assert (
        next(iter(again.readings[1].processes or ())).workload
        is next(iter(first.readings[1].processes or ())).workload
    )


def test_a_process_on_two_devices_is_looked_up_once() -> None:
    shared = facts(POD)
    named = OwnerLookup().assign_owners(snapshot(GpuProcess(GPU, 1, shared), GpuProcess(GPU1, 1, shared)))
    first, second = named.processes
    assert first.workload is second.workload


def test_changed_host_facts_give_a_new_owner() -> None:
    lookup = OwnerLookup()
    lookup.assign_owners(snapshot(GpuProcess(GPU, 1, facts(ROOT))))
    named = lookup.assign_owners(snapshot(GpuProcess(GPU, 1, facts(POD))))
    assert [process.workload.kind for process in named.processes] == ["pod"]


def test_a_reused_pid_gets_its_own_owner() -> None:
    lookup = OwnerLookup()
    lookup.assign_owners(snapshot(GpuProcess(GPU, 1, facts(POD, ticks=1))))
    named = lookup.assign_owners(snapshot(GpuProcess(GPU, 1, facts(SERVICE, ticks=2))))
    assert [process.workload.kind for process in named.processes] == ["unit"]


def test_only_the_processes_of_the_last_snapshot_are_cached() -> None:
    lookup = OwnerLookup()
    for batch in range(0, 10_000, 100):
        pids = range(batch, batch + 100)
        lookup.assign_owners(snapshot(*(GpuProcess(GPU, pid, facts(SERVICE, ticks=pid)) for pid in pids)))
        assert lookup.cached_processes == 100


def test_unresolved_processes_are_counted_once_by_reason() -> None:
    shared = facts(POD, ticks=7)
    named = OwnerLookup().assign_owners(
        snapshot(
            GpuProcess(GPU, 1, shared),
            GpuProcess(GPU1, 1, shared),
            GpuProcess(GPU, 2, facts(POD, ticks=8)),
            GpuProcess(GPU, 3, facts(SERVICE)),
            GpuProcess(GPU, 4, facts(missing="not_found")),
        )
    )
    assert named.unresolved == {"pod_name": 2, "not_found": 1}


def test_the_allocation_of_a_job_has_the_user_of_its_processes() -> None:
    """A job-mapping file names no user. With two owners, a GPU that the job uses would be held."""
    job = Workload(kind="job", job="7.pbs", found_by="job_map")
    lookup = OwnerLookup(directory=OwnerIndexes(allocation_sources=[lambda _: (Allocation(GPU, job),)]))
    resident = GpuProcess(GPU, 42, host=facts("0::/pbs_jobs.service/jobs/7.pbs", user="alice", uid=1000))
    idle = replace(snapshot(), readings=(Reading(GPU, processes=()),))
    users = [
        lookup.assign_owners(seen).allocations[0].workload.user for seen in (idle, snapshot(resident), idle)
    ]
    assert users == ["", "alice", "alice"]


@pytest.mark.parametrize(
    ("users", "user"),
    [
        ([("alice", 1000, 2.0), ("root", 0, 1.0)], "alice"),
        ([("root", 0, 1.0), ("alice", 1000, 2.0)], "alice"),
        ([("root", 0, 1.0)], "root"),
        ([("alice", 1000, 1.0), ("bob", 1001, 2.0)], "alice"),
        ([("bob", 1001, 2.0), ("alice", 1000, 1.0)], "alice"),
    ],
)
def test_of_several_users_of_a_job_the_one_with_the_oldest_process_counts_and_not_root(
    users: list[tuple[str, int, float]], user: str
) -> None:
    job = Workload(kind="job", job="7.pbs", found_by="job_map")
    lookup = OwnerLookup(directory=OwnerIndexes(allocation_sources=[lambda _: (Allocation(GPU, job),)]))
    cgroup = "0::/pbs_jobs.service/jobs/7.pbs"
    residents = [
        GpuProcess(
            GPU, pid, host=replace(facts(cgroup, user=name, uid=uid), start=ProcessStart("b", pid, unix))
        )
        for pid, (name, uid, unix) in enumerate(users)
    ]
    named = lookup.assign_owners(snapshot(*residents))
    assert named.allocations[0].workload.user == user
