"""What stands between this process and the machine: container, namespaces, mount options, capabilities."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.text import from_bytes

# Bits of CapEff (linux/capability.h) that matter for reading what belongs to others.
CAPABILITIES: Final = {"CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
_IN_CGROUP: Final = (
    ("Kubernetes", "kubepods"),
    ("Docker", "docker"),
    ("Podman", "libpod"),
    ("LXC", "lxc"),
    ("systemd-nspawn", "machine.slice"),
)


class Isolation:
    """Looks through a procfs and at the root of the filesystem. Methods never raise."""

    def __init__(self, procfs: Path, root: Path, environment: Mapping[str, str]) -> None:
        self._procfs = procfs
        self._root = root
        self._environment = environment

    def container(self) -> str:
        """Which kind of container and how that is known; empty outside of any."""
        if "KUBERNETES_SERVICE_HOST" in self._environment:
            return "Kubernetes, by KUBERNETES_SERVICE_HOST"
        for name, kind in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
            if (self._root / name).exists():
                return f"{kind}, by /{name}"
        manager = self._environment.get("container")
        if manager:
            return f"{manager}, by the variable container"
        told = self._read(self._root / "run/systemd/container").strip()
        if told:
            return f"{told}, by /run/systemd/container"
        own = self._read(self._procfs / "self/cgroup")
        for kind, word in _IN_CGROUP:
            if re.search(rf"/{re.escape(word)}[-./]", own):
                return f"{kind}, by /proc/self/cgroup"
        return ""

    def uid(self) -> int | None:
        """The real uid of this process."""
        match = re.search(r"^Uid:\s+(\d+)", self._read(self._procfs / "self/status"), re.MULTILINE)
        return int(match[1]) if match else None

    def capabilities(self) -> frozenset[str] | None:
        """Those of CAPABILITIES that are in effect; None if that is not told."""
        match = re.search(r"^CapEff:\s+([0-9a-f]+)", self._read(self._procfs / "self/status"), re.MULTILINE)
        if match is None:
            return None
        bits = int(match[1], 16)
        return frozenset(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)

    def readable(self, name: str) -> bool:
        """Whether a file of the procfs can be read."""
        try:
            with (self._procfs / name).open("rb") as file:
                file.read(1)
        except OSError:
            return False
        return True

    def follows(self, name: str) -> bool:
        """Whether a link of the procfs may be read; what it leads to need not be there."""
        try:
            (self._procfs / name).readlink()
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EPERM)
        return True

    def hidepid(self) -> str:
        """The mount option's value where it hides something (`2`, `invisible`, ...), else empty."""
        for line in self._read(self._procfs / "self/mounts").splitlines():
            words = line.split()
            if len(words) > 3 and words[2] == "proc":
                match = re.search(r"(?:^|,)hidepid=([^,]+)", words[3])
                if match and match[1] not in ("0", "off"):
                    return match[1]
        return ""

    def cgroup_version(self) -> str:
        """`v1`, `v2` or `hybrid (v1 with v2)`, by /proc/self/cgroup; empty if it says nothing."""
        lines = self._read(self._procfs / "self/cgroup").splitlines()
        unified = any(line.startswith("0::") for line in lines)
        controllers = any(re.match(r"[1-9]\d*:", line) for line in lines)
        if unified and controllers:
            return "hybrid (v1 with v2)"
        return "v2" if unified else "v1" if controllers else ""

    def hides_cgroups(self) -> bool:
        """Whether paths above our own cgroup are cut off: pid 1 then stands in `/..`."""
        lines = self._read(self._procfs / "1/cgroup").splitlines()
        return any(line.split(":", 2)[-1].startswith("/..") for line in lines)

    @staticmethod
    def _read(path: Path) -> str:
        try:
            return from_bytes(path.read_bytes())
        except OSError:
            return ""
