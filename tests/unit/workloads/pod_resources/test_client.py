"""PodResourcesClient against a real gRPC server, and its errors for broken servers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest
from hpack import Encoder
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, RstStreamFrame, SettingsFrame

from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from gpuledger.workloads.pod_resources.client import PodResourcesClient
from gpuledger.workloads.pod_resources.device_names import ClaimedDevice, KubeletAllocation
from gpuledger.workloads.pod_resources.grpc_call import GrpcCallFailed, KubeletUnreachable
from running import PATIENCE
from unit.workloads.pod_resources.kubelet_server import Refusal, kubelet, listed, pod, raw_server


@pytest.fixture
def path() -> Iterator[Path]:
    # The path of a unix socket has at most 107 bytes, and pytest's temporary folders are longer.
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "kubelet.sock"


def test_list_returns_every_device_of_every_container(path: Path) -> None:
    body = listed(pod("a", "GPU-1", "GPU-2"), pod("b", "MIG-3", resource="nvidia.com/mig-1g.10gb"))
    with kubelet(path, List=lambda _: body):
        allocations = PodResourcesClient(str(path)).list_allocations()
    assert allocations.allocations == (
        KubeletAllocation("team", "a", "main", "nvidia.com/gpu", "GPU-1"),
        KubeletAllocation("team", "a", "main", "nvidia.com/gpu", "GPU-2"),
        KubeletAllocation("team", "b", "main", "nvidia.com/mig-1g.10gb", "MIG-3"),
    )
    assert allocations.found_by == "pod_resources"


def test_list_returns_devices_claimed_by_dra(path: Path) -> None:
    claim = wire.DynamicResource(
        claim_name="gpus",
        claim_namespace="team",
        claim_resources=[
            wire.ClaimResource(
                driver_name="gpu.nvidia.com",
                pool_name="node-1",
                device_name="gpu-0",
                share_id="s1",
                cdi_devices=[wire.CDIDevice(name="k8s.gpu.nvidia.com/claim=u-gpu-0")],
            )
        ],
    )
    held = wire.ContainerResources(name="main", dynamic_resources=[claim])
    body = listed(wire.PodResources(name="a", namespace="team", containers=[held]))
    with kubelet(path, List=lambda _: body):
        allocations = PodResourcesClient(str(path)).list_allocations()
    claimed = ClaimedDevice("gpu.nvidia.com", "node-1", "gpu-0", "gpus", "s1")
    assert allocations.allocations == (KubeletAllocation("team", "a", "main", claimed_device=claimed),)


def test_allocatable_devices_are_listed_if_the_kubelet_serves_them(path: Path) -> None:
    devices = [wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-2", "GPU-1"])]
    body = wire.AllocatableResourcesResponse(devices=devices).SerializeToString()
    with kubelet(path, GetAllocatableResources=lambda _: body):
        allocations = PodResourcesClient(str(path)).list_allocatable()
    assert allocations == (("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2"))


def test_an_older_kubelet_without_allocatable_devices_is_not_a_failure(path: Path) -> None:
    with kubelet(path, List=lambda _: listed()):
        client = PodResourcesClient(str(path))
        assert (client.list_allocatable(), len(client.list_allocations())) == (None, 0)


def test_a_response_of_20_mb_is_accepted(path: Path) -> None:
    body = listed(*(pod(f"p{number}", "x" * 4096) for number in range(5000)))
    assert len(body) > 20_000_000
    with kubelet(path, List=lambda _: body):
        allocations = PodResourcesClient(str(path), timeout=PATIENCE).list_allocations()
    assert (len(allocations), allocations.allocations[-1].pod) == (5000, "p4999")


def test_a_response_beyond_the_limit_is_rejected(path: Path) -> None:
    with kubelet(path, List=lambda _: b"x" * 5000), pytest.raises(GpuledgerError, match="5000 bytes"):
        PodResourcesClient(str(path), max_bytes=4999).list_allocations()


def test_a_restarted_kubelet_is_found_again(path: Path) -> None:
    client = PodResourcesClient(str(path))
    with kubelet(path, List=lambda _: listed(pod("a", "GPU-1"))):
        assert len(client.list_allocations()) == 1
    with pytest.raises(KubeletUnreachable):
        client.list_allocations()
    with kubelet(path, List=lambda _: listed(pod("a", "GPU-1", "GPU-2"))):
        assert len(client.list_allocations()) == 2


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("PERMISSION_DENIED", "as root"),
        ("RESOURCE_EXHAUSTED", "too many requests"),
        ("UNIMPLEMENTED", "Kubernetes 1.20"),
        ("INTERNAL", "retrying"),
    ],
)
def test_a_grpc_error_is_one_line_with_the_kubelets_message_and_a_remedy(
    path: Path, code: str, remedy: str
) -> None:
    def refuse(_: bytes) -> bytes:
        raise Refusal(grpc.StatusCode[code], "no,\nnot now")

    with kubelet(path, List=refuse), pytest.raises(GrpcCallFailed, match=remedy) as caught:
        PodResourcesClient(str(path)).list_allocations()
    assert "no, not now" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_invalid_protobuf_message_is_an_error(path: Path) -> None:
    with (
        kubelet(path, List=lambda _: b"\x0a\xff"),
        pytest.raises(GpuledgerError, match="not pod-resources v1"),
    ):
        PodResourcesClient(str(path)).list_allocations()


def test_a_missing_kubelet_socket_is_an_error_with_a_remedy(path: Path) -> None:
    with pytest.raises(KubeletUnreachable, match=r"no socket at .*; mount the node's"):
        PodResourcesClient(str(path)).list_allocations()


def test_a_kubelet_socket_without_a_listener_is_an_error_with_a_remedy(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    with pytest.raises(KubeletUnreachable, match=r"nothing listens at .*; check that the kubelet runs"):
        PodResourcesClient(str(path)).list_allocations()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_a_kubelet_socket_without_permission_is_an_error_with_a_remedy(path: Path) -> None:
    with kubelet(path, List=lambda _: listed()):
        path.chmod(0)
        with pytest.raises(KubeletUnreachable, match=r"no permission for .*; run as root"):
            PodResourcesClient(str(path)).list_allocations()


def test_a_socket_path_that_is_too_long_is_an_error(path: Path) -> None:
    with pytest.raises(KubeletUnreachable, match="too long"):
        PodResourcesClient(str(path) + "x" * 200).list_allocations()


def _answer_of(*frames: bytes) -> bytes:
    return b"".join((SettingsFrame(0).serialize(), *frames))


def _headers(*, end: bool = False, status: str = "200", **extra: str) -> bytes:
    frame = HeadersFrame(1, Encoder().encode([(":status", status), *extra.items()]))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


def _data(content: bytes, *, end: bool = False) -> bytes:
    frame = DataFrame(1, content)
    if end:
        frame.flags.add("END_STREAM")
    return frame.serialize()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak gRPC"),
        (b"", "closed the connection"),
        (_answer_of(_headers(), DataFrame(1, b"\0\0\0\0\x09abc").serialize()[:-2]), "closed the connection"),
        (_answer_of(RstStreamFrame(1, 2).serialize()), "RST 2"),
        (_answer_of(GoAwayFrame(0, 0, 0).serialize()), "stops or restarts"),
        (_answer_of(_headers(status="404"), _data(b"404 page not found", end=True)), "HTTP 404"),
        (_answer_of(_headers(end=True)), "without a gRPC status"),
        (_answer_of(_headers(end=True, **{"grpc-status": "0"})), "sent a different number"),
    ],
)
def test_a_broken_response_is_an_error_of_one_line(path: Path, answer: bytes, words: str) -> None:
    with raw_server(path, answer), pytest.raises(GpuledgerError, match=words) as caught:
        PodResourcesClient(str(path)).list_allocations()
    assert "\n" not in str(caught.value)


def test_a_hanging_kubelet_is_given_up_at_the_deadline(path: Path) -> None:
    with (
        raw_server(path, hang=True),
        pytest.raises(GpuledgerError, match=r"no complete response within 0.2 s"),
    ):
        PodResourcesClient(str(path), timeout=0.2).list_allocations()


def test_the_deadline_covers_the_whole_response(path: Path) -> None:
    # The clock passes the deadline between two reads that do not block.
    moments = iter((0.0, 0.0, 0.0, 9.0))
    with (
        raw_server(path, _answer_of(), hang=True),
        pytest.raises(GpuledgerError, match="no complete response"),
    ):
        PodResourcesClient(str(path), timeout=5.0, monotonic=lambda: next(moments)).list_allocations()
