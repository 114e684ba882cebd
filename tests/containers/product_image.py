"""The images of gpuledger, built from its Dockerfile by a real Docker. Needs root.

Docker's data is kept in ~/.cache/gpuledger/docker, so that a later build of the same packages takes seconds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

from containers.engines import Docker
from debian_root import debian_root

CHECKOUT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuledger" / "docker"
PROGRAM = "gpuledger.test/gpuledger:1"
SMI = "gpuledger.test/gpuledger:1-smi"
_TARGETS = {PROGRAM: "gpuledger", SMI: "smi"}
# Packages of a cached build are at most this old, in seconds.
_CACHE_LIFETIME = 72 * 3600


def build_images(folder: Path, logs: Path, *names: str) -> Path:
    """Build these images; returns their archive below `folder`, in the format of `docker save`."""
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = folder / "images.tar"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _discard_old_cache()
        docker = Docker(folder / "builder", logs, CACHE / "data")
        try:
            docker.start()
            base = _ensure_base(docker)
            for name in names:
                arguments = ("--network=host", f"--build-arg=DEBIAN={base}", f"--target={_TARGETS[name]}")
                docker.run("build", *arguments, f"--tag={name}", CHECKOUT)
            docker.run("save", "--output", archive, *names)
        finally:
            docker.stop()
    return archive


def _discard_old_cache() -> None:
    begun = CACHE / "begun"
    if begun.exists() and time.time() - begun.stat().st_mtime > _CACHE_LIFETIME:
        shutil.rmtree(CACHE / "data", ignore_errors=True)
        begun.unlink()
    if not begun.exists():
        begun.touch()


def _ensure_base(docker: Docker) -> str:
    """Name of an image of Debian with nothing but its essential packages, in place of a registry's."""
    root = debian_root("bookworm").path
    name = f"gpuledger.test/debian:{root.name}"
    if docker.attempt("image", "inspect", name).returncode != 0:
        kernel = [f"--exclude=./{place}/*" for place in ("dev", "proc", "sys")]
        tar = ["tar", "--create", "--numeric-owner", *kernel, "--directory", str(root), "."]
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as content:
            load = [*docker.client, "import", "-", name]
            subprocess.run(load, stdin=content.stdout, env=docker.environment, check=True)
        assert content.returncode == 0
    return name
