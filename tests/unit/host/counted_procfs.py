"""A procfs of a few processes in a folder, and readers that count reads and let them fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gpuledger.host.files import read_whole
from gpuledger.host.procfs import ProcFs
from gpuledger.host.users import PasswdUsers

BOOT_ID = "1c5a9a4e-6f5a-4f0c-9d6e-0a1b2c3d4e5f"
BTIME = 1_700_000_000
HERTZ = 100
UNIX = 1_700_009_999.5
POD_CGROUP = "0::/kubepods.slice/kubepods-pod2f1d7c7e_2c1e_4f0a_9a31_0d1f5f7f3b11.slice\n"


class Tree:
    """A procfs in a folder."""

    def __init__(self, root: Path, *, host_pids: bool = True) -> None:
        self.root = root
        self.write("stat", f"cpu  1 2 3\nintr 1\nctxt 5\nbtime {BTIME}\nprocesses 9\n")
        self.write("sys/kernel/random/boot_id", BOOT_ID + "\n")
        self.write("passwd", "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n")
        self.write("2/comm", "kthreadd\n" if host_pids else "bash\n")

    def write(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def process(
        self,
        pid: int,
        *,
        ticks: int = 5000,
        comm: str | bytes = "python3",
        cgroup: str = POD_CGROUP,
        uid: int = 1000,
        executable: str = "/usr/bin/python3.11",
    ) -> None:
        name = comm if isinstance(comm, bytes) else comm.encode()
        middle = b"S " + b" ".join(b"%d" % number for number in range(4, 22))
        self.write(f"{pid}/stat", b"%d (%b) %b %d 1024 77 0\n" % (pid, name, middle, ticks))
        self.write(f"{pid}/status", f"Name:\tx\nState:\tS\nUid:\t{uid}\t0\t0\t0\nGid:\t5\t5\t5\t5\n")
        self.write(f"{pid}/cgroup", cgroup)
        link = self.root / f"{pid}/exe"
        link.unlink(missing_ok=True)
        link.symlink_to(executable)

    def end(self, pid: int) -> None:
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()


class CountedReads:
    """Reads files, counts reads by name below the root, and fails for the names in `failing`."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.seen: Counter[str] = Counter()
        self.failing: dict[str, int] = {}

    def __call__(self, path: str) -> bytes:
        self.note(path)
        return read_whole(path)

    def link(self, path: str) -> str:
        self.note(path)
        return str(Path(path).readlink())

    def note(self, path: str) -> None:
        name = path.removeprefix(self.root + "/")
        self.seen[name] += 1
        if name in self.failing:
            raise OSError(self.failing[name], "injected failure", path)


def procfs_of(tree: Tree, reads: CountedReads, pids: str = "auto") -> ProcFs:
    users = PasswdUsers(str(tree.root / "passwd"))
    return ProcFs(tree.root, pids=pids, users=users, read=reads, link=reads.link, ticks_per_second=HERTZ)


class FailingReads(CountedReads):
    """Fails the n-th read after `begin`, and with `whole` all following reads."""

    def __init__(self, root: Path, fault: int, whole: bool) -> None:
        super().__init__(root)
        self._fault, self._whole = fault, whole
        self._left = 0
        self.hit = False

    def begin(self, number: int) -> None:
        self._left, self.hit = number, False

    def end(self) -> None:
        self._left = 0

    def note(self, path: str) -> None:
        super().note(path)
        if self._left > 1:
            self._left -= 1
        elif self._left == 1:
            self.hit = True
            self._left = int(self._whole)
            raise OSError(self._fault, "injected failure", path)
