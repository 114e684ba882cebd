"""UUIDs of DRA devices, from the ResourceSlices of this node."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple

from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused, list_pages, node_selector_query
from gpuledger.kubernetes.fields import mapping_at, mappings_at, name_at
from gpuledger.kubernetes.json_stream import NotJson
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.pods.capacities import Capacities, parse_capacities
from gpuledger.workloads.pods.pod import NO_SLICES, DraDevice, ResourceSlices

DRA_GROUP: Final = "/apis/resource.k8s.io"
# Newest first. Older versions have other field names.
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")


def discover_dra_version(client: ApiClient) -> str:
    """The newest API version of resource.k8s.io that the server has; empty if it has none that is known."""
    try:
        with client.get(DRA_GROUP, {}) as chunks:
            served = _served_versions(b"".join(chunks))
    except ApiServerRefused as error:
        if error.status != 404:
            raise
        return ""
    return next((version for version in _VERSIONS if version in served), "")


class SliceReader:
    """Lists the ResourceSlices of a node, in the newest API version that the server has."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._client = client
        self._node = node
        self._version = ""

    def read(self) -> ResourceSlices:
        """The UUIDs; empty if the server is too old for DRA. Raises GpuledgerError."""
        if self._version and (slices := self._list(self._version)) is not None:
            return slices
        # This is the first read, or the server was upgraded.
        self._version = discover_dra_version(self._client)
        return (self._list(self._version) if self._version else None) or NO_SLICES

    def _list(self, version: str) -> ResourceSlices | None:
        """The UUIDs by this API version; None if it is not served."""
        try:
            return self._pages(version)
        except ApiServerRefused as error:
            if error.status != 404:
                raise
            return None

    def _pages(self, version: str) -> ResourceSlices:
        found = _PoolGenerations()
        path = f"{DRA_GROUP}/{version}/resourceslices"
        with closing(list_pages(self._client, path, node_selector_query(self._node))) as pages:
            for page in pages:
                for item in page.items():
                    found.add(item)
        return found.devices()


class _PoolGenerations:
    """Devices of the newest generation of each pool. Older slices exist while a driver updates a pool."""

    def __init__(self) -> None:
        # By driver and pool: the newest generation, and its devices.
        self._pools: dict[tuple[str, str], tuple[int, _PoolDevices]] = {}

    def add(self, resource_slice: object) -> None:
        spec = mapping_at(resource_slice, "spec")
        pool = mapping_at(spec, "pool")
        key = (name_at(spec, "driver"), name_at(pool, "name"))
        generation = pool.get("generation")
        generation = generation if isinstance(generation, int) else 0
        newest, pool_devices = self._pools.get(key, (None, _PoolDevices({}, {}, {})))
        if not all(key) or (newest is not None and generation < newest):
            return
        if newest is None or generation > newest:
            pool_devices = _PoolDevices({}, {}, {})
            self._pools[key] = (generation, pool_devices)
        for device in mappings_at(spec, "devices"):
            device_key = (*key, name_at(device, "name"))
            if not all(device_key):
                continue
            # v1beta1 has the attributes one level deeper.
            content = mapping_at(device, "basic") or device
            attributes = mapping_at(content, "attributes")
            if uuid := _attribute(attributes, "uuid", key[0]):
                pool_devices.uuids[device_key] = uuid
            if parent := _attribute(attributes, "parentUUID", key[0]):
                pool_devices.parents[device_key] = parent
            if capacities := parse_capacities(mapping_at(content, "capacity")):
                pool_devices.capacities[device_key] = capacities

    def devices(self) -> ResourceSlices:
        found = _PoolDevices({}, {}, {})
        for _, devices in self._pools.values():
            found.uuids.update(devices.uuids)
            found.parents.update(devices.parents)
            found.capacities.update(devices.capacities)
        return ResourceSlices(*found)


class _PoolDevices(NamedTuple):
    """The fields of ResourceSlices for one pool."""

    uuids: dict[DraDevice, str]
    parents: dict[DraDevice, str]
    capacities: dict[DraDevice, Capacities]


def _attribute(attributes: Mapping[str, Any], key: str, driver: str) -> str:
    """A text attribute. A key without a domain is in the domain of the driver."""
    return name_at(mapping_at(attributes, key), "string") or name_at(
        mapping_at(attributes, f"{driver}/{key}"), "string"
    )


def _served_versions(body: bytes) -> set[str]:
    """The versions in an APIGroup."""
    import json

    try:
        group = json.loads(body)
    except (ValueError, RecursionError):
        raise NotJson("the list of API versions") from None
    if not isinstance(group, dict) or not isinstance(group.get("versions"), list):
        raise GpuledgerError(f"{DRA_GROUP} lists no versions; check that the URL is an API server")
    return {name_at(version, "version") for version in mappings_at(group, "versions")}
