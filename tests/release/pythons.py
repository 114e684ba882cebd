"""Python versions that users have, each in the Debian root of its suite. Needs root.

`development` is a Python with the project's development dependencies, for unit tests; its environment is
kept until the dependencies in pyproject.toml change. `install` is what a user does: a virtual environment in
a root that has nothing but Python, and `pip install`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from debian_root import CACHE, DebianRoot, debian_root

PROJECT = Path(__file__).parents[2]
ENVIRONMENTS = CACHE.parent / "pythons"
DOWNLOADS = CACHE.parent / "pip"
# What unit tests start besides Python.
_TOOLS = ("gcc", "git", "libc6-dev", "openssl", "prometheus")


@dataclass(frozen=True)
class PythonVersion:
    """A Python of a Debian suite. `extras` are the extras of gpuledger that can be installed on it."""

    name: str
    suite: str
    command: str = "python3"
    extras: tuple[str, ...] = ("cluster",)

    @property
    def packages(self) -> tuple[str, ...]:
        return (self.command, f"{self.command}-venv")


VERSIONS = {
    version.name: version
    for version in (
        PythonVersion("3.11", "bookworm"),
        PythonVersion("3.13", "trixie"),
        PythonVersion("3.14", "sid"),
        # google-re2, which the agent needs, has no wheel for it.
        PythonVersion("3.15", "sid", "python3.15", extras=()),
    )
}


@dataclass(frozen=True)
class PythonEnvironment:
    """A virtual environment at `folder`, which has the same path inside `root` and outside."""

    root: DebianRoot
    folder: Path

    def command(self, name: str, *arguments: str | Path) -> list[str]:
        """A command of the environment, as it is started from outside."""
        return self.root.command(self.folder / "bin" / name, *arguments)

    def run(
        self,
        name: str,
        *arguments: str | Path,
        cwd: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        timeout: float = 900,
    ) -> str:
        """Standard output of a command of the environment."""
        return self.root.run(self.folder / "bin" / name, *arguments, cwd=cwd, env=env, timeout=timeout)


def development(version: PythonVersion) -> PythonEnvironment:
    """The Python with all dependencies of the extras `dev` and `cluster`, without gpuledger."""
    requirements = _requirements("dev", *version.extras)
    root = debian_root(version.suite, (*version.packages, *_TOOLS), binds=[ENVIRONMENTS, DOWNLOADS])
    identity = hashlib.sha256(json.dumps([root.path.name, requirements]).encode()).hexdigest()[:12]
    folder = ENVIRONMENTS / f"{version.name}-{identity}"
    for needed in (ENVIRONMENTS, DOWNLOADS):
        needed.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "complete"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _create(root, version, folder, *requirements)
            done.touch()
    return PythonEnvironment(root, folder)


def install(version: PythonVersion, source: Path, folder: Path) -> PythonEnvironment:
    """gpuledger from the checkout at `source`, in a new environment at `folder`, which is below /tmp."""
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    root = debian_root(version.suite, version.packages, binds=[DOWNLOADS])
    extras = f"[{','.join(version.extras)}]" if version.extras else ""
    _create(root, version, folder, f"{source}{extras}")
    return PythonEnvironment(root, folder)


def checkout(folder: Path) -> Path:
    """A copy of the files of the working tree that git tracks or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        file = PROJECT / name
        # A deleted file is still listed until the deletion is committed.
        if file.is_symlink() or file.exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, folder / name, follow_symlinks=False)
    return folder


def _requirements(*extras: str) -> list[str]:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    found: list[str] = list(project["dependencies"])
    for extra in extras:
        for requirement in optional[extra]:
            own = requirement.startswith("gpuledger[")
            found += optional[requirement[len("gpuledger[") : -1]] if own else [requirement]
    return found


def _create(root: DebianRoot, version: PythonVersion, folder: Path, *requirements: str) -> None:
    root.run(version.command, "-m", "venv", folder)
    quiet = ("--quiet", "--disable-pip-version-check", "--root-user-action=ignore")
    environment = {"PIP_CACHE_DIR": str(DOWNLOADS), "PIP_NO_INPUT": "1"}
    root.run("nice", folder / "bin/pip", "install", *quiet, *requirements, env=environment, timeout=1800)
