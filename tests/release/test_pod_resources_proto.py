"""The kubelet's pod-resources API: upstream's own api.proto against what gpuledger reads of it.

The file is that of Kubernetes 1.32, from Debian sid. LATER has the fields that later versions added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

import pods_server
from cluster.exporter import running_exporter
from debian_root import debian_root
from gpuledger.workloads.pod_resources import kubelet_pb2
from gpuledger.workloads.pod_resources.client import PodResourcesClient
from gpuledger.workloads.pod_resources.device_names import ClaimedDevice, KubeletAllocation
from unit.workloads.pod_resources.kubelet_server import kubelet

_SOURCES = Path("/usr/share/gocode/src")
_API = "k8s.io/kubelet/pkg/apis/podresources/v1/api.proto"
_PACKAGES = ("golang-github-kubernetes-kubelet-dev", "golang-github-gogo-protobuf-dev", "protobuf-compiler")

_F = FieldDescriptorProto
# By message: name, number, type, label, type of message. Read on 2026-11-29 in the repository
# kubernetes/kubelet: share_id in v0.35.0 and newer, pod-level CPUs and memory in v0.37.0-beta.0.
LATER: Mapping[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "ClaimResource": (("share_id", 5, _F.TYPE_STRING, _F.LABEL_OPTIONAL, ""),),
    "PodResources": (
        ("cpu_ids", 4, _F.TYPE_INT64, _F.LABEL_REPEATED, ""),
        ("memory", 5, _F.TYPE_MESSAGE, _F.LABEL_REPEATED, ".v1.ContainerMemory"),
    ),
}
GPUS = ("GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b")

# Name, type, label, and the type's name of each field, by number.
Fields = dict[int, tuple[str, int, int, str]]


@pytest.fixture(scope="module")
def files() -> FileDescriptorSet:
    """Upstream's file and what it imports, as protoc reads them."""
    with TemporaryDirectory(prefix="gpuledger-proto-") as folder:
        out = Path(folder) / "descriptors"
        root = debian_root("sid", _PACKAGES, binds=[Path(folder)])
        root.run(
            "protoc", f"-I{_SOURCES}", "--include_imports", f"--descriptor_set_out={out}", _SOURCES / _API
        )
        return FileDescriptorSet.FromString(out.read_bytes())


@pytest.fixture(scope="module")
def upstream(files: FileDescriptorSet) -> FileDescriptorProto:
    (found,) = (file for file in files.file if file.name.endswith(_API))
    return found


@pytest.fixture(scope="module")
def newest(upstream: FileDescriptorProto) -> FileDescriptorProto:
    """Upstream's file with the fields that later versions added."""
    made = FileDescriptorProto()
    made.CopyFrom(upstream)
    for message in made.message_type:
        existing = {field.name for field in message.field}
        for name, number, kind, label, type_name in LATER.get(message.name, ()):
            if name not in existing:
                field = message.field.add(name=name, number=number, label=label)
                field.type = _F.Type.ValueType(kind)
                if type_name:
                    field.type_name = type_name
    return made


@pytest.fixture(scope="module")
def messages(files: FileDescriptorSet, newest: FileDescriptorProto) -> dict[str, type[Message]]:
    """The messages of the newest kubelet by name, independent of those of gpuledger."""
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(newest if file.name == newest.name else file)
    names = [f"v1.{message.name}" for message in newest.message_type]
    return {
        name.partition(".")[2]: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in names
    }


def fields(message: DescriptorProto) -> Fields:
    return {field.number: (field.name, field.type, field.label, field.type_name) for field in message.field}


def ours() -> FileDescriptorProto:
    found = FileDescriptorProto()
    kubelet_pb2.DESCRIPTOR.CopyToProto(found)
    return found


# Our file against upstream's


@pytest.mark.parametrize("message", ours().message_type, ids=lambda one: one.name)
def test_each_field_that_gpuledger_reads_is_upstreams(
    message: DescriptorProto, newest: FileDescriptorProto
) -> None:
    (same,) = (one for one in newest.message_type if one.name == message.name)
    theirs = fields(same)
    assert fields(message) == {number: theirs.get(number) for number in fields(message)}


def test_the_packages_have_the_same_name_and_syntax(upstream: FileDescriptorProto) -> None:
    assert (ours().package, ours().syntax) == (upstream.package, upstream.syntax) == ("v1", "proto3")


def test_a_field_that_was_added_later_takes_no_number_of_an_existing_one(
    upstream: FileDescriptorProto,
) -> None:
    existing = {message.name: fields(message) for message in upstream.message_type}
    for message, added in LATER.items():
        for name, number, kind, label, type_name in added:
            found = existing[message].get(number, (name, kind, label, type_name))
            assert found == (name, kind, label, type_name)


def test_only_fields_about_numa_cpus_and_memory_are_not_read(newest: FileDescriptorProto) -> None:
    """A new field of the API is noticed here."""
    read = {message.name: set(fields(message)) for message in ours().message_type}
    unread = {
        f"{message.name}.{name}"
        for message in newest.message_type
        for number, (name, *_) in fields(message).items()
        if number not in read.get(message.name, ())
    }
    assert unread == {
        *("AllocatableResourcesResponse.cpu_ids", "AllocatableResourcesResponse.memory"),
        *("PodResources.cpu_ids", "PodResources.memory"),
        *("ContainerResources.cpu_ids", "ContainerResources.memory"),
        *("ContainerMemory.memory_type", "ContainerMemory.size", "ContainerMemory.topology"),
        *("ContainerDevices.topology", "TopologyInfo.nodes", "NUMANode.ID"),
    }


def test_the_service_has_the_methods_that_gpuledger_calls(upstream: FileDescriptorProto) -> None:
    (service,) = upstream.service
    methods = {one.name: (one.input_type, one.output_type) for one in service.method}
    assert service.name == "PodResourcesLister"
    assert methods == {
        "List": (".v1.ListPodResourcesRequest", ".v1.ListPodResourcesResponse"),
        "GetAllocatableResources": (".v1.AllocatableResourcesRequest", ".v1.AllocatableResourcesResponse"),
        "Get": (".v1.GetPodResourcesRequest", ".v1.GetPodResourcesResponse"),
    }
    assert not any(one.client_streaming or one.server_streaming for one in service.method)


# Messages of a kubelet that are encoded with upstream's file


MEMORY = {"memory_type": "hugepages-1Gi", "size": 2**40, "topology": {"nodes": [{"ID": 1}]}}


def device(name: str, pool: str = "node-1", **more: Any) -> dict[str, Any]:
    """One device of a claim, as NVIDIA's DRA driver names it."""
    cdi = [{"name": f"k8s.gpu.nvidia.com/claim=5a0e-{name}"}]
    driver = {"driver_name": "gpu.nvidia.com", "pool_name": pool, "device_name": name}
    return {"cdi_devices": cdi, **driver, **more}


def container(name: str, *devices: Mapping[str, Any], claim: str = "gpus") -> dict[str, Any]:
    """A container with every field that a kubelet can set."""
    plugin = {"resource_name": "example.com/nic", "device_ids": ["n1"], "topology": MEMORY["topology"]}
    claims = [{"claim_name": claim, "claim_namespace": "team", "claim_resources": list(devices)}]
    return {
        "name": name,
        "devices": [plugin],
        "cpu_ids": [0, 1],
        "memory": [MEMORY],
        "dynamic_resources": claims if devices else [],
    }


def pod(name: str, *containers: Mapping[str, Any]) -> dict[str, Any]:
    cpus = {"cpu_ids": [0, 1], "memory": [MEMORY]}
    return {"name": name, "namespace": "team", "containers": list(containers), **cpus}


@contextmanager
def kubelet_with(messages: Mapping[str, type[Message]], *pods: Mapping[str, Any]) -> Iterator[Path]:
    """The socket of a kubelet with these pods."""
    body = messages["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
    # The path of a unix socket has at most 107 bytes.
    with TemporaryDirectory(prefix="gpuledger-kubelet-", dir="/tmp") as folder:
        path = Path(folder) / "kubelet.sock"
        with kubelet(path, List=lambda _: body):
            yield path


def test_devices_and_claims_are_read_and_all_other_fields_are_skipped(
    messages: Mapping[str, type[Message]],
) -> None:
    claiming = container("main", device("gpu-0", share_id="s1"), device("gpu-1"), claim="two")
    with kubelet_with(messages, pod("train", claiming)) as path:
        allocations = PodResourcesClient(str(path)).list_allocations()
    claimed = [
        ClaimedDevice("gpu.nvidia.com", "node-1", "gpu-0", "two", share="s1"),
        ClaimedDevice("gpu.nvidia.com", "node-1", "gpu-1", "two"),
    ]
    assert allocations.allocations == (
        KubeletAllocation("team", "train", "main", "example.com/nic", "n1"),
        *(KubeletAllocation("team", "train", "main", claimed_device=one) for one in claimed),
    )


def test_allocatable_devices_are_read(messages: Mapping[str, type[Message]], tmp_path: Path) -> None:
    response = messages["AllocatableResourcesResponse"](
        devices=[{"resource_name": "nvidia.com/gpu", "device_ids": ["a", "b"]}], cpu_ids=[0], memory=[MEMORY]
    )
    with TemporaryDirectory(prefix="gpuledger-kubelet-", dir="/tmp") as folder:
        path = Path(folder) / "kubelet.sock"
        with kubelet(path, GetAllocatableResources=lambda _: response.SerializeToString()):
            found = PodResourcesClient(str(path)).list_allocatable()
    assert found == (("nvidia.com/gpu", "a"), ("nvidia.com/gpu", "b"))


def test_the_name_of_a_class_from_before_kubernetes_1_31_is_skipped(
    messages: Mapping[str, type[Message]],
) -> None:
    """Such a kubelet sends no devices: the field of class_name was 1."""
    class_name = b"\x0a\x0egpu.nvidia.com"
    claim = messages["DynamicResource"].FromString(class_name)
    claim.MergeFrom(messages["DynamicResource"](claim_name="gpus"))
    held = messages["ContainerResources"](name="main", dynamic_resources=[claim])
    response = messages["ListPodResourcesResponse"](
        pod_resources=[messages["PodResources"](name="old", containers=[held])]
    )
    assert class_name in response.SerializeToString()
    read = kubelet_pb2.ListPodResourcesResponse.FromString(response.SerializeToString())
    (resource,) = read.pod_resources[0].containers[0].dynamic_resources
    assert (resource.claim_name, list(resource.claim_resources)) == ("gpus", [])


# Owners by claims, in the running program


GROUP = "/apis/resource.k8s.io"


@contextmanager
def api_server(
    devices: Mapping[str, str], capacity: str = "80Gi", **claims: list[dict[str, object]]
) -> Iterator[pods_server.ApiServer]:
    """An API server with a ResourceSlice of these devices, by name with their UUIDs, and no pods.

    `claims` are the results of the ResourceClaims in the namespace team.
    """
    spec = {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node-1",
        "devices": [
            {
                "name": name,
                "attributes": {"uuid": {"string": uuid}},
                "capacity": {"memory": {"value": capacity}},
            }
            for name, uuid in devices.items()
        ],
    }
    versions = {"kind": "APIGroup", "versions": [{"version": "v1"}]}
    slices = {"metadata": {"resourceVersion": "9"}, "items": [{"spec": spec}]}
    with pods_server.serving() as server:
        server.other_paths[GROUP] = pods_server.body(json.dumps(versions).encode())
        server.other_paths[f"{GROUP}/v1/resourceslices"] = pods_server.body(json.dumps(slices).encode())
        for name, results in claims.items():
            claim = {"status": {"allocation": {"devices": {"results": results}}}}
            path = f"{GROUP}/v1/namespaces/team/resourceclaims/{name}"
            server.other_paths[path] = pods_server.body(json.dumps(claim).encode())
        yield server


def result(name: str, **more: object) -> dict[str, object]:
    return {"driver": "gpu.nvidia.com", "pool": "node-1", "device": name, "request": "gpu", **more}


def test_the_pod_with_a_claim_is_the_owner_of_the_claimed_gpu(
    messages: Mapping[str, type[Message]], tmp_path: Path
) -> None:
    """The driver's names of devices do not follow the order of the GPUs: ResourceSlices have their UUIDs."""
    claiming = pod("train", container("main", device("gpu-7", share_id="s1")), container("sidecar"))
    with (
        kubelet_with(messages, claiming) as socket,
        api_server({"gpu-7": GPUS[1], "gpu-3": GPUS[0]}) as server,
        running_exporter(tmp_path, GPUS, *_flags(socket), "--kubernetes-api", server.access.url) as exporter,
    ):
        exporter.wait_allocated_to(GPUS[1], ("team", "train", "main"))
        exporter.wait_state(GPUS[1], "held")
        assert exporter.allocated_to(GPUS[0]) == set()
        ((allocation, _),) = exporter.samples("gpuledger_device_allocation_info")
        assert (allocation["resource"], allocation["found_by"]) == ("gpus", "dra")


def test_a_claim_for_monitoring_holds_no_gpu_and_a_share_holds_its_part(
    messages: Mapping[str, type[Message]], tmp_path: Path
) -> None:
    monitoring = pod("watch", container("main", device("gpu-0"), device("gpu-1"), claim="all"))
    working = pod("train", container("main", device("gpu-1", share_id="s1"), claim="part"))
    admin = [result(name, adminAccess=True) for name in ("gpu-0", "gpu-1")]
    part = [result("gpu-1", shareID="s1", consumedCapacity={"memory": "20Gi"})]
    uuids = {"gpu-0": GPUS[0], "gpu-1": GPUS[1]}
    with (
        kubelet_with(messages, monitoring, working) as socket,
        api_server(uuids, all=admin, part=part) as server,
        running_exporter(tmp_path, GPUS, *_flags(socket), "--kubernetes-api", server.access.url) as exporter,
    ):
        exporter.wait_allocated_to(GPUS[1], ("team", "train", "main"))
        assert exporter.allocated_to(GPUS[0]) == set()
        exporter.wait_state(GPUS[0], "idle")
        ((labels, ratio),) = exporter.samples("gpuledger_device_allocated_ratio")
        assert (labels["pod"], labels["resource"], float(ratio)) == ("train", "part", 0.25)


def test_without_an_api_server_the_name_of_the_device_finds_the_gpu(
    messages: Mapping[str, type[Message]], tmp_path: Path
) -> None:
    with (
        kubelet_with(messages, pod("train", container("main", device("gpu-1")))) as socket,
        running_exporter(tmp_path, GPUS, *_flags(socket)) as exporter,
    ):
        exporter.wait_allocated_to(GPUS[1], ("team", "train", "main"))
        ((allocation, _),) = exporter.samples("gpuledger_device_allocation_info")
        assert (allocation["resource"], allocation["found_by"]) == ("gpus", "dra_name")


def _flags(socket: Path) -> tuple[str, ...]:
    return (
        *("--kubernetes-enabled", "true", "--node-name", "node-1"),
        *("--pod-resources-socket", str(socket)),
        # No cgroup of this machine belongs to the pods.
        *("--sysfs", "/nonexistent"),
    )
