"""A real Slurm cluster on this machine: munged, MariaDB, slurmdbd, slurmctld, and a slurmd for each node.

Each node has its own host name, cgroup tree and GPU device files (node.sh), so that several fit on one
machine. Slurm is the one of Debian 12 (22.05) with cgroup v1. Needs root.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.cgroups import CgroupSubtree
from cluster.daemon import Daemon
from running import PATIENCE, free_port, wait_until

HERE = Path(__file__).parent

_SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={slurmctld_port}
AuthType=auth/munge
AuthInfo=socket={munge}
SlurmUser=root
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,shard
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={slurmdbd_port}
AccountingStoragePass={munge}
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/cgroup
MpiDefault=none
ReturnToService=2
SlurmctldDebug=debug
SlurmdDebug=debug
SchedulerParameters=sched_min_interval=10000
PartitionName=main Nodes=ALL Default=YES State=UP
"""
_SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={slurmdbd_port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounting
"""
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to start, and its GPUs. With `shards`, Slurm divides its GPUs into this many shares."""

    name: str
    gpus: int = 2
    shards: int = 0
    cpus: int = 16

    @property
    def gres(self) -> str:
        """The value of `Gres=` in slurm.conf."""
        return f"gpu:{self.gpus}" + (f",shard:{self.shards}" if self.shards else "")

    @property
    def gres_conf(self) -> str:
        """The node's gres.conf."""
        files = f"Name=gpu File=/dev/nvidia[0-{self.gpus - 1}]\n"
        return files + (f"Name=shard Count={self.shards}\n" if self.shards else "")


class SlurmNode:
    """A node with separate namespaces and a separate cgroup, in which its slurmd runs."""

    def __init__(self, spec: NodeSpec, folder: Path, logs: Path) -> None:
        self.spec = spec
        self.name = spec.name
        self.folder = folder / spec.name
        self.port = free_port()
        self._logs = logs
        self._cgroups = CgroupSubtree(f"{folder.name}-{spec.name}")
        (self.folder / "etc").mkdir(parents=True)
        (folder / f"spool-{spec.name}").mkdir()
        init = [
            "unshare",
            "--mount",
            "--uts",
            "--cgroup",
            HERE / "node.sh",
            self.folder,
            spec.name,
            spec.gpus,
        ]
        self._init = Daemon(
            spec.name,
            [*self._cgroups.entering("node"), *map(str, init)],
            logs,
            ready=(self.folder / "ready").exists,
        )
        self._slurmd: Daemon | None = None

    @property
    def inside(self) -> list[str]:
        """Prefix of a command that runs in this node's namespaces, not in its cgroup."""
        return ["nsenter", f"--target={self._init.pid}", "--mount", "--uts", "--cgroup", "--"]

    def start(self, conf: Path) -> None:
        for file in ("slurm.conf", "cgroup.conf"):
            (self.folder / "etc" / file).write_text((conf / file).read_text())
        (self.folder / "etc/gres.conf").write_text(self.spec.gres_conf)
        self._init.start()
        env = {"SLURM_CONF": "/etc/slurm/slurm.conf"}
        self._slurmd = Daemon(
            f"slurmd-{self.name}", [*self.inside, "slurmd", "-D"], self._logs, env=env
        ).start()

    def stop(self) -> None:
        if self._slurmd is not None:
            self._slurmd.stop()
        self._init.stop()
        self._cgroups.kill()
        self._cgroups.remove()


class SlurmCluster:
    """All daemons of a cluster. `folder` has the configuration and state; `conf` is added to slurm.conf."""

    def __init__(self, folder: Path, logs: Path, nodes: Sequence[NodeSpec], conf: str = "") -> None:
        self._folder = folder
        # Scripts of tests, named after the hook that runs them.
        self.hooks = folder / "hooks"
        self._logs = logs
        self._munge = folder / "munge.socket"
        self.nodes = {spec.name: SlurmNode(spec, folder, logs) for spec in nodes}
        self._database = folder / "mariadb.socket"
        self._env = {"SLURM_CONF": str(folder / "slurm.conf"), "MYSQL_UNIX_PORT": str(self._database)}
        self._daemons: list[Daemon] = []
        self._write_configuration(conf)

    def start(self) -> None:
        self._start_munged()
        self._start_mariadb()
        self._start("slurmdbd", "slurmdbd", "-D")
        wait_until(lambda: self.run("sacctmgr", "-n", "show", "tres").returncode == 0, "slurmdbd to answer")
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in self.nodes.values():
            node.start(self._folder)
        wait_until(self._all_idle, f"all nodes to be idle, see {self._logs}")

    def stop(self) -> None:
        self.run("scancel", "--user=root")
        for node in self.nodes.values():
            node.stop()
        for daemon in reversed(self._daemons):
            daemon.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a command that uses this cluster."""
        return {**os.environ, **self._env}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on the controller."""
        env = self.environment
        return subprocess.run(
            command, env=env, cwd=self._folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def submit(self, *flags: str, script: str = "sleep 600") -> str:
        """Submit a batch job; returns its id."""
        done = self.run("sbatch", "--parsable", "--output=/dev/null", *flags, f"--wrap={script}")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait_end(self, *jobs: str) -> None:
        """Wait until jobs have ended, and the accounting knows it."""
        for job in jobs:
            wait_until(lambda job=job: not self.state(job), f"job {job} to end")
            wait_until(
                lambda job=job: self.accounting(job, "End") not in ("", "Unknown"), f"the end of {job}"
            )

    def accounting(self, job: str, column: str) -> str:
        """A column of the accounting; empty before the job is there."""
        return self.run("sacct", "-X", "-n", "-P", "-o", column, "-j", job).stdout.rstrip("\n")

    def cancel(self, *jobs: str) -> None:
        """Cancel jobs, and wait until Slurm has cleaned up after them."""
        self.run("scancel", *jobs)
        for job in jobs:
            wait_until(lambda job=job: not self.state(job), f"job {job} to end")

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until Slurm has cleaned up after them."""
        self.run("scancel", "--partition=main")
        wait_until(lambda: not self.run("squeue", "--noheader").stdout.strip(), "all jobs to end")

    def state(self, job: str) -> str:
        """Slurm's state of an active job, for example RUNNING; empty if it has ended."""
        return self.run("squeue", "--noheader", "--format=%T", f"--jobs={job}").stdout.strip()

    def wait_running(self, job: str, node: str) -> list[int]:
        """Wait until the job has processes on the node; returns their PIDs."""
        found = wait_until(lambda: self.processes(job, node), f"processes of job {job} on {node}")
        return sorted(found)

    def processes(self, job: str, node: str) -> list[int]:
        """PIDs of a job's own processes on one node."""
        return [
            pid
            for pid, environment in _environments()
            if f"SLURM_JOB_ID={job}" in environment and f"SLURMD_NODENAME={node}" in environment
        ]

    def _all_idle(self) -> bool:
        states = self.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
        return states == ["idle"] * len(self.nodes)

    def _start(self, name: str, *command: str | Path) -> None:
        self._daemons.append(Daemon(name, command, self._logs, env=self._env).start())

    def _start_munged(self) -> None:
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key-file": key, "socket": self._munge}
        files |= {name: self._folder / f"munged.{name}" for name in ("pid-file", "log-file", "seed-file")}
        self._start("munged", "munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items()))
        wait_until(self._munge.exists, "munged's socket")

    def _start_mariadb(self) -> None:
        data = self._folder / "mariadb"
        data.mkdir()
        self._start(
            "mariadb",
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={self._database}"),
            *("--skip-networking", "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0"),
        )
        wait_until(self._database.exists, "MariaDB's socket")

    def _write_configuration(self, extra: str) -> None:
        # Jobs of every user run scripts in slurmd's spool folder.
        self._folder.chmod(0o755)
        (self._folder / "state").mkdir()
        values = {
            "host": socket.gethostname(),
            "folder": self._folder,
            "munge": self._munge,
            "slurmctld_port": free_port(),
            "slurmdbd_port": free_port(),
        }
        nodes = "".join(
            f"NodeName={node.name} NodeAddr=127.0.0.1 Port={node.port} CPUs={node.spec.cpus} RealMemory=1024 "
            f"Gres={node.spec.gres} State=UNKNOWN\n"
            for node in self.nodes.values()
        )
        # slurmd refuses fewer CPUs than configured, unless `config_overrides` is set.
        text = _SLURM_CONF.format(**values) + "SlurmdParameters=config_overrides\n" + nodes + extra
        (self._folder / "slurm.conf").write_text(text)
        (self._folder / "cgroup.conf").write_text(_CGROUP_CONF)
        slurmdbd = self._folder / "slurmdbd.conf"
        slurmdbd.write_text(_SLURMDBD_CONF.format(**values))
        slurmdbd.chmod(0o600)


def proc_text(pid: int, name: str) -> str:
    """A file of a process below /proc; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _environments() -> list[tuple[int, list[str]]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append(
                (int(folder.name), (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0"))
            )
    return found
