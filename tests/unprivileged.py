"""Run programs as an unprivileged user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from prepared import MODULE, run_prepared
from running import PATIENCE

# The user that owns no files by convention; `nobody` on Debian.
UID = 65534
SOURCE = Path(__file__).parents[1] / "src"


def unprivileged_command(*arguments: str) -> list[str]:
    """The command line of `gpuledger` as that user, without privileges; unchanged if the tests do not run as
    root. Skips the test if that user cannot run Python.
    """
    program = ["-m", "gpuledger", *arguments]
    if os.geteuid() != 0:
        return [sys.executable, *program]
    python = _python()
    if python is None:
        pytest.skip(f"uid {UID} can run neither {sys.executable} nor a Python of this version in /usr/bin")
    return [*_setpriv(), python, *program]


def run_unprivileged(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of gpuledger as that user until it exits."""
    python, user = (python_for_all(), (UID, [UID])) if os.geteuid() == 0 else (sys.executable, None)
    return run_prepared([python, *MODULE[1:], *words], os.environ | env, PATIENCE, user)


def python_for_all() -> str:
    """A Python that every user can run. Skips the test if there is none."""
    python = _python()
    if python is None:
        pytest.skip(f"other users can run neither {sys.executable} nor a Python of this version in /usr/bin")
    return python


def environment(home: Path) -> dict[str, str]:
    """The variables with which the Python of that user finds the packages of ours."""
    found = [str(SOURCE), *(path for path in sys.path if path.endswith("-packages"))]
    nowhere = {"XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": ""}
    path = os.pathsep.join(found)
    return {**nowhere, "PYTHONPATH": path, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def _setpriv() -> list[str]:
    ids = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    # setpriv keeps its capabilities until it executes `env`, which then resolves the program without them.
    return ["setpriv", *ids, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "env"]


@cache
def _python() -> str | None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Other users cannot read a clone or an interpreter in the home directory of root.
    for python in filter(None, (sys.executable, shutil.which(version, path="/usr/bin"))):
        tried = [*_setpriv(), python, "-c", "import h11, yaml, gpuledger"]
        done = subprocess.run(
            tried, env=os.environ | environment(Path("/")), capture_output=True, check=False
        )
        if done.returncode == 0:
            return python
    return None
