"""Laws of what a cluster says: the API's objects and events, the kubelet's grants, its checkpoint."""

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

from builders import gpu, instance
from fuzzing import bounded, check_line, check_text, fuzzed, kept, mutated, named
from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.client import refused
from gpuledger.kubernetes.listing import read_event
from gpuledger.kubernetes.stream import ListReader, lines
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.containers.container import containers_of
from gpuledger.workloads.pod_resources.allocations import allocate
from gpuledger.workloads.pod_resources.client import PodResourcesClient
from gpuledger.workloads.pod_resources.devices import PodResources
from gpuledger.workloads.pod_resources.map import read_checkpoint
from gpuledger.workloads.pods.labels import LabelAllowlist
from gpuledger.workloads.pods.pod import Pod, read_pod
from gpuledger.workloads.pods.slices import SliceReader

CARD = gpu(0, minor=0, pci_bus_id="00000000:01:00.0")
DEVICES = (CARD, gpu(1, minor=1), instance(gpu(1, minor=1), 1, profile="1g.5gb"))
ALL_LABELS = LabelAllowlist(("*",))
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
    """An API server that answers so to everything."""

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
    for told in reader.items():
        if pod := read_pod(told, ALL_LABELS):
            check_pod(pod)
    for line in lines([raw]):
        event = read_event(line, lambda told: read_pod(told, ALL_LABELS))
        if event.about:
            check_pod(event.about)


def read_refusal(raw: bytes) -> None:
    import h11

    access = Access("https://10.0.0.1:6443")
    for status in (401, 403, 404, 500):
        answer = h11.Response(status_code=status, headers=[("Retry-After", "9" * 400)])
        check_line(refused(access, "/api/v1/pods", answer, raw))


def read_slices(raw: bytes) -> None:
    reader = SliceReader(_answers(raw), "node-1")
    reader._version = "v1"
    told = reader.read()
    check_text(*told.uuids.values(), *told.parents.values())


def read_containers(raw: bytes) -> None:
    try:
        told = json.loads(raw)
        found = containers_of(told)
    except (ValueError, RecursionError):
        return
    for one in found:
        check_text(one.name)


def check_grants(told: PodResources) -> None:
    for grant in told:
        check_text(grant.namespace, grant.pod, grant.container, grant.resource, grant.device_id)
    found = allocate(told, DEVICES, resources=("*",), drivers=("*",))
    assert len(found.allocations) + len(found.unmatched) + found.ended + found.repeated == len(told)


def read_grants(raw: bytes) -> None:
    client = PodResourcesClient("/nowhere")
    client._call = lambda *_: raw
    check_grants(client.list())
    client.allocatable()


def read_json(raw: bytes) -> None:
    for law in (read_objects, read_refusal, read_slices, read_containers):
        try:
            law(raw)
        except GpuledgerError as error:
            check_line(error)


def read_kept(raw: bytes, folder: Path) -> None:
    file = folder / "kubelet_internal_checkpoint"
    file.write_bytes(raw)
    try:
        check_grants(read_checkpoint(file))
    except GpuledgerError as error:
        check_line(error)


@pytest.mark.parametrize("path", kept("kubernetes"), ids=named)
def test_kept_json_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    with bounded():
        read_json(path.read_bytes())
        read_kept(path.read_bytes(), tmp_path)


@fuzzed
@given(raw=mutated("kubernetes", *WORDS))
def test_any_json_is_read_or_refused(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bounded():
        read_json(raw)
        read_kept(raw, tmp_path_factory.getbasetemp())


def law_of_grants(raw: bytes) -> None:
    with bounded():
        try:
            read_grants(raw)
        except GpuledgerError as error:
            check_line(error)


@pytest.mark.parametrize("path", kept("pod-resources"), ids=named)
def test_a_kept_answer_of_the_kubelet_is_read_or_refused(path: Path) -> None:
    law_of_grants(path.read_bytes())


@fuzzed
@given(mutated("pod-resources", b"\x0a\x05", b"\xff\xff\xff\xff\x0f", b"\x12\x00", b"GPU-0", b"\x0b"))
def test_any_answer_of_the_kubelet_is_read_or_refused(raw: bytes) -> None:
    law_of_grants(raw)


@fuzzed
@given(st.text(max_size=60))
def test_any_name_of_a_device_is_a_device_or_says_what_is_missing(name: str) -> None:
    from gpuledger.workloads.pod_resources.devices import DeviceNames, Missing

    names = DeviceNames(DEVICES)
    for found in (
        names.find(name),
        names.dra(name),
        names.dra(name, name),
        names.find(f"nvidia.com/gpu={name}"),
    ):
        assert found in DEVICES or (isinstance(found, Missing) and found.why)


LONG = 100_000
ENDLESS = {
    "nested": b"[" * LONG,
    "nested objects": b'{"a":' * LONG,
    "numbers": b"[" + b"9" * LONG + b"]",
    "items": b'{"items":[' + b"{}," * LONG + b"{}]}",
    "items without end": b'{"items":[' + b'"a' * LONG,
    "blanks": b" " * LONG,
    "lines": b"\n" * LONG,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_long_is_not_long_to_read(name: str, tmp_path: Path) -> None:
    with bounded():
        read_json(ENDLESS[name])
        read_kept(ENDLESS[name], tmp_path)
