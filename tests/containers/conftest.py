"""Real Docker and Podman engines, started once for all tests of this folder.

If a test fails, the logs are kept.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.image import build_sleeper
from containers.engines import ContainerEngine, Docker, Podman, RootlessPodman
from containers.product_image import PROGRAM, SMI, build_images


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    # Not tmp_path: paths of sockets are limited to 108 characters, and a user must be able to reach them.
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-engines-"))
    folder.chmod(0o755)
    (folder / "logs").mkdir()
    yield folder
    if request.session.testsfailed:
        sys.stderr.write(f"\nlogs of the engines: {shutil.copytree(folder / 'logs', f'{folder}-logs')}\n")
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def sleeper(place: Path) -> Path:
    """Archive of an image with one program, which sleeps."""
    archive = build_sleeper(place)
    archive.chmod(0o644)
    return archive


@contextmanager
def running_engine(engine: ContainerEngine, *archives: Path) -> Iterator[None]:
    try:
        engine.start()
        for archive in archives:
            engine.load(archive)
        yield
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def docker(place: Path, sleeper: Path) -> Iterator[Docker]:
    engine = Docker(place / "docker", place / "logs")
    with running_engine(engine, sleeper):
        yield engine


@pytest.fixture(scope="session")
def podman(place: Path, sleeper: Path) -> Iterator[Podman]:
    engine = Podman(place / "podman", place / "logs")
    with running_engine(engine, sleeper):
        yield engine


@pytest.fixture(scope="session")
def rootless_podman(place: Path, sleeper: Path) -> Iterator[RootlessPodman]:
    engine = RootlessPodman(place / "rootless", place / "logs")
    with running_engine(engine, sleeper):
        yield engine


@pytest.fixture(scope="session")
def product(place: Path, docker: Docker) -> Docker:
    """Docker with the images of gpuledger."""
    archive = build_images(place, place / "logs", PROGRAM, SMI)
    docker.load(archive)
    archive.unlink()
    return docker
