"""A procfs of a few processes in a folder, for tests of what is read on request."""

from __future__ import annotations

from pathlib import Path

BOOT_ROOT = "0 0 4294967295\n"


class ProcfsTree:
    """A folder with the files of processes. `uid_map` is that of the reader."""

    def __init__(self, root: Path, uid_map: str = BOOT_ROOT) -> None:
        self.root = root
        self.write("self/uid_map", uid_map)

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def process(
        self,
        pid: int,
        parent: int = 1,
        *,
        ticks: int = 5000,
        name: str = "python",
        uid: int = 1000,
        effective: int | None = None,
        state: str = "S",
        cgroup: str = "0::/user.slice/user-1000.slice/session-1.scope\n",
        arguments: tuple[str, ...] = (),
    ) -> None:
        """Write a process, or replace it."""
        middle = " ".join(str(number) for number in range(5, 22))
        self.write(f"{pid}/stat", f"{pid} ({name}) {state} {parent} {middle} {ticks} 1024 77 0\n")
        other = uid if effective is None else effective
        self.write(f"{pid}/status", f"Name:\tx\nPPid:\t{parent}\nUid:\t{uid}\t{other}\t{other}\t{other}\n")
        self.write(f"{pid}/cgroup", cgroup)
        self.write(f"{pid}/cmdline", "".join(f"{argument}\0" for argument in arguments))

    def end(self, pid: int) -> None:
        """Remove a process."""
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()
