"""The UUIDs behind the device names of DRA, from the ResourceSlices of this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuledger.host.background import PolledIndex
from gpuledger.kubernetes.client import ApiClient, Refused, on_node
from gpuledger.kubernetes.fields import elements, mapping, name
from gpuledger.kubernetes.stream import ListReader, NotJson
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

_GROUP: Final = "/apis/resource.k8s.io"
# The newest first; what came before named its fields otherwise.
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_PERIOD: Final = 60.0
_PAGE: Final = "500"

# Driver, pool and device: together they name one device of a node.
DraDevice = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ResourceSlices:
    """UUIDs by (driver, pool, device); `len` is the number of devices with a UUID of their own or a parent's.

    `uuids` are those of whole GPUs and of MIG instances that are there already, `parents` the UUID of the Gpu
    of a MIG instance: of one that the driver has yet to make, that is all there is.
    """

    uuids: Mapping[DraDevice, str] = field(default_factory=dict, hash=False)
    parents: Mapping[DraDevice, str] = field(default_factory=dict, hash=False)

    def __len__(self) -> int:
        return len(self.uuids.keys() | self.parents.keys())


def resource_slices(
    client: ApiClient, node: str, *, clock: Clock, period: float = _PERIOD
) -> PolledIndex[ResourceSlices]:
    """The map of what a SliceReader says, not begun."""
    reader = SliceReader(client, node)
    return PolledIndex("resource_slices", reader.read, ResourceSlices(), period=period, clock=clock)


class SliceReader:
    """Lists the ResourceSlices of a node in the newest version of the API that the server has."""

    def __init__(self, client: ApiClient, node: str) -> None:
        self._client = client
        self._node = node
        self._version = ""

    def read(self) -> ResourceSlices:
        """The devices; none where the server is too old for DRA. Raises GpuledgerError."""
        if self._version and (slices := self._list(self._version)) is not None:
            return slices
        # The server is asked for the first time, or was updated.
        self._version = self._discover()
        return (self._list(self._version) if self._version else None) or ResourceSlices()

    def _discover(self) -> str:
        """The version to ask for; empty where the server knows none of them."""
        try:
            with self._client.get(_GROUP, {}) as pieces:
                served = _served(b"".join(pieces))
        except Refused as error:
            if error.status != 404:
                raise
            return ""
        return next((version for version in _VERSIONS if version in served), "")

    def _list(self, version: str) -> ResourceSlices | None:
        """None where this version is not served."""
        try:
            return self._pages(version)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    def _pages(self, version: str) -> ResourceSlices:
        query = {**on_node(self._node), "limit": _PAGE, "resourceVersion": "0"}
        found = _Generations()
        while True:
            with self._client.get(f"{_GROUP}/{version}/resourceslices", query) as pieces:
                reader = ListReader(pieces)
                for told in reader.items():
                    found.add(told)
            if not reader.next_page:
                return found.devices()
            query = {**on_node(self._node), "limit": _PAGE, "continue": reader.next_page}


class _Generations:
    """Devices of the newest generation of each pool: older slices lie about while a driver changes it."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}
        self._uuids: dict[tuple[str, str], dict[DraDevice, str]] = {}
        self._parents: dict[tuple[str, str], dict[DraDevice, str]] = {}

    def add(self, told: object) -> None:
        spec = mapping(told, "spec")
        pool = mapping(spec, "pool")
        key = (name(spec, "driver"), name(pool, "name"))
        generation = pool.get("generation")
        generation = generation if isinstance(generation, int) else 0
        newest = self._newest.get(key, generation)
        if generation < newest or not all(key):
            return
        if generation > newest or key not in self._newest:
            self._newest[key] = generation
            self._uuids[key], self._parents[key] = {}, {}
        for device in elements(spec, "devices"):
            self._add_device(key, device)

    def _add_device(self, key: tuple[str, str], told: Mapping[str, Any]) -> None:
        place = (*key, name(told, "name"))
        if not all(place):
            return
        # v1beta1 keeps them one level deeper.
        attributes = mapping(told, "attributes") or mapping(mapping(told, "basic"), "attributes")
        if uuid := _attribute(attributes, "uuid", key[0]):
            self._uuids[key][place] = uuid
        if parent := _attribute(attributes, "parentUUID", key[0]):
            self._parents[key][place] = parent

    def devices(self) -> ResourceSlices:
        return ResourceSlices(_joined(self._uuids.values()), _joined(self._parents.values()))


def _joined(parts: Iterable[dict[DraDevice, str]]) -> dict[DraDevice, str]:
    return {device: uuid for part in parts for device, uuid in part.items()}


def _attribute(attributes: Mapping[str, Any], key: str, driver: str) -> str:
    """A text attribute; a key without a domain is in that of the driver."""
    return name(mapping(attributes, key), "string") or name(mapping(attributes, f"{driver}/{key}"), "string")


def _served(body: bytes) -> set[str]:
    """Versions of an APIGroup."""
    import json

    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        raise NotJson("the list of its versions") from None
    if not isinstance(told, dict) or not isinstance(told.get("versions"), list):
        raise GpuledgerError(f"{_GROUP} tells no versions; see that the URL is an API server's")
    return {name(one, "version") for one in elements(told, "versions")}
