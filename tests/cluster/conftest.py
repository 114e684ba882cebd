"""A real cluster with one node, started once for all tests of this folder. Keeps the logs if a test fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.agents import Agents, FakeExporters, Objects
from cluster.agents import agents as agents_of
from cluster.control_plane import Client, ControlPlane
from cluster.exporter import RunningExporter, running_exporter
from cluster.node import GPUS, Node
from cluster.operators import OperatorRelease, RunningOperator, operator_release
from cluster.pods import NAMESPACE, Pods
from cluster.release import GPU_LABEL
from containers.product_image import PROGRAM, build_images
from running import victoria_metrics

HERE = Path(__file__).parent
DEPLOY = HERE.parent.parent / "deploy"
OPERATOR = ("test_operator.py", "test_operator_repairs.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Split the tests between three processes with a cluster each: tests that need a node, and those that
    need only a control plane, of which the operator's take longest.
    """
    for item in items:
        if HERE in item.path.parents:
            needs_node = "node" in getattr(item, "fixturenames", ())
            control_plane = "operator" if item.path.name in OPERATOR else "control-plane"
            item.add_marker(pytest.mark.group("node" if needs_node else control_plane))


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    # Not tmp_path: paths of sockets are limited to 108 characters.
    place = Path(tempfile.mkdtemp(prefix="gpuledger-e2e-"))
    (place / "logs").mkdir()
    yield place
    if request.session.testsfailed:
        kept = shutil.copytree(place / "logs", f"{place}-logs")
        sys.stderr.write(f"\nlogs of the cluster: {kept}\n")
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def binaries() -> Path:
    assert os.geteuid() == 0, "a kubelet needs root: sudo make e2e"
    done = subprocess.run([HERE / "build.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def control_plane(binaries: Path, folder: Path) -> Iterator[ControlPlane]:
    (folder / "api").mkdir()
    plane = ControlPlane(binaries, folder / "api", folder / "logs")
    try:
        plane.start()
        for name in (NAMESPACE, "gpuledger"):
            plane.create_namespace(name)
        for manifest in ("rbac.yaml", "agent-rbac.yaml"):
            plane.admin.apply(DEPLOY / manifest)
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def node(binaries: Path, control_plane: ControlPlane, folder: Path) -> Iterator[Node]:
    (folder / "node").mkdir()
    made = Node("node-1", GPUS, control_plane, binaries, folder / "node", folder / "logs")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def program_image(node: Node, folder: Path) -> str:
    """Name of the image on the node; no registry has it."""
    archive = build_images(folder, folder / "logs", PROGRAM)
    node.import_image(archive)
    archive.unlink()
    return PROGRAM


@pytest.fixture(scope="module")
def controllers(binaries: Path, control_plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Controller manager and scheduler, only for tests that need them: they delete pods on nodes that do not
    exist, which other tests create.
    """
    with control_plane.controllers(binaries, folder / "logs"):
        yield


@pytest.fixture(scope="module")
def gpu_node(node: Node, controllers: None, control_plane: ControlPlane) -> Iterator[Node]:
    """The node with the labels that the GPU Operator would set."""
    path = f"api/v1/nodes/{node.name}"
    control_plane.admin.call("PATCH", path, {"metadata": {"labels": GPU_LABEL}})
    yield node
    control_plane.admin.call("PATCH", path, {"metadata": {"labels": dict.fromkeys(GPU_LABEL)}})


@pytest.fixture
def pods(control_plane: ControlPlane) -> Iterator[Pods]:
    """Pods of one test, deleted after it."""
    made = Pods(control_plane.admin)
    yield made
    made.delete_all()


@pytest.fixture
def account(control_plane: ControlPlane) -> Iterator[Client]:
    """Client with the ServiceAccount of deploy/rbac.yaml."""
    client = Client(
        control_plane.url, control_plane.ca_file, control_plane.create_token("gpuledger", "gpuledger")
    )
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def token_file(control_plane: ControlPlane, tmp_path: Path) -> Path:
    """File with a token of the ServiceAccount of deploy/rbac.yaml."""
    file = tmp_path / "token"
    file.write_text(control_plane.create_token("gpuledger", "gpuledger"))
    return file


@pytest.fixture
def api_flags(control_plane: ControlPlane, token_file: Path) -> tuple[str, ...]:
    """Flags for access to the API server."""
    return (
        *("--kubernetes-enabled", "true"),
        *("--kubernetes-api", control_plane.url),
        *("--kubernetes-ca-file", str(control_plane.ca_file)),
        *("--kubernetes-token-file", str(token_file)),
    )


@pytest.fixture
def node_flags(node: Node, api_flags: tuple[str, ...]) -> tuple[str, ...]:
    """Flags for a program on the real node."""
    return (
        *api_flags,
        *("--node-name", node.name),
        *("--pod-resources-socket", str(node.pod_resources)),
        *("--pod-logs", str(node.pod_logs)),
    )


@pytest.fixture
def exporter(node_flags: tuple[str, ...], tmp_path: Path) -> Iterator[RunningExporter]:
    """`gpuledger serve` on the real node."""
    with running_exporter(tmp_path, GPUS, *node_flags) as running:
        yield running


@pytest.fixture
def objects(control_plane: ControlPlane) -> Iterator[Objects]:
    """Objects of one test, deleted after it."""
    made = Objects(control_plane.admin)
    yield made
    made.delete_all()


@pytest.fixture
def fake_exporters() -> Iterator[FakeExporters]:
    """Fake exporters at every address of this machine."""
    made = FakeExporters()
    yield made
    made.close()


@pytest.fixture
def agents(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Agents]:
    """Starts agents with the permissions of deploy/agent-rbac.yaml."""
    with agents_of(control_plane, tmp_path) as made:
        yield made


@pytest.fixture
def store() -> Iterator[str]:
    """URL of a VictoriaMetrics server."""
    with victoria_metrics("-maxLabelsPerTimeseries=100") as url:
        yield url


@pytest.fixture(scope="module")
def release(
    control_plane: ControlPlane, folder: Path, request: pytest.FixtureRequest
) -> Iterator[OperatorRelease]:
    """The operator's objects in the cluster, for the tests of one file."""
    with operator_release(control_plane, folder / request.path.stem) as made:
        yield made


@pytest.fixture(scope="module")
def shared(release: OperatorRelease) -> Iterator[RunningOperator]:
    """One operator for all tests of this file."""
    with release.operators() as start:
        yield start("--status-interval=100ms").wait_leads()


@pytest.fixture
def cluster(release: OperatorRelease, shared: RunningOperator) -> Iterator[OperatorRelease]:
    """The release with a running operator. Deletes a test's resources and checks that no objects remain."""
    yield release
    release.delete_all()
    assert release.managed_objects() == []
