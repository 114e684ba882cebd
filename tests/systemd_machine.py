"""A machine with a real systemd, for the units and packages. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from debian_root import DebianRoot
from running import PATIENCE, Program, wait_until

CGROUPS = Path("/sys/fs/cgroup")
_SCRIPT = Path(__file__).with_suffix(".sh")
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd=/")
_VARIABLES = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8")


@dataclass(frozen=True)
class SystemdMachine:
    """A booted root; `init` is the pid of its systemd on this machine."""

    root: Path
    init: int

    def command(self, *words: str, user: str = "root") -> list[str]:
        """These words as a command that is started from outside."""
        enter = ["nsenter", f"--target={self.init}", *_NAMESPACES, "env", "-i", *_VARIABLES]
        as_user = (
            [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        )
        return [*enter, *as_user, *words]

    def call(self, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a command inside, whatever its exit code is."""
        command = self.command(*words, user=user)
        return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=PATIENCE, check=False)

    def run(self, *words: str, user: str = "root") -> str:
        """Standard output of a command inside; a failure fails the test with both outputs."""
        done = self.call(*words, user=user)
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def shows(self, unit: str, name: str) -> str:
        """The value of a property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def wait_active(self, unit: str) -> str:
        """Wait until a unit runs; its main pid inside."""
        wait_until(lambda: self.shows(unit, "ActiveState") == "active", f"{unit} to be active")
        return self.shows(unit, "MainPID")

    def journal(self, unit: str) -> list[str]:
        """What a unit has logged."""
        return self.run("journalctl", "--output=cat", f"--unit={unit}").splitlines()

    def write(self, path: str, text: str) -> None:
        """Write a file that all users of the machine may read."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o644)


@contextmanager
def booted(root: DebianRoot) -> Iterator[SystemdMachine]:
    """Boot a root with the packages systemd, systemd-sysv and dbus; it is changed by that."""
    name = f"gpuledger-test-{os.getpid()}"
    program = Program([str(_SCRIPT), str(root.path), name])
    try:
        machine = SystemdMachine(root.path, _init_of(program))
        booted_states = ("running", "degraded")

        def is_booted() -> bool:
            return machine.call("systemctl", "is-system-running").stdout.strip() in booted_states

        wait_until(is_booted, "a booted systemd")
        yield machine
    finally:
        program.process.kill()
        program.stop()
        wait_until(
            lambda: all(_is_removed(group) for group in CGROUPS.glob(f"**/{name}")), "an end of cgroups"
        )


def _init_of(program: Program) -> int:
    """The pid of systemd, the only child of `unshare`."""

    def found() -> int:
        assert program.process.poll() is None, program.lines
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(program.process.pid).children():
                if child.name() == "systemd":
                    return child.pid
        return 0

    return wait_until(found, "systemd")


def _is_removed(group: Path) -> bool:
    """Remove an empty cgroup and those below it; False while a process is left in one."""
    with suppress(OSError):
        for inner in sorted(group.glob("**/"), key=lambda one: len(one.parts), reverse=True):
            inner.rmdir()
        return True
    return False
