"""UUIDs of DRA devices, from ResourceSlices in every API version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuledger.kubernetes.api_client import ApiClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.pod import ResourceSlices
from gpuledger.workloads.pods.resource_slices import SliceReader
from pods_server import ApiServer, body, serving, status

GROUP = "/apis/resource.k8s.io"
GPU, MIG = "GPU-5c1b8e8e", "MIG-77aa"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as running:
        yield running


def versions(*error: str) -> Any:
    return body(json.dumps({"kind": "APIGroup", "versions": [{"version": one} for one in error]}).encode())


def a_slice(
    *devices: Any, driver: str = "gpu.nvidia.com", pool: str = "node-1", generation: Any = 1
) -> dict[str, Any]:
    about = {"name": pool, "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": driver, "pool": about, "nodeName": "node-1", "devices": list(devices)}}


def device(name: str, *, basic: bool = False, **attributes: Any) -> dict[str, Any]:
    error = {"attributes": {key: {"string": value} for key, value in attributes.items()}}
    return {"name": name, "basic": error} if basic else {"name": name, **error}


def serve(server: ApiServer, version: str, *slices: Any, token: str = "") -> None:
    meta = {"resourceVersion": "9"} | ({"continue": token} if token else {})
    error = json.dumps({"metadata": meta, "items": list(slices)}).encode()
    server.other_paths[GROUP] = versions("v1alpha3", version)
    server.other_paths[f"{GROUP}/{version}/resourceslices"] = body(error)


def read(server: ApiServer) -> ResourceSlices:
    return SliceReader(ApiClient(server.access), "node-1").read()


@pytest.mark.parametrize(("version", "basic"), [("v1", False), ("v1beta2", False), ("v1beta1", True)])
def test_uuids_are_read_from_every_api_version(server: ApiServer, version: str, basic: bool) -> None:
    serve(server, version, a_slice(device("gpu-0", basic=basic, uuid=GPU, type="gpu")))
    assert read(server).uuids == {("gpu.nvidia.com", "node-1", "gpu-0"): GPU}


def test_the_newest_version_is_listed_for_this_node_only(server: ApiServer) -> None:
    serve(server, "v1")
    server.other_paths[GROUP] = versions("v1beta1", "v1", "v1beta2")
    read(server)
    assert server.requests[-1].path == f"{GROUP}/v1/resourceslices"
    assert server.requests[-1].query["fieldSelector"] == "spec.nodeName=node-1"
    assert server.requests[-1].query["resourceVersion"] == "0"


def test_attributes_can_have_the_domain_of_the_driver(server: ApiServer) -> None:
    serve(server, "v1", a_slice(device("gpu-0", **{"gpu.nvidia.com/uuid": GPU, "other.com/uuid": "no"})))
    assert read(server).uuids == {("gpu.nvidia.com", "node-1", "gpu-0"): GPU}


def test_a_mig_instance_has_its_parents_uuid_and_its_own_if_it_exists(server: ApiServer) -> None:
    static = device("gpu-0-mig-0", uuid=MIG, parentUUID=GPU)
    dynamic = device("gpu-0-mig-1g.10gb-19-0", parentUUID=GPU)
    serve(server, "v1", a_slice(static, dynamic))
    slices = read(server)
    key = ("gpu.nvidia.com", "node-1")
    assert slices.uuids == {(*key, "gpu-0-mig-0"): MIG}
    assert slices.parents == {(*key, "gpu-0-mig-0"): GPU, (*key, "gpu-0-mig-1g.10gb-19-0"): GPU}
    assert len(slices) == 2


def test_all_pages_of_a_list_are_read_for_this_node(server: ApiServer) -> None:
    pages = [
        {"metadata": meta, "items": [a_slice(device(name, uuid=uuid))]}
        for meta, name, uuid in (({"continue": "more"}, "gpu-0", GPU), ({}, "gpu-1", "GPU-1"))
    ]
    server.other_paths[GROUP] = versions("v1")
    server.other_paths[f"{GROUP}/v1/resourceslices"] = lambda exchange: body(
        json.dumps(pages.pop(0)).encode()
    )(exchange)
    assert set(read(server).uuids.values()) == {GPU, "GPU-1"}
    request = [one.query for one in server.requests if one.path.endswith("resourceslices")]
    assert [query["fieldSelector"] for query in request] == ["spec.nodeName=node-1"] * 2
    assert [query.get("continue") for query in request] == [None, "more"]


@pytest.mark.parametrize("order", [1, -1])
def test_only_the_newest_generation_of_a_pool_counts(server: ApiServer, order: int) -> None:
    old = a_slice(device("gpu-0", uuid="GPU-old"), device("gpu-9", uuid="GPU-gone"), generation=1)
    new = a_slice(device("gpu-0", uuid=GPU), generation=2)
    more = a_slice(device("gpu-1", uuid="GPU-1"), generation=2)
    serve(server, "v1", *[old, new, more][::order])
    assert set(read(server).uuids.values()) == {GPU, "GPU-1"}


def test_pools_and_drivers_are_separate(server: ApiServer) -> None:
    serve(
        server,
        "v1",
        a_slice(device("gpu-0", uuid=GPU)),
        a_slice(device("gpu-0", uuid="GPU-2"), pool="p2", generation=7),
        a_slice(device("gpu-0", uuid="X"), driver="x.com"),
    )
    assert len(read(server)) == 3


def test_only_an_invalid_slice_is_skipped(server: ApiServer) -> None:
    odd = [None, {}, {"spec": 5}, a_slice(None, 5, {"name": 5}), a_slice(device("d"), generation="x")]
    serve(server, "v1", *odd, a_slice(device("gpu-0", uuid=GPU)))
    assert list(read(server).uuids.values()) == [GPU]


@pytest.mark.parametrize("served", [status(404), versions("v1alpha2"), versions()])
def test_a_server_without_dra_is_not_a_failure(server: ApiServer, served: Any) -> None:
    server.other_paths[GROUP] = served
    assert len(read(server)) == 0


def test_a_removed_api_version_is_discovered_again(server: ApiServer) -> None:
    serve(server, "v1beta1", a_slice(device("gpu-0", basic=True, uuid=GPU)))
    reader = SliceReader(ApiClient(server.access), "node-1")
    assert len(reader.read()) == 1
    server.other_paths.clear()
    serve(server, "v1", a_slice(device("gpu-0", uuid=GPU)))
    assert len(reader.read()) == 1


def test_the_api_version_is_discovered_once(server: ApiServer) -> None:
    serve(server, "v1")
    reader = SliceReader(ApiClient(server.access), "node-1")
    reader.read()
    reader.read()
    assert [request.path for request in server.requests].count(GROUP) == 1


def test_a_missing_permission_for_resource_slices_names_the_rule(server: ApiServer) -> None:
    serve(server, "v1")
    message = 'resourceslices is forbidden: User "system:serviceaccount:a:b" cannot list'
    server.other_paths[f"{GROUP}/v1/resourceslices"] = status(403, message)
    with pytest.raises(GpuledgerError) as error:
        read(server)
    assert "system:serviceaccount:a:b may not list resourceslices" in str(error.value)
    rule = 'apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list"]'
    assert rule in str(error.value)


@pytest.mark.parametrize("answer", [body(b"<html>"), body(b"[]"), body(b"{}")])
def test_an_invalid_api_group_is_an_error(server: ApiServer, answer: Any) -> None:
    server.other_paths[GROUP] = answer
    with pytest.raises(GpuledgerError):
        read(server)
