"""The images of the Dockerfile, built and run by a real Docker."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from containers.engines import Docker
from containers.product_image import PROGRAM, SMI
from gpuledger import __version__
from running import wait_until

# Each engine is started once for all tests.
pytestmark = pytest.mark.group("containers")

MB = 1_000_000
# The strictest settings under which people run images.
RESTRICTED = ("--read-only", "--user=65532", "--cap-drop=ALL", "--security-opt=no-new-privileges")
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"
_numbers = count(1)


class ImageContainer:
    """A running container of one of the images, with no network but loopback."""

    def __init__(self, docker: Docker, name: str) -> None:
        self._docker = docker
        self.name = name

    def run(self, *command: str) -> str:
        return self._docker.run("exec", self.name, *command)

    def page(self, port: int) -> str:
        """Its page of metrics."""
        return self.run("/usr/bin/python3", "-c", _FETCH, f"http://127.0.0.1:{port}/metrics")

    def is_listening(self) -> bool:
        done = self._docker.attempt("logs", self.name)
        assert self._docker.run("inspect", "--format={{.State.Running}}", self.name).strip() == "true", done
        return "listening on" in done.stdout + done.stderr

    def stop(self) -> int:
        """Stop as `docker stop` does; returns the exit code."""
        self._docker.run("stop", self.name)
        return int(self._docker.run("inspect", "--format={{.State.ExitCode}}", self.name))


@contextmanager
def serving(
    docker: Docker, *command: str, image: str = PROGRAM, flags: tuple[str, ...] = ()
) -> Iterator[ImageContainer]:
    name = f"server-{next(_numbers)}"
    docker.run("run", "--detach", f"--name={name}", "--network=none", *flags, image, *command)
    try:
        container = ImageContainer(docker, name)
        wait_until(container.is_listening, f"{name} to listen")
        yield container
    finally:
        docker.remove(name)


def output_of(docker: Docker, *command: str, flags: tuple[str, ...] = ()) -> str:
    return docker.run("run", "--rm", "--network=none", *flags, PROGRAM, *command)


def inspected(docker: Docker, image: str = PROGRAM) -> dict[str, Any]:
    (found,) = json.loads(docker.run("image", "inspect", image))
    return dict(found)


@pytest.fixture(scope="module")
def files(product: Docker, tmp_path_factory: pytest.TempPathFactory) -> list[tarfile.TarInfo]:
    """All files of the image."""
    archive = tmp_path_factory.mktemp("image") / "files.tar"
    product.run("create", "--name=files", PROGRAM)
    product.run("export", f"--output={archive}", "files")
    product.remove("files")
    with tarfile.open(archive) as members:
        found = members.getmembers()
    archive.unlink()
    return found


def test_the_program_runs(product: Docker) -> None:
    assert output_of(product, "version").startswith(f"gpuledger {__version__} ")


def test_the_default_command_serves_on_port_9400(product: Docker) -> None:
    """The command line of document 003."""
    with serving(product, "--log-level=info", "--source=simulator") as container:
        assert "\nmy_gpu_process_energy_joules{" in container.page(9400)


def test_the_smi_image_serves_on_the_port_of_nvidia_gpu_exporter(product: Docker) -> None:
    with serving(product, "--source=simulator", image=SMI) as container:
        assert "\nnvidia_smi_power_draw_watts{" in container.page(9835)


def test_it_serves_without_any_privilege(product: Docker) -> None:
    with serving(product, "--source=simulator", flags=RESTRICTED) as container:
        assert "\ngpuledger_build_info{" in container.page(9400)


def test_it_ends_with_exit_code_0_when_docker_stops_it(product: Docker) -> None:
    with serving(product, "--source=simulator", flags=RESTRICTED) as container:
        assert container.stop() == 0


def test_it_keeps_a_ledger_in_a_writable_directory(product: Docker) -> None:
    directory = "/var/lib/gpuledger"
    flags = (*RESTRICTED, f"--tmpfs={directory}:uid=65532,mode=700")
    with serving(product, "--source=simulator", f"--state-dir={directory}", flags=flags) as container:
        assert "simulator-k8s-node.db" in container.run("ls", directory).split()


def test_its_user_has_a_group_that_is_no_person_on_the_host(product: Docker) -> None:
    """Ids from 1000 are people: a file of such a group would belong to one of them."""
    assert output_of(product, "-c", "id", flags=("--user=gpuledger", "--entrypoint=/bin/sh")).startswith(
        "uid=65532(gpuledger) gid=65532(gpuledger) "
    )


def test_doctor_in_a_read_only_container_advises_a_mount(product: Docker) -> None:
    flags = ("--network=none", *RESTRICTED)
    done = product.attempt("run", "--rm", *flags, PROGRAM, "doctor", "--source=nvml")
    assert "mount a directory that uid 65532 can write at /var/lib/gpuledger" in done.stdout
    assert "install -d" not in done.stdout


@pytest.mark.parametrize("name", ["cc", "gcc", "pip", "pip3", "make", "hatchling"])
def test_it_contains_no_compiler_and_no_installer(files: list[tarfile.TarInfo], name: str) -> None:
    assert not [file for file in files if not file.isdir() and file.name.rpartition("/")[2] == name]


def test_its_modules_are_precompiled(files: list[tarfile.TarInfo]) -> None:
    """The root is read-only, so modules would be compiled at each start, which takes a second."""
    names = {file.name for file in files}
    package = "opt/gpuledger/lib/python3.11/site-packages/gpuledger/"
    modules = [name for name in names if name.startswith(package) and name.endswith(".py")]
    assert len(modules) > 300
    compiled = {module: _compiled(module) for module in modules}
    assert [module for module, file in compiled.items() if file not in names] == []


def _compiled(module: str) -> str:
    folder, _, name = module.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-311.pyc"


def test_it_adds_little_to_its_debian(product: Docker) -> None:
    """Python takes 40 MB, gpuledger and its packages 40 MB."""
    layers = product.run("history", "--human=false", "--format={{.Size}}", PROGRAM).split()
    *added, _debian = map(int, layers)
    assert sum(added) < 90 * MB


def test_its_labels_state_version_and_license(product: Docker) -> None:
    labels = inspected(product)["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert json.dumps(labels).isascii()


def test_it_contains_no_other_files_of_the_checkout(files: list[tarfile.TarInfo]) -> None:
    names = {file.name.rpartition("/")[2] for file in files}
    assert not names & {"conftest.py", "Makefile", "CHANGELOG.md", "requirements.lock"}
