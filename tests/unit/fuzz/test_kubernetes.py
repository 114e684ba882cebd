"""Fuzz tests of cluster data: API objects and events, the kubelet's allocations and its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock, gpu, instance
from fuzzing import bounded, check_line, check_text, corpus_files, file_name, fuzzed, mutated_files
from gpuledger.http.client_messages import HttpResponse
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import refusal_from_response
from gpuledger.kubernetes.json_stream import ListReader, split_lines
from gpuledger.kubernetes.list_watch import parse_watch_event
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.containers.container import parse_containers
from gpuledger.workloads.pod_resources.allocation_matching import match_allocations
from gpuledger.workloads.pod_resources.client import PodResourcesClient
from gpuledger.workloads.pod_resources.device_names import PodResources
from gpuledger.workloads.pod_resources.kubelet_index import read_checkpoint
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.claims import ClaimUse
from gpuledger.workloads.pods.pod import Pod, parse_pod
from gpuledger.workloads.pods.resource_claims import ClaimReader
from gpuledger.workloads.pods.resource_slices import SliceReader

CARD = gpu(0, minor=0, pci_bus_id="00000000:01:00.0")
DEVICES = (CARD, gpu(1, minor=1), instance(gpu(1, minor=1), 1, profile="1g.5gb"))
ALL_LABELS = ("*",)
ALL_RESOURCES = PodResourcesSettings(resources=("*",), drivers=("*",))
WORDS = (
    *(b"null", b"{}", b"[]", b'"\\ud800"', b'"\\u0000"', b"1e999", b"NaN", b"-1", b'"9999-99-99T00:00:00Z"'),
    *(
        b'"0001-01-01T00:00:00+14:00"',
        b'"uid":',
        b'"metadata":',
        b'"items":',
        b'"type":"ERROR"',
        b'"code":410',
    ),
    *(
        b'"GPU-0::1"',
        b'"nvidia0/gi1"',
        b'"nvidia.com/gpu"',
        b'"nvidia.com/mig=1:0"',
        b'"k8s.gpu.nvidia.com/claim=x"',
    ),
)


def _answers(body: bytes) -> Any:
    """An API client with this response to every request."""

    class Client:
        @contextmanager
        def get(self, *_: object, **__: object) -> Iterator[Iterator[bytes]]:
            yield (body[at : at + 7] for at in range(0, len(body), 7))

    return Client()


def check_pod(pod: Pod) -> None:
    check_text(
        pod.uid, pod.namespace, pod.name, pod.phase, pod.controller, pod.hash, *pod.containers.values()
    )
    check_text(*(text for pair in pod.labels for text in pair))
    assert pod.created is None or isfinite(pod.created)


def read_objects(raw: bytes) -> None:
    reader = ListReader([raw[:10], raw[10:]])
    for response in reader.items():
        if pod := parse_pod(response, ALL_LABELS):
            check_pod(pod)
    for line in split_lines([raw]):
        event = parse_watch_event(line, lambda response: parse_pod(response, ALL_LABELS))
        if event.item:
            check_pod(event.item)


def read_refusal(raw: bytes) -> None:
    access = ApiServerAccess("https://10.0.0.1:6443")
    for status in (401, 403, 404, 500):
        answer = HttpResponse(status, {"retry-after": "9" * 400})
        check_line(refusal_from_response(access, "/api/v1/pods", answer, raw))


def read_slices(raw: bytes) -> None:
    reader = SliceReader(_answers(raw), "node-1")
    reader._version = "v1"
    response = reader.read()
    check_text(*response.uuids.values(), *response.parents.values())
    for capacities in response.capacities.values():
        check_text(*capacities)


def read_claims(raw: bytes) -> None:
    reader = ClaimReader(_answers(raw), FakeClock())
    claims, _ = reader.read([ClaimUse(("team", "gpus"), "a")])
    for parts in claims.parts.values():
        check_text(*(name for key in parts or () for name in key))


def read_containers(raw: bytes) -> None:
    try:
        response = json.loads(raw)
        found = parse_containers(response)
    except (ValueError, RecursionError):
        return
    for name in found.values():
        check_text(name)


def check_allocations(response: PodResources) -> None:
    for allocation in response:
        check_text(
            allocation.namespace,
            allocation.pod,
            allocation.container,
            allocation.resource,
            allocation.device_id,
        )
    found = match_allocations(response, DEVICES, settings=ALL_RESOURCES)
    assert len(found.allocations) + len(found.unmatched) + found.ended.total() + found.repeated == len(
        response
    )


def read_pod_resources(raw: bytes) -> None:
    client = PodResourcesClient("/nowhere")
    client.call = lambda *_: raw
    check_allocations(client.list_allocations())
    client.list_allocatable()


def read_json(raw: bytes) -> None:
    for read in (read_objects, read_refusal, read_slices, read_claims, read_containers):
        try:
            read(raw)
        except GpuledgerError as error:
            check_line(error)


def read_checkpoint_file(raw: bytes, folder: Path) -> None:
    file = folder / "kubelet_internal_checkpoint"
    file.write_bytes(raw)
    try:
        check_allocations(read_checkpoint(file))
    except GpuledgerError as error:
        check_line(error)


@pytest.mark.parametrize("path", corpus_files("kubernetes"), ids=file_name)
def test_corpus_json_is_parsed_or_rejected(path: Path, tmp_path: Path) -> None:
    with bounded():
        read_json(path.read_bytes())
        read_checkpoint_file(path.read_bytes(), tmp_path)


@fuzzed
@given(raw=mutated_files("kubernetes", *WORDS))
def test_mutated_json_is_parsed_or_rejected(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        read_json(raw)
        read_checkpoint_file(raw, tmp_path_factory.getbasetemp())


def check_pod_resources_response(raw: bytes) -> None:
    with bounded():
        try:
            read_pod_resources(raw)
        except GpuledgerError as error:
            check_line(error)


@pytest.mark.parametrize("path", corpus_files("pod-resources"), ids=file_name)
def test_a_corpus_kubelet_response_is_parsed_or_rejected(path: Path) -> None:
    check_pod_resources_response(path.read_bytes())


@fuzzed
@given(mutated_files("pod-resources", b"\x0a\x05", b"\xff\xff\xff\xff\x0f", b"\x12\x00", b"GPU-0", b"\x0b"))
def test_a_mutated_kubelet_response_is_parsed_or_rejected(raw: bytes) -> None:
    check_pod_resources_response(raw)


@fuzzed
@given(st.text(max_size=60))
def test_any_device_name_matches_a_device_or_gives_a_reason(name: str) -> None:
    from gpuledger.workloads.pod_resources.device_names import DeviceNames, NoMatch

    names = DeviceNames(DEVICES)
    for found in (
        names.find(name),
        names.by_dra_name(name),
        names.by_dra_name(name, name),
        names.find(f"nvidia.com/gpu={name}"),
    ):
        assert found in DEVICES or (isinstance(found, NoMatch) and found.why)


LONG = 100_000
LONG_INPUTS = {
    "nested": b"[" * LONG,
    "nested objects": b'{"a":' * LONG,
    "numbers": b"[" + b"9" * LONG + b"]",
    "items": b'{"items":[' + b"{}," * LONG + b"{}]}",
    "items without end": b'{"items":[' + b'"a' * LONG,
    "blanks": b" " * LONG,
    "lines": b"\n" * LONG,
}


@pytest.mark.parametrize("name", LONG_INPUTS)
def test_long_input_is_read_in_bounded_time(name: str, tmp_path: Path) -> None:
    with bounded():
        read_json(LONG_INPUTS[name])
        read_checkpoint_file(LONG_INPUTS[name], tmp_path)
