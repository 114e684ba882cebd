"""SlurmReader: jobs in cgroup and /proc trees."""

from __future__ import annotations

import logging
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.slurm.job_cgroups import find_job_cgroups, has_slurm_cgroup
from gpuledger.workloads.slurm.jobs import job_id_in_title, parse_environment
from slurm_tree import GPU_A, GRES, SCOPE, SLUID, Machine, refs


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "system.slice/gpu01_slurmstepd.scope/job_7/step_0/user/task_0",
        "slurm.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "hpc.slice/hpc-slurm.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "system.slice/docker-1.scope/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "unified/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        "freezer/slurm/uid_1000/job_7/step_0",
        "devices/slurm_gpu01/uid_1000/job_7/step_0/task_0",
        "cpu,cpuacct/slurm/uid_1000/job_7/step_0",
    ],
)
def test_a_job_is_found_wherever_slurm_puts_it(machine: Machine, path: str) -> None:
    machine.folder(path, 100)
    machine.process(100)
    found = machine.only_job()
    assert (found.job, found.user) == ("7", "u1000")


@pytest.mark.parametrize(
    "path",
    [
        "system.slice/slurmstepd.scope/system",
        "system.slice/slurmd.service",
        "system.slice/slurmstepd.scope/job_x/step_0",
        "system.slice/slurmstepd.scope/sEKNKTV3WPVI00/step_0",
        "system.slice/notslurmstepd.scope/job_7",
        "memory/slurm/uid_1000/step_0",
        "memory/slurmy/uid_1000/job_7",
        "user.slice/job_7",
    ],
)
def test_a_similar_cgroup_is_not_a_job(machine: Machine, path: str) -> None:
    machine.folder(path, 100)
    assert len(machine.read()) == 0


@pytest.mark.parametrize(
    ("path", "there"),
    [
        (SCOPE, True),
        ("devices/slurm", True),
        ("devices/slurm_gpu01", True),
        ("devices/slurmrestd.service", False),
        ("system.slice/slurmd.service", False),
    ],
)
def test_slurm_is_detected_before_its_first_job(machine: Machine, path: str, there: bool) -> None:
    machine.folder(path)
    assert has_slurm_cgroup(machine.cgroup) is there


def test_a_cgroup_with_no_process_anywhere_below_is_stale(machine: Machine) -> None:
    machine.folder(f"{SCOPE}/job_6/step_0/user/task_0")
    machine.folder("memory/slurm/uid_1000/job_5/step_0")
    machine.job("7")
    jobs = machine.read()
    assert ([job.job for job in jobs], jobs.stale) == (["7"], 2)


def test_on_v2_cgroup_events_decides_whether_a_job_is_stale(machine: Machine) -> None:
    machine.job("6")
    machine.job("7", pid=200)
    (machine.cgroup / SCOPE / "job_6/cgroup.events").write_text("populated 0\nfrozen 0\n")
    (machine.cgroup / SCOPE / "job_7/cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert [job.job for job in machine.read()] == ["7"]


def test_a_job_of_several_slurmd_on_one_machine_is_one_job(machine: Machine) -> None:
    machine.folder("system.slice/a_slurmstepd.scope/job_7/step_0/user/task_0", 100)
    machine.folder("system.slice/b_slurmstepd.scope/job_7/step_0/user/task_0", 200)
    machine.process(100)
    machine.process(200)
    assert len(machine.read()) == 1


ON_V1, ON_V2 = "devices/slurm_{}/uid_{}/job_7/step_0", "system.slice/{}_slurmstepd.scope/job_7/step_0"


@pytest.mark.parametrize("path", [ON_V1, ON_V2])
def test_jobs_of_two_users_with_one_number_are_two_jobs(machine: Machine, path: str) -> None:
    """Two clusters on one machine."""
    machine.gres(GRES)
    for pid, uid, node, number in ((100, 1000, "a", "0"), (200, 2000, "b", "1")):
        machine.folder(path.format(node, uid), pid)
        own = {"SLURM_JOB_UID": str(uid), "SLURM_JOB_ACCOUNT": f"of-{node}", "SLURM_JOB_GPUS": number}
        machine.process(pid, uid, SLURM_JOB_ID="7", **own)
    jobs = machine.read()
    assert [(job.user, job.account, job.devices) for job in jobs] == [
        ("u1000", "of-a", refs("minor", "0")),
        ("u2000", "of-b", refs("minor", "1")),
    ]
    assert jobs.get("7") is None


@pytest.mark.parametrize("path", [ON_V1, ON_V2])
@pytest.mark.parametrize("knows", ["", "n"])
def test_a_job_of_several_slurmd_has_the_gpus_of_all(machine: Machine, path: str, knows: str) -> None:
    """Each slurmd is a node, with the GPUs that gres.conf lists for it. One part may show no facts."""
    machine.gres("NodeName=a Name=gpu File=/dev/nvidia0\nNodeName=b Name=gpu File=/dev/nvidia1\n")
    for pid, node, minor in ((100, "a", 0), (200, "b", 1)):
        folder = machine.folder(path.format(node, 1000), pid)
        (folder.parent / "devices.list").write_text(
            f"c 195:{minor} rwm\n" if path == ON_V1 else "a *:* rwm\n"
        )
        name = {"SLURM_JOB_NAME": "n"} if knows or node == "b" else {}
        own = {"SLURMD_NODENAME": node, "SLURM_STEP_GPUS": "0", "SLURM_JOB_UID": "1000"}
        machine.process(pid, SLURM_JOB_ID="7", **own, **name)
    job = machine.only_job()
    assert (job.user, job.name, job.devices) == ("u1000", "n", refs("minor", "0", "1"))
    assert job.fraction == 1


def test_what_an_earlier_job_with_the_number_left_behind_is_not_of_the_job(machine: Machine) -> None:
    machine.folder("cpuset/slurm/uid_1000/job_7")
    machine.folder("memory/slurm/uid_2000/job_7/step_0/task_0", 200)
    machine.process(200, 2000)
    assert (machine.only_job().user, machine.read().stale) == ("u2000", 1)


def test_a_hierarchy_under_two_names_is_walked_once(machine: Machine) -> None:
    machine.folder("cpu,cpuacct/slurm/uid_1000/job_7/step_0", 100)
    (machine.cgroup / "cpu").symlink_to("cpu,cpuacct")
    (found,) = find_job_cgroups(machine.cgroup)
    assert [path.parts[-4] for path in found.folders] == ["cpu,cpuacct"]


def test_a_missing_cgroup_tree_is_an_error_with_a_remedy(machine: Machine) -> None:
    shutil.rmtree(machine.cgroup)
    with pytest.raises(GpuledgerError, match="--slurm-cgroup-root"):
        machine.read()


@pytest.mark.parametrize(
    ("gres", "slurm", "fraction"),
    [
        (f"{GRES}\nName=shard Count=16", "", Fraction(1, 2)),
        (GRES, "NodeName=n1 Gres=gpu:4,shard:32", Fraction(1, 4)),
        (None, "NodeName=n1 Gres=gpu:4,shard:32", Fraction(1, 4)),
        (GRES, "", None),
    ],
)
def test_the_fraction_of_a_job_follows_from_gres_conf_or_slurm_conf(
    machine: Machine, gres: str | None, slurm: str, fraction: Fraction | None
) -> None:
    if gres is not None:
        machine.gres(gres)
    machine.gres_conf.with_name("slurm.conf").write_text(slurm)
    variables = {"SLURM_JOB_GPUS": "1", "SLURM_SHARDS_ON_NODE": "2", "SLURMD_NODENAME": "n1"}
    machine.job("7", SLURM_JOB_ID="7", **variables)
    assert machine.only_job().fraction == fraction


@pytest.mark.parametrize("name", ["nodes.conf", "{root}/conf.d/nodes.conf", "none.conf\ninclude slurm.conf"])
def test_files_that_slurm_conf_includes_are_read(machine: Machine, tmp_path: Path, name: str) -> None:
    """One that cannot be read, or includes itself, is left out."""
    name = name.format(root=tmp_path)
    (tmp_path / "conf.d").mkdir()
    machine.gres("Include types.conf")
    (tmp_path / "types.conf").write_text(
        "Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1"
    )
    (tmp_path / "slurm.conf").write_text(f"ClusterName=c\nInclude {name}\nNodeName=n2 Gres=gpu:4\n")
    if name.endswith("nodes.conf"):
        (tmp_path / name).write_text("NodeName=n1 Gres=gpu:b:1,gpu:a:1")
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", SLURMD_NODENAME="n1")
    in_order = "1" if name.endswith("nodes.conf") else "0"
    assert machine.only_job().devices == refs("minor", in_order)


def test_the_environment_of_an_adopted_login_is_ignored(machine: Machine) -> None:
    machine.job("7", step="extern", CUDA_VISIBLE_DEVICES=GPU_A)
    found = machine.only_job()
    assert (found.devices, found.missing) == ((), "no_environment")


def test_the_environment_of_another_job_is_ignored(machine: Machine) -> None:
    machine.job("7", SLURM_JOB_ID="8", SLURM_JOB_GPUS="0")
    assert machine.only_job().missing == "no_environment"


@pytest.mark.parametrize(
    ("uid", "parent", "account"),
    [("1000", 101, "chem"), ("1001", 101, ""), ("1000", 1, "")],
    ids=["het", "another user", "not of slurmstepd"],
)
def test_a_later_part_of_a_heterogeneous_job_has_the_number_of_the_first_in_its_environment(
    machine: Machine, uid: str, parent: int, account: str
) -> None:
    machine.gres(GRES)
    variables = {"SLURM_JOB_ID": "7", "SLURM_STEP_GPUS": "1", "SLURM_JOB_ACCOUNT": "chem"}
    machine.job("8", step="0", **variables)
    machine.process(100, parent=parent, SLURM_JOB_UID=uid, **variables)
    found = machine.only_job()
    assert (found.job, found.account) == ("8", account)
    assert found.devices == (refs("minor", "1") if account else ())


def test_v1_devices_come_from_the_device_cgroup(machine: Machine) -> None:
    folder = machine.folder("devices/slurm/uid_1001/job_7")
    (folder / "devices.list").write_text("c 195:255 rwm\nc 195:2 rwm\nc 1:3 rwm\n")
    machine.folder("freezer/slurm/uid_1001/job_7/step_0", 100)
    machine.process(100, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    found = machine.only_job()
    assert (found.devices, found.found_by, found.user) == (refs("minor", "2"), "slurm_cgroup", "u1001")


def test_v1_mig_instances_come_from_their_capability_files(machine: Machine) -> None:
    (machine.proc / "devices").write_text("Character devices:\n235 nvidia-caps\n")
    (machine.proc / "driver/nvidia-caps").mkdir(parents=True)
    (machine.proc / "driver/nvidia-caps/mig-minors").write_text(
        "gpu1/gi3/access 111\ngpu1/gi3/ci0/access 112\n"
    )
    folder = machine.folder("devices/slurm/uid_1001/job_7", 100)
    (folder / "devices.list").write_text("c 195:1 rwm\nc 235:111 r\nc 235:112 r\n")
    assert machine.only_job().devices == refs("mig", "1/3/0")


def test_a_v1_cgroup_that_allows_all_devices_falls_back_to_the_environment(machine: Machine) -> None:
    machine.gres(GRES)
    folder = machine.folder("devices/slurm/uid_1001/job_7/step_0", 100).parent
    (folder / "devices.list").write_text("a *:* rwm\n")
    machine.process(100, SLURM_JOB_ID="7", SLURM_JOB_GPUS="1")
    found = machine.only_job()
    assert (found.devices, found.found_by) == (refs("minor", "1"), "slurm_environ")


def test_a_sluid_gets_its_number_and_user_from_the_environment(machine: Machine) -> None:
    machine.folder(f"{SCOPE}/{SLUID}/step_0/user/task_0", 100)
    machine.process(100, SLURM_JOB_ID="4242", SLURM_JOB_UID="1000", SLURM_JOB_GPUS="0")
    jobs = machine.read()
    (found,) = jobs
    assert (found.job, found.sluid, found.user) == ("4242", SLUID, "u1000")
    assert jobs.get("4242") is jobs.get(SLUID) is found


@pytest.mark.parametrize(
    ("first", "second", "account"),
    [
        ({"SLURM_JOB_ACCOUNT": "nlp"}, {"SLURM_JOB_ACCOUNT": "nlp"}, "nlp"),
        ({"SLURM_JOB_ACCOUNT": "nlp"}, {}, "nlp"),
        # A user can change a variable: it is then not known which one is right.
        ({"SLURM_JOB_ACCOUNT": "nlp"}, {"SLURM_JOB_ACCOUNT": "vision"}, ""),
        ({}, {}, ""),
    ],
)
def test_the_account_of_a_job_is_the_one_that_its_environments_agree_on(
    machine: Machine, first: dict[str, str], second: dict[str, str], account: str
) -> None:
    machine.job("7", SLURM_JOB_ID="7", **first)
    machine.folder(f"{SCOPE}/job_7/step_0/user/task_1", 200)
    machine.process(200, SLURM_JOB_ID="7", **second)
    assert machine.only_job().account == account


def test_a_job_has_its_account_and_partition(machine: Machine) -> None:
    machine.gres(GRES)
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", SLURM_JOB_ACCOUNT="nlp", SLURM_JOB_PARTITION="gpu")
    found = machine.only_job()
    assert (found.account, found.partition) == ("nlp", "gpu")


def test_a_user_whom_the_machine_does_not_know_has_the_name_that_the_job_says(machine: Machine) -> None:
    machine.users = {}
    variables = {"SLURM_JOB_USER": "lena", "SLURM_JOB_UID": "812345"}
    machine.folder(f"{SCOPE}/job_88/step_0/user/task_0", 100)
    machine.process(100, uid=812345, SLURM_JOB_ID="88", SLURM_JOB_ACCOUNT="chem", **variables)
    found = machine.only_job()
    assert (found.user, found.account) == ("lena", "chem")


def test_a_process_that_slurmstepd_started_outweighs_one_of_another_user(machine: Machine) -> None:
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURM_JOB_ACCOUNT="chem")
    machine.process(100, parent=101, SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURM_JOB_ACCOUNT="chem")
    machine.folder(f"{SCOPE}/job_7/step_0/user/task_1", 200)
    machine.process(200, uid=1001, SLURM_JOB_ID="7", SLURM_JOB_UID="1001", SLURM_JOB_ACCOUNT="bio")
    found = machine.only_job()
    assert (found.user, found.account) == ("u1000", "chem")


def test_the_name_of_a_user_that_the_machine_learns_later_is_that_of_the_job(machine: Machine) -> None:
    machine.gres(GRES)
    machine.users = {}
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    assert machine.only_job().user == "1000"
    machine.users = {1000: "mira"}
    assert machine.only_job().user == "mira"


def test_the_machines_name_of_a_user_replaces_the_one_that_the_job_says(machine: Machine) -> None:
    machine.users = {}
    says = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0", "SLURM_JOB_USER": "victim"}
    machine.job("7", **says)
    assert machine.only_job().user == "victim"
    machine.users = {1000: "mallory"}
    assert machine.only_job().user == "mallory"
    # A directory that is down afterwards, and a rename, change nothing.
    for users in ({}, {1000: "mallory.m"}):
        machine.users = users
        assert machine.only_job().user == "mallory"


def v1_job(machine: Machine, *pids: int) -> None:
    """Job 7 of uid 1000 on cgroup v1 with GPU 0 and a slurmstepd, which has no separate cgroup there."""
    folder = machine.folder("devices/slurm/uid_1000/job_7/step_batch", 101, *pids)
    (folder.parent / "devices.list").write_text("c 195:0 rw\nc 195:255 rw\n")
    machine.process(101, uid=0, title="slurmstepd: [7.batch]")


OWN = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000"}
V1_FACTS = {**OWN, "SLURM_JOB_GPUS": "0", "SLURM_JOB_USER": "lena", "SLURM_JOB_ACCOUNT": "chem"}


@pytest.mark.parametrize("before", [{}, {"SLURM_JOB_ID": "8"}], ids=["no variables", "another job"])
def test_a_v1_job_is_read_until_a_task_shows_its_variables(machine: Machine, before: dict[str, str]) -> None:
    """The device cgroup names the GPUs before the first task begins."""
    machine.users = {}
    v1_job(machine, *([100] if before else []))
    machine.process(100, **before)
    early = machine.only_job()
    assert (early.user, early.account, early.fraction) == ("1000", "", None)
    v1_job(machine, 100)
    machine.process(100, parent=101, **V1_FACTS)
    found = machine.only_job()
    assert (found.user, found.account, found.fraction) == ("lena", "chem", 1)
    machine.environment(100)
    assert machine.only_job() == found, "a process that clears its environment changes nothing"


@pytest.mark.parametrize(
    ("daemon", "parent", "account"),
    [
        ({}, 1, "chem"),
        # Not root, another job, and a command that the user runs by sudo: as without slurmstepd.
        ({"uid": 1000}, 1, ""),
        ({"title": "slurmstepd: [8.batch]"}, 1, ""),
        ({}, 200, ""),
    ],
)
def test_slurmstepd_is_recognized_on_v1(
    machine: Machine, daemon: dict[str, Any], parent: int, account: str
) -> None:
    v1_job(machine, 100, 200)
    machine.process(101, **{"uid": 0, "title": "slurmstepd: [7.batch]", "parent": parent, **daemon})
    machine.process(100, parent=101, **V1_FACTS)
    machine.process(200, parent=100, **{**V1_FACTS, "SLURM_JOB_ACCOUNT": "bio"})
    assert machine.only_job().account == account


def test_without_permission_the_title_of_slurmstepd_still_has_the_number(machine: Machine) -> None:
    machine.job(SLUID)
    machine.process(101, uid=0, title="slurmstepd: [4242.batch]")
    machine.forbid(100)
    found = machine.only_job()
    assert (found.job, found.user, found.missing) == ("4242", "u1000", "permission")


def test_a_job_without_a_number_has_its_sluid(machine: Machine) -> None:
    machine.folder(f"{SCOPE}/{SLUID}/step_0/user/task_0", 100)
    found = machine.only_job()
    assert (found.job, found.sluid) == (SLUID, SLUID)


def test_a_missing_permission_is_logged_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    machine.job("7", SLURM_JOB_ID="7")
    machine.forbid(100)
    for _ in range(3):
        assert machine.read().missing == {"permission": 1}
    assert len(caplog.records) == 1
    assert "CAP_SYS_PTRACE" in caplog.records[0].message


def test_a_job_of_root_belongs_to_root(machine: Machine) -> None:
    machine.folder(f"{SCOPE}/job_7/step_0/user/task_0", 100)
    machine.process(100, uid=0, SLURM_JOB_ID="7", SLURM_JOB_UID="0")
    assert machine.only_job().user == "u0"


def test_unchanged_jobs_are_equal(machine: Machine) -> None:
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    first = machine.read()
    assert machine.read() == first
    machine.job("8", pid=200)
    assert machine.read() != first


def test_a_job_with_missing_facts_is_read_again(machine: Machine) -> None:
    machine.job("7")
    assert machine.only_job().missing == "no_environment"
    machine.environment(100, SLURM_JOB_ID="7", SLURM_JOB_GPUS="1")
    assert machine.only_job().missing == ""


def test_a_job_that_ends_is_gone(machine: Machine) -> None:
    machine.job("7")
    machine.read()
    shutil.rmtree(machine.cgroup / SCOPE / "job_7")
    assert len(machine.read()) == 0


def test_a_process_that_ends_while_it_is_read_is_skipped(machine: Machine) -> None:
    machine.job("7", pid=100, step="0")
    shutil.rmtree(machine.proc / "100")
    machine.job("7", pid=200, step="1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
    assert machine.only_job().devices == refs("number", "0")


@pytest.mark.parametrize(
    ("title", "number"),
    [
        (b"slurmstepd: [4242.batch]\0", "4242"),
        (b"slurmstepd: [4242.0]", "4242"),
        (b"slurmstepd: [x.0]", ""),
        (b"/usr/bin/slurmstepd\0", ""),
        (b"", ""),
    ],
)
def test_the_job_number_is_in_the_title_of_slurmstepd(title: bytes, number: str) -> None:
    assert job_id_in_title(title) == number


def test_only_known_variables_of_an_environment_are_kept() -> None:
    raw = b"SECRET=x\0SLURM_JOB_ID=7\0SLURM_JOB_ID=8\0SLURM_JOB_GPUS=\0=\0noequals\0SLURM_JOB_USER=a=b\0"
    assert parse_environment(raw) == {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "a=b"}
