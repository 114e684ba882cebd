"""A real Slurm cluster of two nodes, started once for all tests of this folder.

If a test fails, the logs are kept.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.cluster import NodeSpec, SlurmCluster

WHOLE, SHARED = "gpu1", "gpu2"


@pytest.fixture(scope="session")
def job_files() -> Iterator[Path]:
    """Folder in which Prolog and Epilog write the job of each GPU, one subfolder for each node."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-jobs-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, job_files: Path) -> Iterator[SlurmCluster]:
    """`gpu1` allocates whole GPUs, `gpu2` divides its GPUs into shards. Both have two GPUs."""
    # Not tmp_path: paths of sockets are limited to 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-slurm-"))
    logs = folder / "logs"
    logs.mkdir()
    hooks = f"Prolog={_hook(folder, 'prolog', job_files)}\nEpilog={_hook(folder, 'epilog', job_files)}\n"
    hooks += f"TaskEpilog={_own_hook(folder, 'task_epilog')}\n"
    made = SlurmCluster(folder, logs, [NodeSpec(WHOLE), NodeSpec(SHARED, shards=8)], hooks)
    # Tests can put scripts here, which run after the hooks above.
    made.hooks.mkdir()
    try:
        made.start()
        yield made
    finally:
        made.stop()
        if request.session.testsfailed:
            sys.stderr.write(f"\nlogs of Slurm: {shutil.copytree(logs, f'{folder}-logs')}\n")
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def ended_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs that a failed test leaves would keep the next ones waiting."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").cancel_all()


def _hook(folder: Path, name: str, job_files: Path) -> Path:
    """A script that writes the job's id to a file for each of its GPUs; as epilog, empties them."""
    text = "$SLURM_JOB_ID" if name == "prolog" else ""
    file = folder / f"{name}.sh"
    file.write_text(
        "#!/bin/sh\n"
        f"export PATH=/usr/bin:/bin; place={job_files}/$SLURMD_NODENAME; mkdir -p $place\n"
        f'for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , " "); do echo {text} > "$place/$gpu"; done\n'
        f'env | sort > "$place/{name}.env"\n'
        f"{_call(folder, name)}"
    )
    file.chmod(0o755)
    return file


def _own_hook(folder: Path, name: str) -> Path:
    """A script that only calls that of a test."""
    file = folder / f"{name}.sh"
    file.write_text(f"#!/bin/sh\n{_call(folder, name)}")
    file.chmod(0o755)
    return file


def _call(folder: Path, name: str) -> str:
    """Run the script of a test, if there is one, and exit with its status."""
    return f'own={folder}/hooks/{name}.sh; [ ! -x "$own" ] || exec "$own"; exit 0\n'
