"""SlurmReader: the GPUs of jobs, from the environments of their processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.workloads.device_index import DeviceRef
from slurm_tree import GPU_A, GPU_B, GRES, SCOPE, Machine, refs


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("gres", "variables", "devices"),
    [
        (GRES, {"SLURM_JOB_GPUS": "1,3"}, refs("minor", "1", "3")),
        ("Name=gpu File=/dev/nvidia[4-5]", {"SLURM_JOB_GPUS": "1"}, refs("minor", "5")),
        ("AutoDetect=nvml", {"SLURM_JOB_GPUS": "1,3"}, refs("index", "1", "3")),
        ("AutoDetect=nvidia", {"SLURM_JOB_GPUS": "1,3"}, refs("minor", "1", "3")),
        # A GPU is left out: it has no number.
        (
            f"AutoDetect=nvml\n{GRES.replace('0-3', '0-1,3')}",
            {"SLURM_JOB_GPUS": "2"},
            refs("listed", "2/0/1/3"),
        ),
        (
            "AutoDetect=nvml\nName=gpu MultipleFiles=/dev/nvidia0,/dev/x",
            {"SLURM_JOB_GPUS": "0"},
            refs("index", "0"),
        ),
        (
            "NodeName=n2 Name=gpu File=/dev/nvidia7\nNodeName=n1 AutoDetect=nvml",
            {"SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "n2"},
            refs("minor", "7"),
        ),
        ("", {"SLURM_JOB_GPUS": "2"}, refs("number", "2")),
        (GRES, {"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, refs("minor", "0", "1")),
        (GRES, {"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"}, refs("minor", "2")),
        (GRES, {"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": GPU_A}, refs("uuid", GPU_A)),
        (GRES, {"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": GPU_A}, refs("minor", "2", "3")),
        (GRES, {"CUDA_VISIBLE_DEVICES": f"{GPU_A},{GPU_B}"}, refs("uuid", GPU_A, GPU_B)),
        (GRES, {"NVIDIA_VISIBLE_DEVICES": GPU_B}, refs("uuid", GPU_B)),
        (GRES, {"CUDA_VISIBLE_DEVICES": f"MIG-{GPU_A}/1/0"}, refs("uuid", f"MIG-{GPU_A}/1/0")),
    ],
)
def test_the_environment_of_a_process_lists_the_gpus_of_the_job(
    machine: Machine, gres: str, variables: dict[str, str], devices: tuple[DeviceRef, ...]
) -> None:
    machine.gres(gres)
    machine.job("7", SLURM_JOB_ID="7", **variables)
    found = machine.only_job()
    assert (found.devices, found.found_by, found.missing) == (devices, "slurm_environ", "")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"GPU_DEVICE_ORDINAL": "0"},
        {"NVIDIA_VISIBLE_DEVICES": "all"},
        {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
        {"SLURM_JOB_GPUS": ""},
    ],
)
def test_numbers_within_the_job_are_not_gpus_of_the_machine(
    machine: Machine, variables: dict[str, str]
) -> None:
    machine.gres(GRES)
    machine.job("7", SLURM_JOB_ID="7", **variables)
    found = machine.only_job()
    assert (found.devices, found.missing) == ((), "")


@pytest.mark.parametrize("variable", ["SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE"])
@pytest.mark.parametrize(("count", "missing"), [("2", "unmatched"), ("0", ""), ("x", "")])
def test_a_job_with_unnamed_gpus_differs_from_a_job_without_gpus(
    machine: Machine, variable: str, count: str, missing: str
) -> None:
    machine.job("7", SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="0,1", **{variable: count})
    found = machine.only_job()
    assert (found.devices, found.missing) == ((), missing)


def test_the_gpus_of_all_steps_are_the_gpus_of_the_job(machine: Machine) -> None:
    machine.gres(GRES)
    machine.job("7", pid=100, step="0", SLURM_JOB_ID="7", SLURM_STEP_GPUS="3")
    machine.job("7", pid=200, step="1", SLURM_JOB_ID="7", SLURM_STEP_GPUS="0")
    assert machine.only_job().devices == refs("minor", "3", "0")


NODES = {"SLURM_JOB_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("step", "variables", "minors"),
    [
        # srun inherits the first variable from the batch script, which can run on another node.
        ("0", {**NODES, "SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "2,3", "SLURM_GPUS_ON_NODE": "2"}, "23"),
        ("0", {**NODES, "SLURM_JOB_GPUS": "0,1"}, ""),
        ("0", {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, "01"),
        ("0", {"SLURM_HET_SIZE": "2", "SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "2"}, "2"),
        # sbatch inherits the second one from the step in which it was called.
        ("batch", {"SLURM_STEP_GPUS": "3"}, ""),
        ("batch", {"SLURM_JOB_GPUS": "1", "SLURM_STEP_GPUS": "3", "SLURM_GPUS_ON_NODE": "1"}, "1"),
        ("interactive", {**NODES, "SLURM_JOB_GPUS": "1", "SLURM_GPUS_ON_NODE": "1"}, "1"),
        # srun --external-launcher, as mpirun calls it.
        ("0", {**NODES, "SLURM_JOB_GPUS": "1,2", "SLURM_GPUS_ON_NODE": "2"}, "12"),
    ],
)
def test_the_gpus_of_another_node_or_job_are_not_those_of_the_job_here(
    machine: Machine, step: str, variables: dict[str, str], minors: str
) -> None:
    machine.gres(GRES)
    machine.job("7", step=step, SLURM_JOB_ID="7", **variables)
    assert machine.only_job().devices == refs("minor", *minors)


def test_the_uuids_of_all_tasks_are_the_gpus_of_the_job(machine: Machine) -> None:
    machine.job("7", pid=100, step="0", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1", CUDA_VISIBLE_DEVICES=GPU_B)
    machine.folder(f"{SCOPE}/job_7/step_0/user/task_1", 200)
    machine.process(200, SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES=GPU_A)
    assert machine.only_job().devices == refs("uuid", GPU_B, GPU_A)


@pytest.mark.parametrize(
    ("gres", "first", "later", "devices"),
    [
        # A process with a UUID from elsewhere: the job has the GPU that slurmstepd gave to it.
        (GRES, {"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0"}, GPU_B, refs("minor", "2")),
        ("AutoDetect=nvml", {"SLURM_JOB_GPUS": "2"}, GPU_B, refs("index", "2")),
        (GRES, {"SLURM_JOB_GPUS": "2", "CUDA_VISIBLE_DEVICES": GPU_A}, GPU_B, refs("uuid", GPU_A)),
        (GRES, {"SLURM_JOB_GPUS": "0,1"}, f"{GPU_B},{GPU_B}", refs("minor", "0", "1")),
        # Nobody says what the number counts, or the first process has no variables (step_extern).
        ("", {"SLURM_JOB_GPUS": "2"}, GPU_B, refs("uuid", GPU_B)),
        (GRES, {}, GPU_B, refs("uuid", GPU_B)),
    ],
)
def test_the_gpus_of_a_job_are_those_that_slurmstepd_gave_to_it(
    machine: Machine, gres: str, first: dict[str, str], later: str, devices: tuple[DeviceRef, ...]
) -> None:
    machine.gres(gres)
    machine.job("7", pid=100)
    machine.folder(f"{SCOPE}/job_7/step_batch/user/task_0", 90, 100)
    # In the order of pids, the one of a later process can come first.
    machine.process(100, parent=101, SLURM_JOB_ID="7", **first)
    machine.process(90, parent=100, SLURM_JOB_ID="7", **{**first, "CUDA_VISIBLE_DEVICES": later})
    assert machine.only_job().devices == devices


def test_uuids_that_are_listed_twice_count_once(machine: Machine) -> None:
    machine.gres(GRES)
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1", CUDA_VISIBLE_DEVICES=f"{GPU_A},{GPU_A}")
    assert machine.only_job().devices == refs("minor", "0", "1")


def test_a_number_without_a_device_in_gres_conf_is_unmatched(machine: Machine) -> None:
    machine.gres(GRES)
    machine.job("7", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,9")
    found = machine.only_job()
    assert (found.devices, found.missing) == ((), "unmatched")
