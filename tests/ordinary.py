"""Programs as an ordinary user, who has no privilege and owns nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

# By convention the user that owns no file; Debian calls it nobody.
UID = 65534
SOURCE = Path(__file__).parents[1] / "src"


def ordinary(*arguments: str) -> list[str]:
    """The command line of `gpuledger` with these arguments as that user, with no privilege to be had; as who
    runs the tests where that is no root. Skips where that user could not run any Python.
    """
    program = ["-m", "gpuledger", *arguments]
    if os.geteuid() != 0:
        return [sys.executable, *program]
    python = _python()
    if python is None:
        pytest.skip(f"uid {UID} can run neither {sys.executable} nor a Python of this version in /usr/bin")
    return [*_setpriv(), python, *program]


def environment(home: Path) -> dict[str, str]:
    """What that user's Python needs to find what ours has."""
    found = [str(SOURCE), *(path for path in sys.path if path.endswith("-packages"))]
    nowhere = {"XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": ""}
    path = os.pathsep.join(found)
    return {**nowhere, "PYTHONPATH": path, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def _setpriv() -> list[str]:
    ids = [f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    # It has its capabilities until it executes another program, which must not be found by them.
    return ["setpriv", *ids, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "env"]


@cache
def _python() -> str | None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A clone, or an interpreter, in root's home cannot be reached by others.
    for python in filter(None, (sys.executable, shutil.which(version, path="/usr/bin"))):
        tried = [*_setpriv(), python, "-c", "import h11, yaml, gpuledger"]
        done = subprocess.run(
            tried, env=os.environ | environment(Path("/")), capture_output=True, check=False
        )
        if done.returncode == 0:
            return python
    return None
