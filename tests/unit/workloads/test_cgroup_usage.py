"""CPU time and memory of the cgroups of owners, in the layouts of cgroup v1 and v2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import gpu, process, reading
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import CgroupUsage, Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.cgroup_usage import CgroupUsageReader

A = gpu(0)
UID = "2f1b6c1e-7d0a-4b8e-9a53-0f5c8a9d2e11"
POD = f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
ID = "ab" * 32
GIB = 1 << 30
CONTAINER = f"{POD}/cri-containerd-{ID}.scope"

# What a cgroup text names, the folder of the owner, and the owner.
OWNERS = [
    ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "system.slice/slurmstepd.scope/job_7",
     Workload("slurm", job="7", step="0", user="ann")),
    (f"0::/{CONTAINER}", POD, Workload("pod", "ml", "train-0", "main", UID, ID)),
    (f"0::/system.slice/docker-{ID}.scope", f"system.slice/docker-{ID}.scope",
     Workload("container", container="web", container_id=ID)),
    ("0::/system.slice/ollama.service", "system.slice/ollama.service",
     Workload("unit", unit="ollama.service", user="ollama")),
]  # fmt: skip


HASH, SLUID, OTHER_ID = "f" * 32, "s5K1KKYAYG5D00", "cd" * 32
NESTED = f"kubepods/pod{UID}/{ID}/kubepods/pod{HASH}"
# Owners that are not what the cgroup names first, or that it names otherwise.
OWNERS_OF_OTHER_NAMES = [
    ("a job of which the path has the SLUID", f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0",
     f"system.slice/slurmstepd.scope/{SLUID}", Workload("slurm", job="131", step="0", user="ann")),
    ("a static pod, of which it has the hash", f"0::/kubepods/pod{HASH}/{ID}",
     f"kubepods/pod{HASH}", Workload("pod", "ml", "static-0", "main", UID, ID)),
    ("the pod around a static pod", f"0::/{NESTED}/{OTHER_ID}", f"kubepods/pod{UID}",
     Workload("pod", "ml", "vc-0", "k3s", UID, ID, inner_pod_uid=HASH)),
    ("the inner pod, if it is the known one", f"0::/{NESTED}/{OTHER_ID}", NESTED,
     Workload("pod", "ml", "static-0", "main", UID[:-1] + "2", OTHER_ID)),
    ("the container of a node of kind", f"0::/docker/{ID}/kubepods/pod{UID}/{OTHER_ID}", f"docker/{ID}",
     Workload("container", container="kind", container_id=ID, inner_pod_uid=UID)),
    ("a whole job, not the container in it", f"0::/slurm/uid_1/job_7/step_0/docker/{ID}", "slurm/uid_1/job_7",
     Workload("slurm", job="7", step="0", user="ann", container_id=ID)),
    ("an LXC container", "0::/lxc.payload.web/system.slice/a.service", "lxc.payload.web",
     Workload("container", container="web")),
]  # fmt: skip


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def in_cgroup(text: str, owner: Workload, pid: int = 1) -> GpuProcess:
    one = process(A, pid, workload=owner)
    return replace(one, host=replace(one.host, cgroup=text))


def read(reader: CgroupUsageReader, *processes: GpuProcess, at: float = 100.0) -> tuple[CgroupUsage, ...]:
    seen = Snapshot(at, at, SourceInfo("test"), (reading(A, *processes),))
    return reader.add(seen).cgroups


@pytest.mark.parametrize(("text", "folder", "owner"), OWNERS)
def test_the_cgroup_is_the_whole_owner(tmp_path: Path, text: str, folder: str, owner: Workload) -> None:
    write(
        tmp_path / folder,
        cpu__stat="usage_usec 1234567\nuser_usec 1",
        memory__peak=str(3 * GIB),
        memory__max=str(8 * GIB),
        cpuset__cpus__effective="0-3,8",
    )
    (found,) = read(CgroupUsageReader(tmp_path), in_cgroup(text, owner), in_cgroup(text, owner, 2))
    assert found == CgroupUsage(owner, 1_234_567, 3 * GIB, False, 8 * GIB, 5, is_limited=True)


@pytest.mark.parametrize(("what", "text", "folder", "owner"), OWNERS_OF_OTHER_NAMES)
def test_an_owner_that_the_cgroup_names_otherwise_has_its_whole_cgroup(
    tmp_path: Path, what: str, text: str, folder: str, owner: Workload
) -> None:
    write(tmp_path / folder, cpu__stat="usage_usec 5", memory__peak=str(GIB))
    (found,) = read(CgroupUsageReader(tmp_path), in_cgroup(text, owner))
    assert (found.workload, found.cpu, found.memory_peak) == (owner, 5, GIB), what
    assert found.sluid == (SLUID if SLUID in text else "")


def test_limits_of_the_cgroups_around_it_count(tmp_path: Path) -> None:
    text, folder, owner = OWNERS[0]
    write(tmp_path, cpuset__cpus__effective="0-63")
    write((tmp_path / folder).parent, memory__max=str(4 * GIB), cpuset__cpus__effective="0-15")
    write(tmp_path / folder, cpu__stat="usage_usec 5", memory__peak="1", memory__max="max")
    (found,) = read(CgroupUsageReader(tmp_path), in_cgroup(text, owner))
    assert (found.memory_limit, found.cpus) == (4 * GIB, 16)


def test_without_a_limit_it_is_the_machine(tmp_path: Path) -> None:
    text, folder, owner = OWNERS[0]
    write(tmp_path / folder, cpu__stat="usage_usec 5", memory__max="max")
    (found,) = read(CgroupUsageReader(tmp_path), in_cgroup(text, owner))
    assert found.memory_peak is None
    assert found.memory_limit is not None
    assert (found.memory_limit > 0, found.is_limited) == (True, False)
    assert found.cpus is not None


def test_an_older_kernel_has_only_the_memory_of_the_moment(tmp_path: Path) -> None:
    text, folder, owner = OWNERS[0]
    write(tmp_path / folder, cpu__stat="usage_usec 5", memory__current=str(GIB))
    (found,) = read(CgroupUsageReader(tmp_path), in_cgroup(text, owner))
    assert (found.memory_peak, found.is_sampled) == (GIB, True)


def test_cgroup_v1_has_a_folder_in_each_hierarchy(tmp_path: Path) -> None:
    job = "slurm/uid_1000/job_7"
    text = "".join(
        f"{number}:{names}:/{job}/step_0\n"
        for number, names in ((9, "memory"), (4, "cpu,cpuacct"), (3, "cpuset"), (1, "name=systemd"))
    )
    write(tmp_path / "cpuacct" / job, cpuacct__usage="5000000000")
    write(tmp_path / "cpuset" / job, cpuset__effective_cpus="4-7")
    write(
        tmp_path / "memory" / job,
        memory__max_usage_in_bytes=str(2 * GIB),
        memory__limit_in_bytes=str(16 * GIB),
    )
    write(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712")
    owner = Workload("slurm", job="7", user="ann")
    (found,) = read(CgroupUsageReader(tmp_path), in_cgroup(text, owner))
    assert found == CgroupUsage(owner, 5_000_000, 2 * GIB, False, 16 * GIB, 4, is_limited=True)


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        # The cgroup of a shell in somebody's session, of a job that is known in another way.
        ("0::/user.slice/user-1000.slice/session-3.scope", Workload("slurm", job="7")),
        # Another job than the owner's.
        ("0::/system.slice/slurmstepd.scope/job_8/step_0", Workload("slurm", job="7")),
        # Seen from a cgroup namespace: the folder is not known.
        ("0::/../../system.slice/slurmstepd.scope/job_7/step_0", Workload("slurm", job="7")),
        ("", Workload("user", user="ann")),
        ("0::/", Workload("user", user="ann")),
    ],
)
def test_a_cgroup_that_is_not_the_owners_is_not_read(tmp_path: Path, text: str, owner: Workload) -> None:
    for folder in ("", "system.slice/slurmstepd.scope/job_7", "system.slice/slurmstepd.scope/job_8"):
        write(tmp_path / folder, cpu__stat="usage_usec 5", memory__peak="1")
    assert read(CgroupUsageReader(tmp_path), in_cgroup(text, owner)) == ()


def test_an_owner_that_the_host_names_is_not_looked_up_here(tmp_path: Path) -> None:
    text, folder, owner = OWNERS[0]
    write(tmp_path / folder, cpu__stat="usage_usec 5")
    one = in_cgroup(text, owner)
    simulated = replace(one, host=replace(one.host, workload=owner))
    assert read(CgroupUsageReader(tmp_path), simulated) == ()


def test_nothing_that_can_be_read_is_absent(tmp_path: Path) -> None:
    text, folder, owner = OWNERS[0]
    assert read(CgroupUsageReader(tmp_path), in_cgroup(text, owner)) == ()
    write(tmp_path / folder, cpu__stat="nonsense", memory__peak="max")
    assert read(CgroupUsageReader(tmp_path), in_cgroup(text, owner)) == ()


@pytest.mark.parametrize("layout", ["v2", "v1"])
def test_a_job_that_only_has_the_device_is_read(tmp_path: Path, layout: str) -> None:
    owner = Workload("slurm", job="7", user="ann", found_by="slurm")
    if layout == "v2":
        folder = tmp_path / "system.slice/slurmstepd.scope/job_7"
        write(folder, cpu__stat="usage_usec 5", memory__peak=str(GIB), memory__max=str(2 * GIB))
    else:
        job = "slurm/uid_1000/job_7"
        write(tmp_path / "cpu,cpuacct" / job, cpuacct__usage="5000")
        limits = {"memory__max_usage_in_bytes": str(GIB), "memory__limit_in_bytes": str(2 * GIB)}
        write(tmp_path / "memory" / job, **limits)
    other = Workload("slurm", job="8", user="dan", found_by="slurm")
    allocated = (Allocation(A, owner), Allocation(A, other))
    seen = Snapshot(100.0, 100.0, SourceInfo("test"), (reading(A),), allocated)
    (found,) = CgroupUsageReader(tmp_path).add(seen).cgroups
    assert (found.workload, found.cpu, found.memory_peak) == (owner, 5, GIB)
    assert (found.memory_limit, found.is_limited) == (2 * GIB, True)


def test_a_number_that_jobs_of_two_users_have_is_not_read(tmp_path: Path) -> None:
    for uid in (1000, 2000):
        write(tmp_path / f"memory/slurm/uid_{uid}/job_7", memory__max_usage_in_bytes=str(GIB))
    allocated = (Allocation(A, Workload("slurm", job="7", user="ann", found_by="slurm")),)
    seen = Snapshot(100.0, 100.0, SourceInfo("test"), (reading(A),), allocated)
    assert CgroupUsageReader(tmp_path).add(seen).cgroups == ()


def test_it_is_read_every_ten_seconds(tmp_path: Path) -> None:
    text, folder, owner = OWNERS[0]
    write(tmp_path / folder, cpu__stat="usage_usec 5")
    reader, one = CgroupUsageReader(tmp_path), in_cgroup(text, owner)
    assert [bool(read(reader, one, at=100.0 + second)) for second in range(22)] == [
        second in (0, 10, 20) for second in range(22)
    ]
    # The clock of a replayed recording can go back.
    assert read(reader, one, at=3.0)
