"""Real Docker and Podman engines, each with its own data, state and socket. Needs root.

No engine changes the network of the machine: containers share it, or have none.
"""

from __future__ import annotations

import os
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.cgroups import CgroupSubtree
from cluster.daemon import Daemon
from running import PATIENCE, wait_until

_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/containerd.sock"
"""
# In place of the settings of the machine. `vfs` copies whole layers, and works on each file system.
_STORAGE = """\
[storage]
driver = "vfs"
graphroot = "{folder}/root"
runroot = "{folder}/runroot"
"""
# Files that say who a user is. In the namespace of rootless Podman they have one more user.
_ACCOUNTS = ("passwd", "group", "subuid", "subgid")
_NAMESPACE = """\
for file in $2; do mount --bind "$1/$file" "/etc/$file"; done
touch "$1/ready"
exec sleep infinity
"""


class ContainerEngine(ABC):
    """An engine with the command line that Docker and Podman share. `run_flags` are added to each `run`."""

    run_flags: tuple[str, ...] = ("--network", "none")

    def __init__(self, folder: Path, logs: Path) -> None:
        self.folder = folder
        self.socket = folder / "engine.sock"
        self._logs = logs
        self._daemons: list[Daemon] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def client(self) -> list[str]:
        """The command of the client, with the settings that name this engine."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of the client and of the engine."""
        return os.environ

    @abstractmethod
    def start(self) -> None:
        """Start the engine and wait until its socket answers."""

    def stop(self) -> None:
        """Remove all containers and stop the engine."""
        if self.socket.exists() and (containers := self.run("ps", "--all", "--quiet").split()):
            self.run("rm", "--force", *containers)
        for daemon in reversed(self._daemons):
            daemon.stop()
        self._daemons.clear()
        # dockerd leaves a network namespace mounted.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False)

    def run(self, *command: str | Path, timeout: float = 900) -> str:
        """Standard output of a command of the client; fails with the output of a command that fails."""
        done = self.attempt(*command, timeout=timeout)
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def attempt(self, *command: str | Path, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """A command of the client that may fail."""
        return subprocess.run(
            [*self.client, *map(str, command)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def load(self, archive: Path) -> None:
        """Load images from an archive in the format of `docker save`."""
        self.run("load", "--quiet", "--input", archive)

    def start_container(self, name: str, image: str, *flags: str, command: Sequence[str] = ()) -> int:
        """Start a container with the command of its image, or with `command`; returns its first PID."""
        self.run("run", "--detach", "--name", name, *self.run_flags, *flags, image, *command)
        return self.pid(name)

    def pid(self, name: str) -> int:
        """PID of the first process of a running container."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", name))

    def remove(self, *names: str) -> None:
        self.run("rm", "--force", *names)

    def is_answering(self) -> bool:
        """Whether the engine answers at its socket."""
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(PATIENCE)
            try:
                connected.connect(str(self.socket))
                connected.sendall(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
                return b" 200 " in connected.recv(100)
            except OSError:
                return False

    def _start(self, name: str, *command: str | Path) -> None:
        log = f"{self.folder.name}-{name}"
        self._daemons.append(Daemon(log, command, self._logs, env=self.environment).start())


class Docker(ContainerEngine):
    """dockerd with its own containerd. `data` has the images; by default they are below `folder`."""

    def __init__(self, folder: Path, logs: Path, data: Path | None = None) -> None:
        super().__init__(folder, logs)
        self._data = data or folder / "data"

    @property
    def client(self) -> list[str]:
        return ["docker", "--host", f"unix://{self.socket}"]

    @property
    def environment(self) -> Mapping[str, str]:
        # The builder within dockerd: BuildKit is a plugin that Debian does not install with Docker.
        return {**os.environ, "DOCKER_CONFIG": str(self.folder), "DOCKER_BUILDKIT": "0"}

    def start(self) -> None:
        address = self.folder / "containerd.sock"
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(folder=self.folder))
        # In place of the settings of the machine.
        (self.folder / "daemon.json").write_text("{}")
        self._start("containerd", "containerd", "--config", self.folder / "containerd.toml")
        wait_until(address.exists, "containerd's socket")
        self._start(
            "dockerd",
            "dockerd",
            *("--config-file", self.folder / "daemon.json"),
            *("--host", f"unix://{self.socket}"),
            *("--containerd", address),
            *("--data-root", self._data),
            *("--exec-root", self.folder / "exec"),
            *("--pidfile", self.folder / "dockerd.pid"),
            *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
        )
        wait_until(self.is_answering, "dockerd to answer")


class Podman(ContainerEngine):
    """Podman as root, with its service at the socket."""

    # Podman raises limits by default, for which root may lack the permission in a container or VM.
    run_flags = (
        *ContainerEngine.run_flags,
        *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"),
    )

    @property
    def client(self) -> list[str]:
        settings = ("--cgroup-manager=cgroupfs", "--events-backend=file")
        return ["podman", f"--tmpdir={self.folder / 'tmp'}", *settings]

    @property
    def environment(self) -> Mapping[str, str]:
        storage = str(self.folder / "storage.conf")
        return {**os.environ, "CONTAINERS_CONF": "/dev/null", "CONTAINERS_STORAGE_CONF": storage}

    def start(self) -> None:
        (self.folder / "storage.conf").write_text(_STORAGE.format(folder=self.folder))
        self._start("podman", *self.client, "system", "service", "--time=0", f"unix://{self.socket}")
        wait_until(self.is_answering, "Podman to answer")


class RootlessPodman(ContainerEngine):
    """Podman of the user `name`, which exists only in a separate mount namespace (`inside`)."""

    name = "ada"
    uid = 54321
    run_flags = (*ContainerEngine.run_flags, "--ulimit", "host")

    def __init__(self, folder: Path, logs: Path) -> None:
        super().__init__(folder, logs)
        self._home = folder / "home"
        self._runtime = folder / "runtime"
        self.socket = self._runtime / "engine.sock"
        self._cgroups = CgroupSubtree(folder.parent.name)
        self._namespace = 0

    @property
    def inside(self) -> list[str]:
        """Prefix of a command that runs where the user exists."""
        return ["nsenter", f"--target={self._namespace}", "--mount", "--"]

    @property
    def client(self) -> list[str]:
        user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--"]
        flags = ("--cgroup-manager=cgroupfs", "--events-backend=file")
        return [*self._login, *self.inside, *user, "podman", *flags]

    @property
    def _login(self) -> list[str]:
        """Prefix of a command that runs in a cgroup like that of a login of the user."""
        return self._cgroups.entering(f"user.slice/user-{self.uid}.slice/session-1.scope")

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self._home),
            "XDG_RUNTIME_DIR": str(self._runtime),
            "CONTAINERS_CONF": "/dev/null",
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def start(self) -> None:
        # The user must be able to reach its folders.
        self.folder.chmod(0o755)
        storage = self.folder / "storage.conf"
        storage.write_text(_STORAGE.format(folder=self._home))
        storage.chmod(0o644)
        for place in (self._home, self._runtime):
            place.mkdir(mode=0o700)
            os.chown(place, self.uid, self.uid)
        added = {
            "passwd": f"{self.name}:x:{self.uid}:{self.uid}::{self._home}:/bin/sh\n",
            "group": f"{self.name}:x:{self.uid}:\n",
            "subuid": f"{self.name}:500000:65536\n",
            "subgid": f"{self.name}:500000:65536\n",
        }
        for file in _ACCOUNTS:
            place = self.folder / file
            place.write_text(Path("/etc", file).read_text() + added[file])
            place.chmod(0o644)
        words = ("unshare", "--mount", "sh", "-ec", _NAMESPACE, "sh", self.folder, " ".join(_ACCOUNTS))
        self._start("namespace", *words)
        wait_until((self.folder / "ready").exists, "the namespace of the user")
        self._namespace = self._daemons[0].pid
        self._start("podman", *self.client, "system", "service", "--time=0", f"unix://{self.socket}")
        wait_until(self.is_answering, "Podman to answer")

    def stop(self) -> None:
        super().stop()
        # Podman leaves the process that keeps the user's namespace.
        self._cgroups.kill()
        self._cgroups.remove()
