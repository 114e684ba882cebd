"""Builds cgroup and /proc trees like those of Slurm and the kernel."""

from __future__ import annotations

import os
from pathlib import Path

from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.slurm.job_reader import SlurmReader
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs

SCOPE = "system.slice/slurmstepd.scope"
SLUID = "sEKNKTV3WPV500"
GPU_A = "GPU-21a5757c-414f-8dd6-7fff-4a409de596f3"
GPU_B = "GPU-ede6b90f-50d8-42f2-57a1-8a531adc3192"
GRES = "Name=gpu File=/dev/nvidia[0-3]"


def refs(by: str, *names: str) -> tuple[DeviceRef, ...]:
    return tuple(DeviceRef(by, name) for name in names)


class Machine:
    """Below `root`: `cgroup`, `proc` and `gres.conf`. Names are `users` by uid, or u1000 and so on."""

    def __init__(self, root: Path) -> None:
        self.cgroup = root / "cgroup"
        self.proc = root / "proc"
        self.gres_conf = root / "gres.conf"
        self.users: dict[int, str] | None = None
        self.cgroup.mkdir()
        self.proc.mkdir()
        self.reader = SlurmReader(
            self.cgroup, procfs=str(self.proc), gres=(self.gres_conf,), user_name=self._user_name
        )

    def read(self) -> SlurmJobs:
        return self.reader.read()

    def only_job(self) -> SlurmJob:
        (job,) = self.read()
        return job

    def _user_name(self, uid: int) -> str:
        return f"u{uid}" if self.users is None else self.users.get(uid, str(uid))

    def folder(self, path: str, *pids: int) -> Path:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return folder

    def process(self, pid: int, uid: int = 1000, title: str = "", parent: int = 1, **variables: str) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (folder / "cmdline").write_text(f"{title}\0")
        self.environment(pid, **variables)

    def environment(self, pid: int, **variables: str) -> None:
        text = "".join(f"{name}={value}\0" for name, value in variables.items())
        (self.proc / str(pid) / "environ").write_text(text)

    def job(self, name: str = "7", pid: int = 100, step: str = "batch", **variables: str) -> None:
        """A job on cgroup v2 with one step, one process and a slurmstepd."""
        folder = name if name.startswith("s") else f"job_{name}"
        self.folder(f"{SCOPE}/{folder}")
        self.folder(f"{SCOPE}/{folder}/step_{step}")
        self.folder(f"{SCOPE}/{folder}/step_{step}/slurm", pid + 1)
        self.folder(f"{SCOPE}/{folder}/step_{step}/user")
        self.folder(f"{SCOPE}/{folder}/step_{step}/user/task_0", pid)
        self.process(pid + 1, uid=0, title=f"slurmstepd: [{name}.{step}]")
        self.process(pid, **variables)

    def gres(self, text: str) -> None:
        self.gres_conf.write_text(text)

    def forbid(self, pid: int) -> None:
        """Deny reading the environment of the process, also to root."""
        allowed_read = self.reader._read

        def read(path: str) -> bytes:
            if path == f"{self.proc}/{pid}/environ":
                raise PermissionError(13, os.strerror(13), path)
            return allowed_read(path)

        self.reader._read = read
