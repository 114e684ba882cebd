"""Owners of processes in containers of a real Docker and a real Podman."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as read_text

from cluster import image
from cluster.exporter import RunningExporter, running_exporter
from containers.engines import ContainerEngine, Docker, Podman, RootlessPodman
from containers.product_image import PROGRAM
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import free_port, get, wait_until

# Each engine is started once for all tests.
pytestmark = pytest.mark.group("containers")

GPU = "GPU-5ca1ab1e-0000-4000-8000-00000000c0de"
# The exporter reads names of containers at this interval, in seconds.
POLL = 30.0
# Labels that name an owner.
Owner = dict[str, str]
_numbers = count(1)


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> ContainerEngine:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, ContainerEngine)
    return found


@pytest.fixture
def exporter(docker: Docker, podman: Podman, tmp_path: Path) -> Iterator[RunningExporter]:
    """The exporter on this machine, with the sockets of both engines."""
    sockets = ("--docker-socket", str(docker.socket), "--podman-socket", str(podman.socket))
    with running_exporter(tmp_path, [GPU], *sockets) as running:
        yield running


@contextmanager
def container(engine: ContainerEngine, *flags: str) -> Iterator[tuple[str, int]]:
    """Name and PID of a new container with one process."""
    name = f"training-{next(_numbers)}"
    pid = engine.start_container(name, image.NAME, *flags)
    try:
        yield name, pid
    finally:
        engine.remove(name)


def owner(exporter: RunningExporter, pid: int) -> Owner:
    """The owner of a process; empty if the process has no series."""
    rows = [labels for labels, _ in exporter.samples("gpuledger_process_info")]
    return next((row for row in rows if row["pid"] == str(pid)), {})


def wait_container(exporter: RunningExporter, pid: int, name: str, patience: float = 2 * POLL) -> None:
    """Wait until a process belongs to the container of this name."""

    def found() -> bool:
        labels = owner(exporter, pid)
        return (labels.get("owner_kind"), labels.get("container")) == ("container", name)

    wait_until(found, f"process {pid} to belong to container {name}: {owner(exporter, pid)}", patience)


def test_a_process_belongs_to_its_container_by_name(
    engine: ContainerEngine, docker: Docker, podman: Podman, tmp_path: Path
) -> None:
    with container(engine) as (name, pid), container(engine) as (other, other_pid):
        sockets = ("--docker-socket", str(docker.socket), "--podman-socket", str(podman.socket))
        with running_exporter(tmp_path, [GPU], *sockets) as exporter:
            exporter.set_processes(GPU, pid, other_pid)
            wait_container(exporter, pid, name)
            wait_container(exporter, other_pid, other)


def test_a_container_with_its_own_cgroup_namespace_has_its_name(
    engine: ContainerEngine, exporter: RunningExporter
) -> None:
    with container(engine, "--cgroupns=private") as (name, pid):
        exporter.set_processes(GPU, pid)
        wait_container(exporter, pid, name)


def test_a_container_that_starts_later_gets_its_name(
    docker: Docker, podman: Podman, exporter: RunningExporter
) -> None:
    with container(docker) as (name, pid), container(podman) as (other, other_pid):
        exporter.set_processes(GPU, pid, other_pid)
        wait_container(exporter, pid, name)
        wait_container(exporter, other_pid, other)


def test_a_renamed_container_has_its_new_name(
    docker: Docker, podman: Podman, exporter: RunningExporter
) -> None:
    with container(docker) as (name, pid), container(podman) as (other, other_pid):
        exporter.set_processes(GPU, pid, other_pid)
        wait_container(exporter, pid, name)
        wait_container(exporter, other_pid, other)
        docker.run("rename", name, f"{name}-renamed")
        podman.run("rename", other, f"{other}-renamed")
        try:
            wait_container(exporter, pid, f"{name}-renamed")
            wait_container(exporter, other_pid, f"{other}-renamed")
        finally:
            docker.run("rename", f"{name}-renamed", name)
            podman.run("rename", f"{other}-renamed", other)


def test_the_id_of_a_container_is_that_of_its_engine(
    engine: ContainerEngine, exporter: RunningExporter
) -> None:
    with container(engine) as (name, pid):
        full_id = engine.run("inspect", "--format", "{{.Id}}", name).strip()
        exporter.set_processes(GPU, pid)
        wait_until(lambda: owner(exporter, pid).get("container_id") == full_id, f"container id {full_id}")


def test_without_a_socket_containers_have_their_short_ids(
    docker: Docker, podman: Podman, tmp_path: Path
) -> None:
    with container(docker) as one, container(docker) as two, container(podman) as three:
        ids = {
            str(pid): engine.run("inspect", "--format", "{{.Id}}", name).strip()[:12]
            for engine, (name, pid) in ((docker, one), (docker, two), (podman, three))
        }
        flags = ("--docker-socket", "", "--podman-socket", "")
        with running_exporter(tmp_path, [GPU], *flags) as exporter:
            exporter.set_processes(GPU, *map(int, ids))

            def named() -> bool:
                rows = [labels for labels, _ in exporter.samples("gpuledger_process_info")]
                return {row["pid"]: row["container"] for row in rows} == ids

            wait_until(named, "three containers to have their short ids")
            rows = [labels for labels, _ in exporter.samples("gpuledger_device_owner_info")]
            assert {row["container"] for row in rows} == set(ids.values())


def test_a_process_of_rootless_podman_belongs_to_its_user(
    rootless_podman: RootlessPodman, tmp_path: Path
) -> None:
    """On cgroup v1 a container of another user than root has no cgroup that could name it."""
    with container(rootless_podman) as (_, pid):
        flags = ("--podman-socket", str(rootless_podman.socket))
        with running_exporter(tmp_path, [GPU], *flags, inside=rootless_podman.inside) as exporter:
            exporter.set_processes(GPU, pid)
            labels = wait_until(lambda: owner(exporter, pid), f"process {pid}")
            assert (labels["owner_kind"], labels["user"]) == ("user", rootless_podman.name)


@contextmanager
def exporter_in_docker(docker: Docker, folder: Path, pid: int, *flags: str) -> Iterator[str]:
    """The page of the image's exporter, which runs in Docker and sees a GPU with one process."""
    state = NvmlState(folder / "nvml-state", [NvmlGpu(NvmlProcess(pid, sm=50), uuid=GPU)]).write()
    library = build().parent
    port = free_port()
    name = f"exporter-{next(_numbers)}"
    docker.run(
        *("run", "--detach", "--name", name, "--network", "host", "--read-only", "--cap-drop", "ALL"),
        *("--volume", f"{library}:{library}:ro", "--volume", f"{folder}:{folder}"),
        *("--env", f"LD_LIBRARY_PATH={library}", "--env", f"TEST_NVML_STATE={state.path}"),
        *("--volume", f"{docker.socket}:/var/run/docker.sock", *flags, PROGRAM),
        *("serve", "--source=nvml", "--interval=200ms", f"--listen-address=127.0.0.1:{port}"),
    )
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        docker.remove(name)


def samples(url: str, family: str) -> list[tuple[dict[str, str], float]]:
    """Samples of a page; none while the server does not answer."""
    try:
        page = get(url).text
    except httpx.TransportError:
        return []
    found = [sample for item in read_text(page) for sample in item.samples if sample.name == family]
    return [(dict(sample.labels), sample.value) for sample in found]


def test_the_image_with_the_pids_of_the_host_names_other_containers(product: Docker, tmp_path: Path) -> None:
    with (
        container(product) as (name, pid),
        exporter_in_docker(product, tmp_path, pid, "--pid=host") as url,
    ):

        def named() -> bool:
            return [row["container"] for row, _ in samples(url, "gpuledger_process_info")] == [name]

        wait_until(named, f"the process of {name}")


def test_the_image_without_the_pids_of_the_host_reports_why_owners_are_unknown(
    product: Docker, tmp_path: Path
) -> None:
    with container(product) as (_, pid), exporter_in_docker(product, tmp_path, pid) as url:

        def reported() -> bool:
            rows = samples(url, "gpuledger_unresolved_processes")
            return {row["reason"]: value for row, value in rows if value} == {"pid_namespace": 1.0}

        wait_until(reported, "one process of another pid namespace")
