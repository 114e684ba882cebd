"""Minimal Debian roots, for programs and Pythons that are not in this machine's suite. Needs root.

A root is made once with mmdebstrap and kept in ~/.cache/gpuledger/roots. Change a kept root only in a copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuledger" / "roots"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# What mmdebstrap is called with besides suite and packages: part of a root's identity.
# The Release file of sid on a mirror may be past its date.
_OPTIONS = (
    "--variant=minbase",
    "--aptopt=Acquire::Check-Valid-Until false",
    "--aptopt=APT::Install-Recommends false",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)


@dataclass(frozen=True)
class DebianRoot:
    """A root at `path`. `binds` are folders of this machine that have the same path inside."""

    path: Path
    binds: tuple[Path, ...] = ()

    def command(self, *command: str | Path) -> list[str]:
        """`command` as it is started from outside. /dev, /proc, /sys, /tmp and `binds` are this machine's."""
        script = Path(__file__).with_name("debian_root.sh")
        binds = ":".join(map(str, self.binds))
        return ["env", f"BINDS={binds}", str(script), str(self.path), *map(str, command)]

    def run(
        self,
        *command: str | Path,
        cwd: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        timeout: float = 900,
    ) -> str:
        """Standard output of `command`, run inside; a failure fails the test with both outputs."""
        variables = {**os.environ, **(env or {})}
        done = subprocess.run(
            self.command(*command), cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, (
            f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout

    def copy(self, folder: Path) -> DebianRoot:
        """A copy at `folder` that a test may change; `folder` must not exist."""
        subprocess.run(["cp", "-a", "--reflink=auto", self.path, folder], check=True)
        return DebianRoot(folder, self.binds)


def debian_root(suite: str, packages: Sequence[str] = (), binds: Sequence[Path] = ()) -> DebianRoot:
    """The root of `suite` (bookworm, trixie, sid) with `packages`. Making it takes half a minute, once.

    It trusts this machine's certificate authorities, so that pip works behind a proxy that has its own.
    """
    include = ["ca-certificates", *packages]
    identity = hashlib.sha256("\0".join([*_OPTIONS, MIRROR, *include]).encode()).hexdigest()[:12]
    root = CACHE / f"{suite}-{identity}"
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with root.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not root.exists():
                _make(root, suite, include)
    return DebianRoot(root, tuple(binds))


def _make(root: Path, suite: str, packages: Sequence[str]) -> None:
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    command = ["mmdebstrap", *_OPTIONS, f"--include={','.join(packages)}", suite, str(part), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-4000:]}"
    shutil.copy(CERTIFICATES, part / str(CERTIFICATES).lstrip("/"))
    shutil.copy("/etc/resolv.conf", part / "etc/resolv.conf")
    part.rename(root)
