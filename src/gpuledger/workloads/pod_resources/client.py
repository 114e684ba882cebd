"""Client of the kubelet's pod-resources API v1: List and GetAllocatableResources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.workloads.pod_resources import kubelet_pb2 as wire
from gpuledger.workloads.pod_resources.device_names import ClaimedDevice, KubeletAllocation, PodResources
from gpuledger.workloads.pod_resources.grpc_call import UNIMPLEMENTED, GrpcCallFailed, UnaryGrpcClient

_SERVICE: Final = "/v1.PodResourcesLister/"
# API names have at most 253 characters; the length of device ids is not limited elsewhere.
_MAX_NAME_LENGTH: Final = 253

M = TypeVar("M", bound=Message)


class PodResourcesClient(UnaryGrpcClient):
    """Calls the kubelet at a unix socket. Raises GpuledgerError with a one-line remedy."""

    def list_allocations(self) -> PodResources:
        """All device allocations of all pods, including finished pods (List)."""
        response = self._parse(wire.ListPodResourcesResponse, self.call(_SERVICE + "List", b""))
        return PodResources(
            tuple(allocation for pod in response.pod_resources for allocation in _allocations_of(pod))
        )

    def list_allocatable(self) -> tuple[tuple[str, str], ...] | None:
        """(resource, device id) of all allocatable devices; None if the kubelet does not serve the method."""
        try:
            body = self.call(_SERVICE + "GetAllocatableResources", b"")
        except GrpcCallFailed as error:
            if error.code == UNIMPLEMENTED:
                return None
            raise
        response = self._parse(wire.AllocatableResourcesResponse, body)
        return tuple(sorted(set(_devices(response.devices))))

    def _parse(self, kind: type[M], body: bytes) -> M:
        response = kind()
        try:
            response.ParseFromString(body)
        except DecodeError:
            raise GpuledgerError(
                f"{self._path} sent a message that is not pod-resources v1; check that "
                "--pod-resources-socket is the kubelet's pod-resources socket"
            ) from None
        return response


def _allocations_of(pod: wire.PodResources) -> Iterator[KubeletAllocation]:
    namespace, name = _text(pod.namespace), _text(pod.name)
    for container in pod.containers:
        container_name = _text(container.name)
        for resource, device in _devices(container.devices):
            yield KubeletAllocation(namespace, name, container_name, resource, device)
        for claimed in _claimed_devices(container.dynamic_resources):
            yield KubeletAllocation(namespace, name, container_name, claimed_device=claimed)


def _devices(groups: Iterable[wire.ContainerDevices]) -> Iterator[tuple[str, str]]:
    for devices in groups:
        resource = _text(devices.resource_name)
        for device in devices.device_ids:
            yield resource, _text(device)


def _claimed_devices(claims: Iterable[wire.DynamicResource]) -> Iterator[ClaimedDevice]:
    for claim in claims:
        for device in claim.claim_resources:
            names = (device.driver_name, device.pool_name, device.device_name)
            yield ClaimedDevice(*map(_text, (*names, claim.claim_name, device.share_id)))


def _text(value: str) -> str:
    return clean_name(value, _MAX_NAME_LENGTH)
