"""The images of gpuledger, built from its Dockerfile by a real Docker. Needs root.

Docker's data is kept in ~/.cache/gpuledger/docker, so that a later build of the same packages takes seconds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from containers.engines import Docker
from debian_root import DebianRoot, debian_root

CHECKOUT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuledger" / "docker"
PROGRAM = "gpuledger.test/gpuledger:1"
SMI = "gpuledger.test/gpuledger:1-smi"
_TARGETS = {PROGRAM: "gpuledger", SMI: "smi"}
# Packages of a cached build are at most this old, in seconds.
_CACHE_LIFETIME = 72 * 3600


@contextmanager
def caching_docker(folder: Path, logs: Path) -> Iterator[Docker]:
    """A Docker that keeps its images and layers; one process at a time has it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _discard_old_cache()
        docker = Docker(folder / "builder", logs, CACHE / "data")
        try:
            docker.start()
            yield docker
        finally:
            docker.stop()


def build_images(folder: Path, logs: Path, *names: str) -> Path:
    """Build these images; returns their archive below `folder`, in the format of `docker save`."""
    archive = folder / "images.tar"
    with caching_docker(folder, logs) as docker:
        base = ensure_base(docker, debian_root("bookworm"))
        for name in names:
            arguments = ("--network=host", f"--build-arg=DEBIAN={base}", f"--target={_TARGETS[name]}")
            docker.run("build", *arguments, f"--tag={name}", CHECKOUT)
        docker.run("save", "--output", archive, *names)
    return archive


def ensure_base(docker: Docker, root: DebianRoot) -> str:
    """Name of an image with the files of a root, in place of a registry's."""
    name = f"gpuledger.test/debian:{root.path.name}"
    if docker.attempt("image", "inspect", name).returncode != 0:
        kernel = [f"--exclude=./{place}/*" for place in ("dev", "proc", "sys")]
        tar = ["tar", "--create", "--numeric-owner", *kernel, "--directory", str(root.path), "."]
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as content:
            load = [*docker.client, "import", "-", name]
            subprocess.run(load, stdin=content.stdout, env=docker.environment, check=True)
        assert content.returncode == 0
    return name


def _discard_old_cache() -> None:
    begun = CACHE / "begun"
    if begun.exists() and time.time() - begun.stat().st_mtime > _CACHE_LIFETIME:
        shutil.rmtree(CACHE / "data", ignore_errors=True)
        begun.unlink()
    if not begun.exists():
        begun.touch()
