"""UUIDs behind DRA's device names, from ResourceSlices in each version of their API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.kubernetes.client import ApiClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.slices import ResourceSlices, SliceReader, resource_slices
from pods_server import ApiServer, body, serving, status

GROUP = "/apis/resource.k8s.io"
GPU, MIG = "GPU-5c1b8e8e", "MIG-77aa"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as running:
        yield running


def versions(*told: str) -> Any:
    return body(json.dumps({"kind": "APIGroup", "versions": [{"version": one} for one in told]}).encode())


def a_slice(
    *devices: Any, driver: str = "gpu.nvidia.com", pool: str = "node-1", generation: Any = 1
) -> dict[str, Any]:
    about = {"name": pool, "generation": generation, "resourceSliceCount": 1}
    return {"spec": {"driver": driver, "pool": about, "nodeName": "node-1", "devices": list(devices)}}


def device(name: str, *, basic: bool = False, **attributes: Any) -> dict[str, Any]:
    told = {"attributes": {key: {"string": value} for key, value in attributes.items()}}
    return {"name": name, "basic": told} if basic else {"name": name, **told}


def serve(server: ApiServer, version: str, *slices: Any, token: str = "") -> None:
    meta = {"resourceVersion": "9"} | ({"continue": token} if token else {})
    told = json.dumps({"metadata": meta, "items": list(slices)}).encode()
    server.others[GROUP] = versions("v1alpha3", version)
    server.others[f"{GROUP}/{version}/resourceslices"] = body(told)


def read(server: ApiServer) -> ResourceSlices:
    return SliceReader(ApiClient(server.access), "node-1").read()


@pytest.mark.parametrize(("version", "basic"), [("v1", False), ("v1beta2", False), ("v1beta1", True)])
def test_every_version_of_the_api_tells_uuids(server: ApiServer, version: str, basic: bool) -> None:
    serve(server, version, a_slice(device("gpu-0", basic=basic, uuid=GPU, type="gpu")))
    assert read(server).uuids == {("gpu.nvidia.com", "node-1", "gpu-0"): GPU}


def test_the_newest_version_is_asked_for_this_node_alone(server: ApiServer) -> None:
    serve(server, "v1")
    server.others[GROUP] = versions("v1beta1", "v1", "v1beta2")
    read(server)
    assert server.asked[-1].path == f"{GROUP}/v1/resourceslices"
    assert server.asked[-1].query["fieldSelector"] == "spec.nodeName=node-1"
    assert server.asked[-1].query["resourceVersion"] == "0"


def test_attributes_may_bear_the_drivers_domain(server: ApiServer) -> None:
    serve(server, "v1", a_slice(device("gpu-0", **{"gpu.nvidia.com/uuid": GPU, "other.com/uuid": "no"})))
    assert read(server).uuids == {("gpu.nvidia.com", "node-1", "gpu-0"): GPU}


def test_a_mig_instance_tells_its_parent_and_its_own_uuid_where_it_has_one(server: ApiServer) -> None:
    static = device("gpu-0-mig-0", uuid=MIG, parentUUID=GPU)
    dynamic = device("gpu-0-mig-1g.10gb-19-0", parentUUID=GPU)
    serve(server, "v1", a_slice(static, dynamic))
    slices = read(server)
    key = ("gpu.nvidia.com", "node-1")
    assert slices.uuids == {(*key, "gpu-0-mig-0"): MIG}
    assert slices.parents == {(*key, "gpu-0-mig-0"): GPU, (*key, "gpu-0-mig-1g.10gb-19-0"): GPU}
    assert len(slices) == 2


def test_a_long_list_comes_in_pages_all_of_this_node(server: ApiServer) -> None:
    pages = [
        {"metadata": meta, "items": [a_slice(device(name, uuid=uuid))]}
        for meta, name, uuid in (({"continue": "more"}, "gpu-0", GPU), ({}, "gpu-1", "GPU-1"))
    ]
    server.others[GROUP] = versions("v1")
    server.others[f"{GROUP}/v1/resourceslices"] = lambda talk: body(json.dumps(pages.pop(0)).encode())(talk)
    assert set(read(server).uuids.values()) == {GPU, "GPU-1"}
    asked = [one.query for one in server.asked if one.path.endswith("resourceslices")]
    assert [query["fieldSelector"] for query in asked] == ["spec.nodeName=node-1"] * 2
    assert [query.get("continue") for query in asked] == [None, "more"]


@pytest.mark.parametrize("order", [1, -1])
def test_of_a_pool_only_the_newest_generation_counts(server: ApiServer, order: int) -> None:
    old = a_slice(device("gpu-0", uuid="GPU-old"), device("gpu-9", uuid="GPU-gone"), generation=1)
    new = a_slice(device("gpu-0", uuid=GPU), generation=2)
    more = a_slice(device("gpu-1", uuid="GPU-1"), generation=2)
    serve(server, "v1", *[old, new, more][::order])
    assert set(read(server).uuids.values()) == {GPU, "GPU-1"}


def test_pools_and_drivers_are_kept_apart(server: ApiServer) -> None:
    serve(
        server,
        "v1",
        a_slice(device("gpu-0", uuid=GPU)),
        a_slice(device("gpu-0", uuid="GPU-2"), pool="p2", generation=7),
        a_slice(device("gpu-0", uuid="X"), driver="x.com"),
    )
    assert len(read(server)) == 3


def test_a_slice_that_is_odd_is_lost_alone(server: ApiServer) -> None:
    odd = [None, {}, {"spec": 5}, a_slice(None, 5, {"name": 5}), a_slice(device("d"), generation="x")]
    serve(server, "v1", *odd, a_slice(device("gpu-0", uuid=GPU)))
    assert list(read(server).uuids.values()) == [GPU]


@pytest.mark.parametrize("served", [status(404), versions("v1alpha2"), versions()])
def test_a_server_without_dra_has_none_and_that_is_no_failure(server: ApiServer, served: Any) -> None:
    server.others[GROUP] = served
    one = resource_slices(ApiClient(server.access), "node-1", clock=FakeClock())
    assert one.refresh()
    assert (len(one.value), one.health.success, one.health.entries) == (0, True, 0)


def test_a_version_that_goes_away_is_looked_for_anew(server: ApiServer) -> None:
    serve(server, "v1beta1", a_slice(device("gpu-0", basic=True, uuid=GPU)))
    reader = SliceReader(ApiClient(server.access), "node-1")
    assert len(reader.read()) == 1
    server.others.clear()
    serve(server, "v1", a_slice(device("gpu-0", uuid=GPU)))
    assert len(reader.read()) == 1


def test_the_version_is_looked_for_once(server: ApiServer) -> None:
    serve(server, "v1")
    reader = SliceReader(ApiClient(server.access), "node-1")
    reader.read()
    reader.read()
    assert [asked.path for asked in server.asked].count(GROUP) == 1


def test_without_permission_the_rule_is_told(server: ApiServer) -> None:
    serve(server, "v1")
    message = 'resourceslices is forbidden: User "system:serviceaccount:a:b" cannot list'
    server.others[f"{GROUP}/v1/resourceslices"] = status(403, message)
    with pytest.raises(GpuledgerError) as told:
        read(server)
    assert "system:serviceaccount:a:b may not list resourceslices" in str(told.value)
    rule = 'apiGroups: ["resource.k8s.io"], resources: ["resourceslices"], verbs: ["list"]'
    assert rule in str(told.value)


@pytest.mark.parametrize("answer", [body(b"<html>"), body(b"[]"), body(b"{}")])
def test_what_is_no_api_group_is_told(server: ApiServer, answer: Any) -> None:
    server.others[GROUP] = answer
    with pytest.raises(GpuledgerError):
        read(server)
