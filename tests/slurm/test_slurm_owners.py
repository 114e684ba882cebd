"""Owners of GPUs that a real Slurm allocates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import pytest

from cluster.exporter import RunningExporter, running_exporter
from running import wait_until
from slurm.cluster import SlurmCluster, proc_text
from slurm.conftest import SHARED, WHOLE

# One cluster for all tests.
pytestmark = pytest.mark.group("slurm")

GPUS = tuple(f"GPU-5ca1ab1e-0000-4000-8000-{number:012x}" for number in range(2))
# User and job id.
Owner = tuple[str, str]


@contextmanager
def exporter_on(cluster: SlurmCluster, node: str, folder: Path, *flags: str) -> Iterator[RunningExporter]:
    """The exporter on one node, with the default settings but for the folder of its ledger."""
    flags = ("--state-dir", str(folder / "state"), *flags)
    with running_exporter(folder, GPUS, *flags, inside=cluster.nodes[node].inside) as exporter:
        yield exporter


@pytest.fixture
def exporter(cluster: SlurmCluster, tmp_path: Path) -> Iterator[RunningExporter]:
    with exporter_on(cluster, WHOLE, tmp_path) as running:
        yield running


def owners(exporter: RunningExporter, gpu: int) -> set[Owner]:
    """Slurm owners of a GPU, allocated or with processes."""
    rows = [labels for labels, _ in exporter.samples("gpuledger_device_owner_info")]
    return {
        (row["user"], row["slurm_job"])
        for row in rows
        if row["uuid"] == GPUS[gpu] and row["owner_kind"] == "slurm"
    }


def wait_owners(exporter: RunningExporter, *expected: set[Owner]) -> None:
    """Wait until the GPUs have these owners, one set for each."""
    wait_until(
        lambda: [owners(exporter, gpu) for gpu in range(len(expected))] == list(expected),
        f"GPUs with the owners {expected}, not {[owners(exporter, gpu) for gpu in range(len(expected))]}",
    )


def process_jobs(exporter: RunningExporter, pid: int) -> set[str]:
    """Jobs that the series of a process name."""
    rows = exporter.samples("gpuledger_process_info")
    return {labels["slurm_job"] for labels, _ in rows if labels["pid"] == str(pid)}


def test_an_allocated_gpu_belongs_to_its_job_before_any_process_uses_it(
    cluster: SlurmCluster, exporter: RunningExporter
) -> None:
    job = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--uid=nobody")
    cluster.wait_running(job, WHOLE)
    wait_owners(exporter, {("nobody", job)}, set())
    cluster.cancel(job)
    wait_owners(exporter, set(), set())


def test_two_jobs_on_one_node_have_their_own_gpus(cluster: SlurmCluster, exporter: RunningExporter) -> None:
    first = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--uid=nobody")
    cluster.wait_running(first, WHOLE)
    second = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--uid=daemon")
    cluster.wait_running(second, WHOLE)
    wait_owners(exporter, {("nobody", first)}, {("daemon", second)})
    cluster.cancel(first)
    wait_owners(exporter, set(), {("daemon", second)})
    cluster.cancel(second)


def test_a_process_of_a_later_step_belongs_to_the_job(
    cluster: SlurmCluster, exporter: RunningExporter
) -> None:
    job = cluster.submit("--gres=gpu:2", f"--nodelist={WHOLE}", script="srun --overlap sleep 600")
    pid = wait_until(lambda: step_process(cluster, job), "the step of srun")
    exporter.set_processes(GPUS[0], pid)
    wait_until(lambda: process_jobs(exporter, pid) == {job}, f"process {pid} to belong to job {job}")
    wait_owners(exporter, {("root", job)}, {("root", job)})
    cluster.cancel(job)


def step_process(cluster: SlurmCluster, job: str, step: str = "0") -> int | None:
    """A process of a step of the job, by default of the first srun, on the first node."""
    pids = cluster.processes(job, WHOLE)
    return next((pid for pid in pids if f"step_{step}/" in proc_text(pid, "cgroup")), None)


def test_tasks_of_an_array_are_jobs_of_their_own(cluster: SlurmCluster, exporter: RunningExporter) -> None:
    array = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--array=1-2")
    ids = wait_until(lambda: array_tasks(cluster, array), "both tasks to run")
    wait_owners(exporter, *({("root", job)} for job in ids))
    cluster.cancel(array)


def array_tasks(cluster: SlurmCluster, array: str) -> list[str]:
    """Job ids of the two running tasks of an array, in the order of their tasks; empty until both run."""
    lines = cluster.run("squeue", "-h", "-r", "-t", "R", "-o", "%K %A", f"--jobs={array}").stdout.splitlines()
    return [line.split()[1] for line in sorted(lines)] if len(lines) == 2 else []


def test_a_job_on_two_nodes_has_its_gpus_on_each(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = cluster.submit("--gres=gpu:1", "--nodes=2", script="srun sleep 600")
    for node in (WHOLE, SHARED):
        cluster.wait_running(job, node)
        folder = tmp_path / node
        folder.mkdir()
        with exporter_on(cluster, node, folder) as exporter:
            wait_owners(exporter, {("root", job)}, set())
    cluster.cancel(job)


def test_a_gpu_divided_into_shards_has_all_jobs_that_share_it(cluster: SlurmCluster, tmp_path: Path) -> None:
    jobs = [
        cluster.submit("--gres=shard:1", f"--nodelist={SHARED}", f"--uid={user}")
        for user in ("nobody", "daemon")
    ]
    for job in jobs:
        cluster.wait_running(job, SHARED)
    with exporter_on(cluster, SHARED, tmp_path) as exporter:
        wait_owners(exporter, {("nobody", jobs[0]), ("daemon", jobs[1])}, set())
        assert fractions(exporter) == dict.fromkeys(jobs, Fraction(1, 4))
    cluster.cancel(*jobs)


def fractions(exporter: RunningExporter) -> dict[str, Fraction]:
    """The part of the first GPU that each job has."""
    rows = exporter.samples("gpuledger_device_allocated_ratio")
    return {row["slurm_job"]: Fraction(value) for row, value in rows if row["uuid"] == GPUS[0]}


def test_a_job_with_a_whole_gpu_and_one_with_several_shards(cluster: SlurmCluster, tmp_path: Path) -> None:
    whole = cluster.submit("--gres=gpu:1", f"--nodelist={SHARED}", script="srun --overlap sleep 600")
    cluster.wait_running(whole, SHARED)
    shared = cluster.submit("--gres=shard:3", f"--nodelist={SHARED}", script="srun --overlap sleep 600")
    cluster.wait_running(shared, SHARED)
    with exporter_on(cluster, SHARED, tmp_path) as exporter:
        wait_owners(exporter, {("root", whole)}, {("root", shared)})
        found = {
            row["slurm_job"]: value for row, value in exporter.samples("gpuledger_device_allocated_ratio")
        }
        assert found == {whole: 1.0, shared: 0.75}
    cluster.cancel(whole, shared)


def test_a_requeued_job_keeps_its_id(cluster: SlurmCluster, exporter: RunningExporter) -> None:
    job = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--requeue")
    first = cluster.wait_running(job, WHOLE)
    wait_owners(exporter, {("root", job)}, set())
    cluster.run("scontrol", "requeue", job)
    wait_until(lambda: not set(first) & set(cluster.processes(job, WHOLE)), "the first run to end")
    wait_owners(exporter, set(), set())
    # A requeued job is held back for two minutes from its begin time.
    cluster.run("scontrol", "update", f"job={job}", "StartTime=now")
    cluster.wait_running(job, WHOLE)
    wait_owners(exporter, {("root", job)}, set())
    cluster.cancel(job)


def test_files_of_a_real_prolog_and_epilog_name_the_job_of_a_gpu(
    cluster: SlurmCluster, job_files: Path, tmp_path: Path
) -> None:
    flags = ("--slurm", "false", "--hpc-job-mapping-dir", str(job_files / WHOLE))
    job = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}")
    cluster.wait_running(job, WHOLE)
    with exporter_on(cluster, WHOLE, tmp_path, *flags) as exporter:
        wait_owners(exporter, {("", job)}, set())
        cluster.cancel(job)
        wait_owners(exporter, set(), set())


def has_variable(cluster: SlurmCluster, job: str, variable: str) -> bool:
    """Whether a process of the job on the first node has a variable with this value."""
    environments = (proc_text(pid, "environ") for pid in cluster.processes(job, WHOLE))
    return any(variable in text.split("\0") for text in environments)


def job_facts(exporter: RunningExporter) -> dict[str, dict[str, str]]:
    """The facts of each job, by its number, without empty ones."""
    rows = [labels for labels, _ in exporter.samples("gpuledger_job_info")]
    return {row.pop("slurm_job"): {name: value for name, value in row.items() if value} for row in rows}


def test_a_job_has_the_facts_that_slurm_gives_it_and_a_user_whom_only_slurm_knows(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    flags = ("--account=chem", "--job-name=relax", "--array=3", "--uid=nobody")
    job = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", *flags)
    pid = wait_until(lambda: step_process(cluster, job, "batch"), "the batch step")
    facts = {"slurm_account": "chem", "partition": "main", "job_name": "relax", "user": "nobody"}
    facts |= {"array_job": job, "array_task": "3"}
    with exporter_on(cluster, WHOLE, tmp_path, "--passwd-file", "/dev/null") as exporter:
        exporter.set_processes(GPUS[0], pid)
        wait_owners(exporter, {("nobody", job)}, set())
        assert job_facts(exporter) == {job: facts}
        wait_until(lambda: process_jobs(exporter, pid) == {job}, f"process {pid} to belong to job {job}")
    cluster.cancel(job)


def test_facts_that_a_user_changed_are_not_believed(cluster: SlurmCluster, tmp_path: Path) -> None:
    lie = "SLURM_JOB_ACCOUNT=bio SLURM_JOB_USER=root SLURM_JOB_NAME=relax sleep 600"
    flags = ("--account=chem", "--job-name=relax", "--uid=nobody")
    job = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", *flags, script=lie)
    wait_until(lambda: has_variable(cluster, job, "SLURM_JOB_ACCOUNT=bio"), "the process with other facts")
    with exporter_on(cluster, WHOLE, tmp_path, "--passwd-file", "/dev/null") as exporter:
        wait_owners(exporter, {("nobody", job)}, set())
        facts = {"slurm_account": "chem", "partition": "main", "job_name": "relax", "user": "nobody"}
        assert job_facts(exporter) == {job: facts}
    cluster.cancel(job)


def test_slurmdbd_records_the_gpus_of_a_job(cluster: SlurmCluster) -> None:
    job = cluster.submit("--gres=gpu:2", f"--nodelist={WHOLE}", script="true")
    wait_until(lambda: not cluster.state(job), f"job {job} to end")

    def recorded() -> bool:
        done = cluster.run("sacct", "-X", "-n", "-P", "-o", "State,AllocTRES,NodeList", "-j", job)
        return done.stdout.strip() == "COMPLETED|billing=1,cpu=1,gres/gpu=2,node=1|gpu1"

    wait_until(recorded, f"job {job} in the accounting")
