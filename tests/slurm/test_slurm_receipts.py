"""Receipts of jobs of a real Slurm: in AdminComment, in files of the Epilog, and in the output of a job."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cluster.exporter import RunningExporter
from gpuledger.app.slurm_receipts.job_summary import decode_summary, encode_summary, is_own_summary
from running import PATIENCE, get, wait_until
from slurm.cluster import SlurmCluster
from slurm.conftest import SHARED, WHOLE
from slurm.test_slurm_owners import GPUS, exporter_on
from unprivileged import environment, unprivileged_command

pytestmark = pytest.mark.group("slurm")

DEPLOY = Path(__file__).parents[2] / "deploy/slurm"
GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_hooks(cluster: SlurmCluster) -> Iterator[None]:
    yield
    for file in cluster.hooks.iterdir():
        file.unlink()


def write_hook(cluster: SlurmCluster, name: str, body: str) -> None:
    file = cluster.hooks / f"{name}.sh"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A file that runs gpuledger, for every user, as /usr/bin/gpuledger of the packages."""
    command = unprivileged_command()
    python = command[command.index("env") + 1] if "env" in command else sys.executable
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment(tmp_path).items())
    file = tmp_path / "gpuledger"
    file.write_text(f'#!/bin/sh\nexec env {variables} {python} -m gpuledger "$@"\n')
    file.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o711)
    return file


@contextmanager
def one_address(exporters: dict[str, RunningExporter]) -> Iterator[str]:
    """A URL with {node} for exporters with separate ports: the nodes are on one machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            node, _, path = self.path.removeprefix("/").partition("/")
            if node not in exporters:
                self.send_error(503)
                return
            answer = get(f"{exporters[node].server.url}/{path}")
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{{node}}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def job_process(cluster: SlurmCluster, job: str, node: str, command: str = "sleep") -> int:
    """A process of the job's own program: the first ones with its variables are hooks and slurmstepd."""

    def found() -> int | None:
        for pid in cluster.processes(job, node):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == command:
                    return pid
        return None

    return wait_until(found, f"{command} of job {job} on {node}")


def slurm_command(cluster: SlurmCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """`gpuledger slurm` on the controller."""
    command = [sys.executable, "-m", "gpuledger", "slurm", *words]
    return subprocess.run(
        command, env=cluster.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def update(cluster: SlurmCluster, place: str, folder: Path, *flags: str) -> str:
    """One pass; returns what it prints."""
    state = ("--state", str(folder / "slurm-state.json"), "--refresh", "0s")
    done = slurm_command(cluster, "update", "--from", place, *state, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def active_comment(cluster: SlurmCluster, job: str) -> str:
    lines = cluster.run("scontrol", "show", "job", job).stdout.splitlines()
    return next((line.strip()[13:] for line in lines if line.strip().startswith("AdminComment=")), "")


@contextmanager
def exporters_on(cluster: SlurmCluster, folder: Path, *nodes: str) -> Iterator[dict[str, RunningExporter]]:
    with ExitStack() as running:
        found = {}
        for node in nodes:
            place = folder / node
            place.mkdir()
            found[node] = running.enter_context(exporter_on(cluster, node, place))
        yield found


def wait_for_summary(cluster: SlurmCluster, place: str, folder: Path, job: str) -> str:
    """Repeat passes until the running job has its summary, and the driver has reported its utilization."""

    def written() -> str:
        update(cluster, place, folder)
        found = active_comment(cluster, job)
        nodes = (decode_summary(found) or {}).get("nodes", {}).values()
        is_complete = is_own_summary(found) and all("gpu_utilization" in node for node in nodes)
        return found if is_complete else ""

    return wait_until(written, f"the summary of job {job}")


def reportseff(cluster: SlurmCluster, *jobs: str) -> dict[str, dict[str, str]]:
    """The rows of PyPI's reportseff by job, with its names of columns."""
    code = "from reportseff.console import main; main()"
    words = ("--no-color", "--parsable", "--format=JobID,State,CPUEff,MemEff,GPUEff,GPUMem", *jobs)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *words],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names, *rows = [line.split("|") for line in done.stdout.splitlines()]
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return {row["JobID"]: row for row in found}


OF_JOBSTATS = encode_summary(
    {
        "gpus": 1,
        "total_time": 100,
        "nodes": {
            "gpu2": {
                "cpus": 1,
                "total_time": 25.0,
                "total_memory": 8 * GIB,
                "used_memory": 2 * GIB,
                "gpu_total_memory": {"0": 80 * GIB},
                "gpu_used_memory": {"0": 20 * GIB},
                "gpu_utilization": {"0": 18.8},
            }
        },
    }
)


def test_reportseff_shows_our_figures_beside_jobs_of_other_writers(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """The path of Slurm 22.05: written by slurmctld while the job runs, and stored when it ends."""
    others = {"": "", "checked by eva": "", OF_JOBSTATS: ""}
    for comment in others:
        others[comment] = cluster.submit(f"--nodelist={SHARED}", "--gres=gpu:1", script="sleep 600")
    jobs = list(others.values())
    for comment, job in others.items():
        if comment:
            cluster.run("scontrol", "update", f"job={job}", f"AdminComment={comment}")
    ours = cluster.submit(f"--nodelist={WHOLE}", "--gres=gpu:1", "--uid=nobody")
    pid = job_process(cluster, ours, WHOLE)
    with exporters_on(cluster, tmp_path, WHOLE) as exporters, one_address(exporters) as place:
        exporters[WHOLE].set_processes(GPUS[0], pid)
        exporters[WHOLE].wait_more_ticks(30)
        comment = wait_for_summary(cluster, place, tmp_path, ours)
        for foreign, job in others.items():
            assert active_comment(cluster, job) == foreign
        cluster.cancel(ours, *jobs)
        cluster.wait_end(ours)
    summary = decode_summary(comment)
    assert summary is not None
    assert list(summary["nodes"]) == [WHOLE]
    # Base64 has upper case: slurmctld and slurmdbd keep it.
    assert cluster.accounting(ours, "AdminComment") == comment
    rows = reportseff(cluster, ours, *jobs)
    node = summary["nodes"][WHOLE]
    assert float(rows[ours]["GPUEff"]) == pytest.approx(node["gpu_utilization"]["0"], abs=0.11)
    assert 0 < float(rows[ours]["GPUEff"]) <= 60
    assert rows[ours]["GPUMem"] not in ("", "---")
    assert rows[others[OF_JOBSTATS]]["GPUEff"] == "18.8"
    assert rows[others["checked by eva"]]["GPUEff"] == "---"


def test_a_job_on_two_nodes_has_one_summary_and_one_receipt(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = cluster.submit("--gres=gpu:1", "--nodes=2", script="srun sleep 600")
    pids = {node: job_process(cluster, job, node) for node in (WHOLE, SHARED)}
    with exporters_on(cluster, tmp_path, WHOLE, SHARED) as exporters, one_address(exporters) as place:
        for node, pid in pids.items():
            exporters[node].set_processes(GPUS[0], pid)
        summary = decode_summary(wait_for_summary(cluster, place, tmp_path, job))
        assert summary is not None
        assert sorted(summary["nodes"]) == [WHOLE, SHARED]
        cluster.cancel(job)
        cluster.wait_end(job)
        for exporter in exporters.values():
            exporter.set_processes(GPUS[0])
            exporter.wait_more_ticks()
        urls = [f"{one.server.url}/api/v1/receipt" for one in exporters.values()]
        # Until each node knows that the job has ended, its allocation is booked.
        for url in urls:
            wait_until(lambda url=url: not get(f"{url}?of=job:{job}").json()["running"], "the end of the job")
        done = slurm_command(cluster, "receipt", job, "--from", place, "--format", "json")
        assert done.returncode == 0, done.stderr
        merged = json.loads(done.stdout)
        assert merged["nodes"] == [WHOLE, SHARED]
        parts = [get(f"{url}?of=job:{job}").json() for url in urls]
        for amount in ("gpu_microseconds", "millijoules", "sessions"):
            assert merged["total"][amount] == sum(part["total"][amount] for part in parts)
        text = slurm_command(cluster, "receipt", job, "--from", place).stdout
        assert WHOLE in text
        assert SHARED in text


def test_the_epilogs_of_two_nodes_write_receipts_that_are_merged(
    cluster: SlurmCluster, tmp_path: Path, program: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    variables = f"GPULEDGER_RECEIPTS={shared} GPULEDGER={program} GPULEDGER_RECEIPT_DELAY=1"
    state = f"GPULEDGER_STATE_DIR={tmp_path}/$SLURMD_NODENAME/state"
    write_hook(cluster, "epilog", f"export {variables} {state}\nexec {DEPLOY / 'epilog.sh'}")
    job = cluster.submit("--gres=gpu:1", "--nodes=2", script="srun sleep 600")
    pids = {node: job_process(cluster, job, node) for node in (WHOLE, SHARED)}
    with exporters_on(cluster, tmp_path, WHOLE, SHARED) as exporters:
        for node, pid in pids.items():
            exporters[node].set_processes(GPUS[0], pid)
            exporters[node].wait_more_ticks()
        cluster.cancel(job)
        files = {shared / f"{job}.{node}.json" for node in (WHOLE, SHARED)}
        wait_until(lambda: all(file.exists() for file in files), f"the receipts {files}")
    assert set(shared.iterdir()) == files
    cluster.wait_end(job)
    done = slurm_command(cluster, "receipt", job, "--from", str(shared), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == [WHOLE, SHARED]


# Bodies of a program that cannot make a receipt, and preparations of the Epilog.
REASONS = {
    "gpuledger-missing": "export GPULEDGER=/nowhere/gpuledger",
    "serve-down": "export GPULEDGER=/bin/false",
    "socket-refused": 'export GPULEDGER="$folder/refused"',
    "hangs": 'export GPULEDGER="$folder/hangs"',
    "crashes": 'export GPULEDGER="$folder/crashes"',
    "killed": 'export GPULEDGER="$folder/killed"',
    "disk-full": 'export GPULEDGER=/bin/echo GPULEDGER_RECEIPTS="$folder/full"',
    "no-permission": "export GPULEDGER=/bin/echo GPULEDGER_RECEIPTS=/proc/1",
    "directory-missing": "export GPULEDGER=/bin/echo GPULEDGER_RECEIPTS=/nowhere",
    "directory-is-a-file": "export GPULEDGER=/bin/echo GPULEDGER_RECEIPTS=/etc/passwd",
    "job-unknown": "export GPULEDGER=/bin/false SLURM_JOB_ID=999999999",
    "job-without-number": "unset SLURM_JOB_ID",
    "no-commands": "export PATH=/nowhere",
    "broken-configuration": 'export GPULEDGER_SLURM_CONF="$folder/broken.conf"',
    "no-streams": "exec <&- >&- 2>&-",
}
PROGRAMS = {
    "refused": "echo 'gpuledger: no permission to connect' >&2; exit 1",
    "hangs": "sleep 600",
    "crashes": "kill -SEGV $$",
    "killed": "kill -KILL $$",
}


def node_state(cluster: SlurmCluster, node: str) -> str:
    return cluster.run("sinfo", "-h", "-N", "-n", node, "-o", "%T %E").stdout.strip()


def test_an_epilog_that_fails_for_every_reason_never_drains_the_node(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    for name, body in PROGRAMS.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
    (tmp_path / "broken.conf").write_text("if then (\n")
    (tmp_path / "full").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", tmp_path / "full"], check=True)
    try:
        (tmp_path / "full/filling").write_bytes(b"x" * 4096)
        cases = "\n".join(f"  {name}) {prepare} ;;" for name, prepare in REASONS.items())
        write_hook(
            cluster,
            "epilog",
            f"folder={tmp_path}; echo >> {tmp_path}/ran.$SLURM_JOB_COMMENT\n"
            # Without GPUs of Slurm, so that all jobs run at once.
            f"export GPULEDGER_RECEIPTS={tmp_path} GPULEDGER_RECEIPT_DELAY=0 CUDA_VISIBLE_DEVICES=0\n"
            f"case $SLURM_JOB_COMMENT in\n{cases}\nesac\nexec {DEPLOY / 'epilog.sh'}",
        )
        jobs = [
            cluster.submit(f"--nodelist={WHOLE}", f"--comment={reason}", script="true") for reason in REASONS
        ]
        cluster.wait_end(*jobs)
        wait_until(lambda: node_state(cluster, WHOLE).startswith("idle"), "the node to be idle")
    finally:
        subprocess.run(["umount", "-l", tmp_path / "full"], check=True)
    ran = {file.name.removeprefix("ran.") for file in tmp_path.glob("ran.*")}
    assert ran == set(REASONS)
    # An Epilog that fails does drain the node: otherwise this test could not fail.
    write_hook(cluster, "epilog", "exit 1")
    try:
        cluster.wait_end(cluster.submit(f"--nodelist={WHOLE}", script="true"))
        wait_until(lambda: "drain" in node_state(cluster, WHOLE), "the node to be drained")
    finally:
        (cluster.hooks / "epilog.sh").unlink()
        cluster.run("scontrol", "update", f"nodename={WHOLE}", "state=resume")
        wait_until(lambda: node_state(cluster, WHOLE).startswith("idle"), "the node to be idle again")


def test_the_receipt_is_appended_to_the_output_of_the_job_of_a_user(
    cluster: SlurmCluster, tmp_path: Path, program: Path
) -> None:
    folder = tmp_path / WHOLE
    folder.mkdir()
    socket = Path("/run") / f"gpuledger-test-{tmp_path.name}.sock"
    output = tmp_path / "output"
    output.write_text("")
    output.chmod(0o666)
    variables = f"GPULEDGER={program} GPULEDGER_CONTROL_SOCKET={socket} GPULEDGER_STATE_DIR={folder}/state"
    # On a busy machine, Python takes its time without compiled files.
    variables += f" GPULEDGER_RECEIPT_TIMEOUT={PATIENCE:.0f}"
    write_hook(cluster, "task_epilog", f"export {variables}\nexec {DEPLOY / 'task_epilog.sh'}")
    flags = ("--control.socket", str(socket), "--access", "socket")
    with exporter_on(cluster, WHOLE, folder, *flags) as exporter:
        flags = ("--uid=daemon", f"--output={output}", "--gres=gpu:1", f"--nodelist={WHOLE}")
        script = f"while [ ! -e {tmp_path}/end ]; do sleep 0.2; done; echo done"
        done = cluster.run("sbatch", "--parsable", *flags, f"--wrap={script}")
        job = done.stdout.strip()
        pid = job_process(cluster, job, WHOLE, "slurm_script")
        exporter.set_processes(GPUS[0], pid)
        exporter.wait_more_ticks(20)
        (tmp_path / "end").touch()
        cluster.wait_end(job)
    text = output.read_text()
    assert text.startswith("done\n")
    assert f"job {job}" in text
    assert "GPU" in text


def test_a_requeued_job_loses_the_comment_of_its_run_before(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--requeue")
    pid = job_process(cluster, job, WHOLE)
    with exporters_on(cluster, tmp_path, WHOLE) as exporters, one_address(exporters) as place:
        exporters[WHOLE].set_processes(GPUS[0], pid)
        wait_for_summary(cluster, place, tmp_path, job)
        cluster.run("scontrol", "requeue", job)
        wait_until(lambda: cluster.state(job) == "PENDING", f"job {job} to wait for its second run")
        assert is_own_summary(active_comment(cluster, job))
        assert f"job {job}: removed" in update(cluster, place, tmp_path)
        assert active_comment(cluster, job) == ""
    cluster.cancel(job)


def test_a_task_of_an_array_has_its_own_summary(cluster: SlurmCluster, tmp_path: Path) -> None:
    """The last task has the number of the array, by which Slurm changes all tasks."""
    array = cluster.submit("--gres=gpu:1", f"--nodelist={WHOLE}", "--array=1-2")

    def tasks() -> dict[str, str]:
        lines = cluster.run("squeue", "-h", "-r", "-t", "R", "-o", "%K %A", f"--jobs={array}").stdout
        return dict(line.split() for line in lines.splitlines())

    ids = wait_until(lambda: tasks() if len(tasks()) == 2 else {}, "both tasks to run")
    pids = {number: job_process(cluster, ids[number], WHOLE) for number in ids}
    with exporters_on(cluster, tmp_path, WHOLE) as exporters, one_address(exporters) as place:
        for uuid, number in zip(GPUS, sorted(ids), strict=True):
            exporters[WHOLE].set_processes(uuid, pids[number])
        for number in ids:
            wait_until(
                lambda name=f"{array}_{number}": f"job {name}: written" in update(cluster, place, tmp_path),
                f"the summary of task {number}",
            )
    cluster.cancel(array)
    cluster.wait_end(array)
    comments = [cluster.accounting(f"{array}_{number}", "AdminComment") for number in ids]
    assert all(map(is_own_summary, comments))
    assert len(set(comments)) == 2
