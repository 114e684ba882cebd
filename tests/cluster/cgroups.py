"""A temporary subtree of the machine's cgroup tree, in every hierarchy."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from signal import SIGKILL

from running import wait_until

ROOT = Path("/sys/fs/cgroup")


class CgroupSubtree:
    """Subtree `name` below the root. A kubelet limited to it cannot see or stop other pods of the machine."""

    def __init__(self, name: str) -> None:
        self.path = f"/{name}"
        self._tops = [hierarchy / name for hierarchy in _hierarchies()]
        for top in self._tops:
            top.mkdir()
        if _is_unified():
            controllers = (ROOT / "cgroup.controllers").read_text().split()
            _enable(ROOT, controllers)
            _enable(self._tops[0], controllers)

    def move_process(self, pid: int, path: str) -> None:
        """Move a process to a path below this subtree, which is created if missing."""
        for top in self._tops:
            place = top / path
            place.mkdir(parents=True, exist_ok=True)
            _inherit_cpuset(top, place)
            (place / "cgroup.procs").write_text(str(pid))

    def entering(self, path: str) -> list[str]:
        """Prefix of a command that runs at a path below this subtree."""
        places = [top / path for top in self._tops]
        for top, place in zip(self._tops, places, strict=True):
            place.mkdir(parents=True, exist_ok=True)
            _inherit_cpuset(top, place)
        enter = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs"; shift; done; shift; exec "$@"'
        return ["sh", "-ec", enter, "sh", *map(str, places), "--"]

    def kill(self) -> None:
        """Kill all processes in the subtree."""
        files = chain.from_iterable(top.rglob("cgroup.procs") for top in self._tops)
        for pid in {pid for file in files for pid in file.read_text().split()}:
            with suppress(ProcessLookupError):
                os.kill(int(pid), SIGKILL)

    def remove(self) -> None:
        """Remove the subtree once its last process has exited."""
        for top in self._tops:
            wait_until(partial(_remove_tree, top), f"{top} to be empty")


def _is_unified() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if _is_unified():
        return [ROOT]
    # Symbolic links (cpu -> cpu,cpuacct) name the same hierarchy again.
    return [place for place in ROOT.iterdir() if not place.is_symlink() and (place / "cgroup.procs").exists()]


def _enable(place: Path, controllers: list[str]) -> None:
    (place / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _inherit_cpuset(top: Path, place: Path) -> None:
    # cgroup v1: a new cpuset is empty and accepts no processes.
    steps = [step for step in (place, *place.parents) if step == top or top in step.parents]
    for step in reversed(steps):
        for setting in ("cpuset.cpus", "cpuset.mems"):
            file = step / setting
            if not _is_unified() and file.exists() and not file.read_text().strip():
                file.write_text((step.parent / setting).read_text())


def _remove_tree(top: Path) -> bool:
    """Try to remove the tree. False while a process is in it."""
    for place, _, _ in os.walk(top, topdown=False):
        try:
            Path(place).rmdir()
        except OSError:
            return False
    return True
