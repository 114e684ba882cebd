"""SlurmReader: what a job keeps between its steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuledger.workloads.slurm.jobs import SlurmJob
from slurm_tree import GPU_A, GRES, SCOPE, SLUID, Machine, refs


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_job_is_read_again_when_it_begins_a_step(machine: Machine) -> None:
    machine.gres(GRES)
    machine.job("7", step="extern", SLURM_JOB_ID="7")
    assert machine.only_job().devices == ()
    machine.job("7", pid=200, step="0", SLURM_JOB_ID="7", SLURM_STEP_GPUS="1")
    assert machine.only_job().devices == refs("minor", "1")


def salloc(machine: Machine, step: str, **variables: str) -> SlurmJob:
    """Job 7 after its step extern, which runs a sleep of root, and another step began; the step then ends."""
    machine.job("7", pid=100, step="extern")
    machine.process(100, uid=0, parent=101)
    who = {"SLURM_JOB_UID": "812345", "SLURM_JOB_USER": "lena", "SLURM_JOB_ACCOUNT": "chem"}
    machine.job("7", pid=200, step=step, SLURM_JOB_ID="7", **who, **variables)
    machine.process(200, uid=812345, parent=201, SLURM_JOB_ID="7", **who, **variables)
    found = machine.only_job()
    shutil.rmtree(machine.cgroup / SCOPE / f"job_7/step_{step}")
    return found


def test_a_job_keeps_its_user_and_gpus_between_its_steps(machine: Machine) -> None:
    machine.gres(GRES)
    machine.users = {}
    during = salloc(machine, "0", SLURM_STEP_GPUS="1")
    assert (during.user, during.account, during.devices) == ("lena", "chem", refs("minor", "1"))
    assert [machine.only_job(), machine.only_job()] == [during, during]


@pytest.mark.parametrize(
    ("gpus", "minors"), [({"SLURM_STEP_GPUS": "0"}, "10"), ({}, "1"), ({"SLURM_STEP_GPUS": "1"}, "1")]
)
def test_a_job_has_the_gpus_of_all_its_steps_so_far(
    machine: Machine, gpus: dict[str, str], minors: str
) -> None:
    machine.gres(GRES)
    salloc(machine, "0", SLURM_STEP_GPUS="1")
    found = salloc(machine, "1", **gpus)
    assert (found.devices, found.missing) == (refs("minor", *minors), "")


def test_a_login_that_slurm_adopts_changes_nothing_between_the_steps(machine: Machine) -> None:
    """Its user can give it any variables."""
    machine.gres(GRES)
    machine.users = {}
    during = salloc(machine, "0", SLURM_STEP_GPUS="1")
    machine.folder(f"{SCOPE}/job_7/step_extern/user/task_0", 300)
    who = {"SLURM_JOB_UID": "812345", "SLURM_JOB_USER": "max", "SLURM_JOB_ACCOUNT": "bio"}
    machine.process(300, uid=812345, SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES=GPU_A, **who)
    assert machine.only_job() == during


def test_a_job_with_the_number_of_an_earlier_one_is_another_job(machine: Machine) -> None:
    machine.gres(GRES)
    machine.users = {}
    salloc(machine, "0", SLURM_STEP_GPUS="1")
    (machine.cgroup / SCOPE / "job_7").rename(machine.cgroup / "old")
    machine.job("7", pid=100, step="extern")
    machine.process(100, uid=0, parent=101)
    again = machine.only_job()
    assert (again.user, again.account, again.devices) == ("", "", ())


def test_the_number_of_a_job_arrives_before_its_first_process_and_remains(machine: Machine) -> None:
    """Its path has a SLUID: only slurmstepd says the number, and later perhaps nobody."""
    step = f"{SCOPE}/{SLUID}/step_extern"
    machine.folder(f"{SCOPE}/{SLUID}")
    machine.folder(f"{step}/user/task_0", 100)
    machine.process(100, uid=0)
    before = machine.only_job().job
    machine.folder(f"{step}/slurm", 101)
    machine.process(101, uid=0, title="slurmstepd: [4242.extern]")
    during = machine.only_job().job
    machine.folder(f"{step}/slurm")
    machine.folder(f"{SCOPE}/{SLUID}/step_0/user/task_0", 200)
    machine.process(200, uid=1000)
    assert (before, during, machine.only_job().job) == (SLUID, "4242", "4242")


def test_a_step_with_many_processes_hides_no_gpus_of_the_other_steps(machine: Machine) -> None:
    """Each rank starts workers that read data; the batch script runs on another node."""
    machine.gres(GRES)
    machine.job(step="0", SLURM_JOB_ID="7", SLURM_STEP_GPUS="0")
    machine.job(step="1", pid=900, SLURM_JOB_ID="7", SLURM_STEP_GPUS="1")
    workers = range(102, 702)
    machine.folder(f"{SCOPE}/job_7/step_0/user/task_0", 100, *workers)
    for pid in workers:
        machine.process(pid, parent=100, SLURM_JOB_ID="7", SLURM_STEP_GPUS="0")
    assert machine.only_job().devices == refs("minor", "0", "1")
