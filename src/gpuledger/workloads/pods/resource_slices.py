"""UUIDs of DRA devices, from the ResourceSlices of this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuledger.host.owner_index import PolledIndex
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused, node_selector_query
from gpuledger.kubernetes.fields import mapping_at, mappings_at, name_at
from gpuledger.kubernetes.json_stream import ListReader, NotJson
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_GROUP: Final = "/apis/resource.k8s.io"
# Newest first. Older versions have other field names.
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_PERIOD: Final = 60.0
_PAGE_SIZE: Final = "500"

# Driver, pool and device, which together identify a device of a node.
DraDevice = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ResourceSlices:
    """UUIDs by (driver, pool, device); `len` is the number of devices with a UUID or with a parent's UUID.

    `uuids` has whole GPUs and existing MIG instances. `parents` has the UUID of the Gpu of a MIG instance; an
    instance that the driver has not created yet has only this.
    """

    uuids: Mapping[DraDevice, str] = field(default_factory=dict, hash=False)
    parents: Mapping[DraDevice, str] = field(default_factory=dict, hash=False)

    def __len__(self) -> int:
        return len(self.uuids.keys() | self.parents.keys())


def open_slice_index(client: ApiClient, node: str, *, clock: Clock) -> PolledIndex[ResourceSlices]:
    """The index of the node's ResourceSlices, not started."""
    reader = SliceReader(client, node)
    return PolledIndex("resource_slices", reader.read, ResourceSlices(), period=_PERIOD, clock=clock)


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
        self._version = self._discover()
        return (self._list(self._version) if self._version else None) or ResourceSlices()

    def _discover(self) -> str:
        """The API version to list; empty if the server has none of them."""
        try:
            with self._client.get(_GROUP, {}) as chunks:
                served = _served_versions(b"".join(chunks))
        except ApiServerRefused as error:
            if error.status != 404:
                raise
            return ""
        return next((version for version in _VERSIONS if version in served), "")

    def _list(self, version: str) -> ResourceSlices | None:
        """The UUIDs by this API version; None if it is not served."""
        try:
            return self._pages(version)
        except ApiServerRefused as error:
            if error.status != 404:
                raise
            return None

    def _pages(self, version: str) -> ResourceSlices:
        query = {**node_selector_query(self._node), "limit": _PAGE_SIZE, "resourceVersion": "0"}
        found = _PoolGenerations()
        while True:
            with self._client.get(f"{_GROUP}/{version}/resourceslices", query) as chunks:
                reader = ListReader(chunks)
                for item in reader.items():
                    found.add(item)
            if not reader.next_page:
                return found.devices()
            query = {**node_selector_query(self._node), "limit": _PAGE_SIZE, "continue": reader.next_page}


class _PoolGenerations:
    """Devices of the newest generation of each pool. Older slices exist while a driver updates a pool."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._uuids: dict[tuple[str, str], dict[DraDevice, str]] = {}
        self._parents: dict[tuple[str, str], dict[DraDevice, str]] = {}

    def add(self, resource_slice: object) -> None:
        spec = mapping_at(resource_slice, "spec")
        pool = mapping_at(spec, "pool")
        key = (name_at(spec, "driver"), name_at(pool, "name"))
        generation = pool.get("generation")
        generation = generation if isinstance(generation, int) else 0
        newest = self._newest.get(key, generation)
        if generation < newest or not all(key):
            return
        if generation > newest or key not in self._newest:
            self._newest[key] = generation
            self._uuids[key], self._parents[key] = {}, {}
        for device in mappings_at(spec, "devices"):
            self._add_device(key, device)

    def _add_device(self, key: tuple[str, str], device: Mapping[str, Any]) -> None:
        device_key = (*key, name_at(device, "name"))
        if not all(device_key):
            return
        # v1beta1 has the attributes one level deeper.
        attributes = mapping_at(device, "attributes") or mapping_at(mapping_at(device, "basic"), "attributes")
        if uuid := _attribute(attributes, "uuid", key[0]):
            self._uuids[key][device_key] = uuid
        if parent := _attribute(attributes, "parentUUID", key[0]):
            self._parents[key][device_key] = parent

    def devices(self) -> ResourceSlices:
        return ResourceSlices(_joined(self._uuids.values()), _joined(self._parents.values()))


def _joined(parts: Iterable[dict[DraDevice, str]]) -> dict[DraDevice, str]:
    return {device: uuid for part in parts for device, uuid in part.items()}


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
        raise GpuledgerError(f"{_GROUP} lists no versions; check that the URL is an API server")
    return {name_at(version, "version") for version in mappings_at(group, "versions")}
