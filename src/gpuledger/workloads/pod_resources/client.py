"""The kubelet's pod-resources API, v1: List, and GetAllocatableResources where it is served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from gpuledger.workloads.pod_resources.devices import Claimed, Grant, PodResources
from gpuledger.workloads.pod_resources.unary import (
    LONGEST_ANSWER,
    UNIMPLEMENTED,
    CallFailed,
    UnaryClient,
)

_SERVICE: Final = "/v1.PodResourcesLister/"
# Names of the API are at most this long; ids of devices are not bounded by anything else.
_LONGEST: Final = 253

M = TypeVar("M", bound=Message)


class PodResourcesClient:
    """Asks the kubelet at the unix socket `path`. Raises GpuledgerError with what is wrong and the remedy."""

    def __init__(
        self,
        path: str,
        *,
        timeout: float = 5.0,
        longest: int = LONGEST_ANSWER,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._call = UnaryClient(path, timeout=timeout, longest=longest, monotonic=monotonic).call

    def list(self) -> PodResources:
        """All grants of all pods (List), finished ones among them."""
        answer = self._call(_SERVICE + "List", b"")
        told = self._parsed(wire.ListPodResourcesResponse, answer)
        return PodResources(tuple(grant for pod in told.pod_resources for grant in _grants(pod)))

    def allocatable(self) -> tuple[tuple[str, str], ...] | None:
        """(resource, device id) of all there is (GetAllocatableResources); None where it is not served."""
        try:
            answer = self._call(_SERVICE + "GetAllocatableResources", b"")
        except CallFailed as error:
            if error.code == UNIMPLEMENTED:
                return None
            raise
        told = self._parsed(wire.AllocatableResourcesResponse, answer)
        return tuple(sorted(set(_devices(told.devices))))

    def _parsed(self, kind: type[M], answer: bytes) -> M:
        told = kind()
        try:
            told.ParseFromString(answer)
        except DecodeError:
            raise GpuledgerError(
                f"{self._path} sent a message that is not of pod-resources v1; see that "
                "--pod-resources-socket names the kubelet's pod-resources socket"
            ) from None
        return told


def _grants(pod: wire.PodResources) -> Iterator[Grant]:
    namespace, name = _text(pod.namespace), _text(pod.name)
    for container in pod.containers:
        mine = _text(container.name)
        for resource, device in _devices(container.devices):
            yield Grant(namespace, name, mine, resource, device)
        for claimed in _claimed(container.dynamic_resources):
            yield Grant(namespace, name, mine, claimed=claimed)


def _devices(told: Iterable[wire.ContainerDevices]) -> Iterator[tuple[str, str]]:
    for devices in told:
        resource = _text(devices.resource_name)
        for device in devices.device_ids:
            yield resource, _text(device)


def _claimed(told: Iterable[wire.DynamicResource]) -> Iterator[Claimed]:
    for claim in told:
        for one in claim.claim_resources:
            names = (one.driver_name, one.pool_name, one.device_name, claim.claim_name)
            yield Claimed(*map(_text, names))


def _text(told: str) -> str:
    return clean_name(told, _LONGEST)
