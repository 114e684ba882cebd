"""The kubelet's pod-resources API as a real gRPC server tells it, and what is said when it does not."""

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
from gpuledger.workloads.pod_resources.devices import Claimed, Grant
from gpuledger.workloads.pod_resources.unary import CallFailed, Unreachable
from unit.workloads.pod_resources.kubelet_server import Refusal, kubelet, listed, pod, raw_server


@pytest.fixture
def path() -> Iterator[Path]:
    # A unix socket's path may have 107 bytes, and pytest's own folders are longer.
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "kubelet.sock"


def test_list_tells_every_device_of_every_container(path: Path) -> None:
    body = listed(pod("a", "GPU-1", "GPU-2"), pod("b", "MIG-3", resource="nvidia.com/mig-1g.10gb"))
    with kubelet(path, List=lambda _: body):
        told = PodResourcesClient(str(path)).list()
    assert told.grants == (
        Grant("team", "a", "main", "nvidia.com/gpu", "GPU-1"),
        Grant("team", "a", "main", "nvidia.com/gpu", "GPU-2"),
        Grant("team", "b", "main", "nvidia.com/mig-1g.10gb", "MIG-3"),
    )
    assert told.found_by == "pod_resources"


def test_list_tells_what_dra_handed_out(path: Path) -> None:
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
        told = PodResourcesClient(str(path)).list()
    claimed = Claimed("gpu.nvidia.com", "node-1", "gpu-0", "gpus")
    assert told.grants == (Grant("team", "a", "main", claimed=claimed),)


def test_allocatable_ids_are_told_where_they_are_served(path: Path) -> None:
    devices = [wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-2", "GPU-1"])]
    body = wire.AllocatableResourcesResponse(devices=devices).SerializeToString()
    with kubelet(path, GetAllocatableResources=lambda _: body):
        told = PodResourcesClient(str(path)).allocatable()
    assert told == (("nvidia.com/gpu", "GPU-1"), ("nvidia.com/gpu", "GPU-2"))


def test_an_older_kubelet_without_the_newer_call_is_no_failure(path: Path) -> None:
    with kubelet(path, List=lambda _: listed()):
        client = PodResourcesClient(str(path))
        assert (client.allocatable(), len(client.list())) == (None, 0)


def test_an_answer_of_20_mb_is_taken_whole(path: Path) -> None:
    body = listed(*(pod(f"p{number}", "x" * 4096) for number in range(5000)))
    assert len(body) > 20_000_000
    with kubelet(path, List=lambda _: body):
        told = PodResourcesClient(str(path), timeout=60).list()
    assert (len(told), told.grants[-1].pod) == (5000, "p4999")


def test_an_answer_beyond_the_bound_is_refused(path: Path) -> None:
    with kubelet(path, List=lambda _: b"x" * 5000), pytest.raises(GpuledgerError, match="5000 bytes"):
        PodResourcesClient(str(path), longest=4999).list()


def test_a_kubelet_that_was_restarted_is_found_again(path: Path) -> None:
    client = PodResourcesClient(str(path))
    with kubelet(path, List=lambda _: listed(pod("a", "GPU-1"))):
        assert len(client.list()) == 1
    with pytest.raises(Unreachable):
        client.list()
    with kubelet(path, List=lambda _: listed(pod("a", "GPU-1", "GPU-2"))):
        assert len(client.list()) == 2


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("PERMISSION_DENIED", "as root"),
        ("RESOURCE_EXHAUSTED", "too often"),
        ("UNIMPLEMENTED", "Kubernetes 1.20"),
        ("INTERNAL", "asked again"),
    ],
)
def test_a_refusal_is_one_line_with_the_kubelets_words_and_the_remedy(
    path: Path, code: str, remedy: str
) -> None:
    def refuse(_: bytes) -> bytes:
        raise Refusal(grpc.StatusCode[code], "no,\nnot now")

    with kubelet(path, List=refuse), pytest.raises(CallFailed, match=remedy) as caught:
        PodResourcesClient(str(path)).list()
    assert "no, not now" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_answer_that_is_no_message_is_told_as_such(path: Path) -> None:
    with (
        kubelet(path, List=lambda _: b"\x0a\xff"),
        pytest.raises(GpuledgerError, match="not of pod-resources"),
    ):
        PodResourcesClient(str(path)).list()


def test_a_socket_that_is_not_there_is_told_with_the_remedy(path: Path) -> None:
    with pytest.raises(Unreachable, match=r"no socket at .*; mount the node's"):
        PodResourcesClient(str(path)).list()


def test_a_socket_that_nobody_listens_at_is_told_with_the_remedy(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    with pytest.raises(Unreachable, match=r"nobody listens at .*; see that the kubelet runs"):
        PodResourcesClient(str(path)).list()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_a_socket_that_is_not_permitted_is_told_with_the_remedy(path: Path) -> None:
    with kubelet(path, List=lambda _: listed()):
        path.chmod(0)
        with pytest.raises(Unreachable, match=r"no permission for .*; run as root"):
            PodResourcesClient(str(path)).list()


def test_a_path_too_long_for_a_socket_is_told(path: Path) -> None:
    with pytest.raises(Unreachable, match="too long"):
        PodResourcesClient(str(path) + "x" * 200).list()


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
        (_answer_of(_headers(end=True, **{"grpc-status": "0"})), "sent another number"),
    ],
)
def test_a_broken_answer_is_one_line(path: Path, answer: bytes, words: str) -> None:
    with raw_server(path, answer), pytest.raises(GpuledgerError, match=words) as caught:
        PodResourcesClient(str(path)).list()
    assert "\n" not in str(caught.value)


def test_a_kubelet_that_hangs_is_left_at_the_deadline(path: Path) -> None:
    with raw_server(path, hang=True), pytest.raises(GpuledgerError, match=r"no whole answer within 0.2 s"):
        PodResourcesClient(str(path), timeout=0.2).list()


def test_the_deadline_is_for_the_whole_answer_not_for_each_piece(path: Path) -> None:
    # The clock passes the deadline between two pieces, each of which comes at once.
    moments = iter((0.0, 0.0, 0.0, 9.0))
    with raw_server(path, _answer_of(), hang=True), pytest.raises(GpuledgerError, match="no whole answer"):
        PodResourcesClient(str(path), timeout=5.0, monotonic=lambda: next(moments)).list()
