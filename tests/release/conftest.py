"""One API server with the chart's CRDs, for all tests of the mark `crd-server`."""

from collections.abc import Iterator, Mapping

import pytest

import chart
from cluster.control_plane import Client
from release.crd_requests import PATHS, apply_crd, delete_all
from release.crd_server import CrdServer, Json, build_crd_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrdServer]:
    folder = tmp_path_factory.mktemp("crd-server")
    made = CrdServer(build_crd_server(), folder, folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def crds() -> dict[str, Json]:
    """The CRDs as the chart renders them, by name."""
    found = chart.of_kind(
        "CustomResourceDefinition", {"operator": {"enabled": True}, "whatapCompat": {"enabled": True}}
    )
    return {crd["metadata"]["name"]: crd for crd in found}


@pytest.fixture
def api(server: CrdServer, crds: Mapping[str, Json]) -> Iterator[Client]:
    """A client of the server, which has the CRDs and no resources."""
    client = server.client()
    try:
        for crd in crds.values():
            apply_crd(client, crd)
        yield client
        for path in PATHS.values():
            delete_all(client, path)
    finally:
        client.close()
