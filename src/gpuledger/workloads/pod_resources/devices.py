"""From the name that a device plugin or a DRA driver gave a device, to the Device of a Snapshot: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuledger.model.devices import Device, Gpu, Instance

SOCKET = "pod_resources"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A device handed out by Dynamic Resource Allocation: `driver`, `pool` and `device` name it on a node."""

    driver: str
    pool: str
    device: str
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """One device in the hands of one container. Unknown text is empty.

    Either `resource` and `device_id` are told, as the device plugin named them, or `claimed`. The socket
    tells namespace and name of the pod, the checkpoint its UID.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    resource: str = ""
    device_id: str = ""
    claimed: Claimed | None = None
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class PodResources:
    """All grants of a node at one moment; `len` is their number.

    `found_by` is `pod_resources` (the socket) or `checkpoint`; `detour` says why the checkpoint was read.
    """

    grants: tuple[Grant, ...] = ()
    found_by: str = SOCKET
    detour: str = ""

    def __len__(self) -> int:
        return len(self.grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter(self.grants)


NOTHING = PodResources()


# Driver, pool and device: together they name one device of a node.
Uuids = Mapping[tuple[str, str, str], str]

_OLD_MIG: Final = re.compile(r"mig-(gpu-[^/]+)/(\d+)/(\d+)")
_NODE: Final = re.compile(r"(?:/dev/)?nvidia(\d+)(?:/gi(\d+))?")
_PCI: Final = re.compile(r"(?:([0-9a-f]{4}|[0-9a-f]{8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_CDI: Final = re.compile(r"([a-z0-9.-]+/[a-z0-9._-]+)=(.+)")
_CLAIM: Final = re.compile(r".*?\b(gpu-\d+(?:-mig-.+)?)")
_DRA_GPU: Final = re.compile(r"gpu-(\d+)")
# Parent's minor, profile, and the ids of its placement: a MIG instance that the driver makes when asked to.
_DRA_MIG: Final = re.compile(r"gpu-(\d+)-mig-(\d+(?:c\.\d+)?g\.\d+gb(?:[.+-][a-z.+]+)?)-\d+-\d+")
# Time-slicing of NVIDIA's plugin, and of Google's.
_REPLICA: Final = re.compile(r"(?:::\d*.*|/vgpu\d+)$")


@dataclass(frozen=True, slots=True)
class Missing:
    """No Device bears the name: the `form` that it was read as, and why there is none."""

    form: str
    why: str


class DeviceNames:
    """The Devices of one Snapshot, by everything that somebody calls them."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._by_uuid: dict[str, Device] = {}
        self._by_index: dict[int, Gpu] = {}
        self._by_minor: dict[int, Gpu] = {}
        self._by_pci: dict[str, Gpu] = {}
        self._instances: dict[str, list[Instance]] = {}
        for device in devices:
            self._by_uuid[device.uuid.lower()] = device
            if isinstance(device, Instance):
                self._instances.setdefault(device.parent.uuid.lower(), []).append(device)
                continue
            self._by_index[device.index] = device
            if device.minor is not None:
                self._by_minor[device.minor] = device
            if pci := _PCI.fullmatch(device.pci_bus_id.lower()):
                self._by_pci[_pci(pci)] = device

    def find(self, device_id: str) -> Device | Missing:
        """The Device that a device plugin, or CDI, calls `device_id`; replicas of it are it."""
        name = _REPLICA.sub("", device_id.strip().lower())
        if match := _CDI.fullmatch(name):
            return self._cdi(match[1], match[2])
        return self._plain(name)

    def uuid(self, uuid: str) -> Device | Missing:
        """The Device with this UUID."""
        found = self._by_uuid.get(uuid.lower())
        return found or Missing("uuid", f"no device here has the UUID {uuid}")

    def dra(self, name: str, parent: str = "") -> Device | Missing:
        """The Device that NVIDIA's DRA driver calls `name`; `parent` is the UUID of its Gpu where known."""
        lower = name.lower()
        if match := _DRA_GPU.fullmatch(lower):
            return self._minor(int(match[1]), "gpu-N")
        match = _DRA_MIG.fullmatch(lower)
        if match is None:
            return Missing("dra", "gpu-N or gpu-N-mig-PROFILE-ID-PLACEMENT is expected")
        gpu = self.uuid(parent) if parent else self._minor(int(match[1]), "gpu-N-mig")
        if isinstance(gpu, Missing):
            return gpu
        found = [one for one in self._of(gpu.gpu) if one.profile.lower() == match[2]]
        return _only(found, "gpu-N-mig", f"instance {match[2]} on GPU {gpu.gpu.index}")

    def _cdi(self, kind: str, name: str) -> Device | Missing:
        if kind.startswith("k8s.gpu.nvidia.com/"):
            match = _CLAIM.fullmatch(name)
            return self.dra(match[1]) if match else Missing("cdi", "a claim's name ends in gpu-N")
        if kind == "nvidia.com/mig" and ":" in name:
            gpu, _, place = name.partition(":")
            if not gpu.isdecimal() or not place.isdecimal():
                return Missing("cdi", "nvidia.com/mig=GPU:INSTANCE is expected")
            return self._mig_order(int(gpu), int(place))
        if name == "all":
            return Missing("cdi", "`all` names no single device")
        return self._plain(name)

    def _plain(self, name: str) -> Device | Missing:
        if match := _OLD_MIG.fullmatch(name):
            found = [one for one in self._instances.get(match[1], ()) if (one.gi, one.ci) == _pair(match)]
            return _only(found, "mig-gpu", "instance of that Gpu with these ids")
        if name.startswith(("gpu-", "mig-")):
            return self.uuid(name)
        if match := _NODE.fullmatch(name):
            return self._node(int(match[1]), match[2])
        if name.isdecimal():
            return self._by_index.get(int(name)) or Missing("index", f"no GPU here has the index {name}")
        if match := _PCI.fullmatch(name):
            return self._by_pci.get(_pci(match)) or Missing("pci", f"no GPU here is at {name}")
        return Missing(
            "unknown", "a UUID, nvidiaN, nvidiaN/giM, an index, a PCI bus id or a CDI name is expected"
        )

    def _node(self, minor: int, gi: str | None) -> Device | Missing:
        gpu = self._minor(minor, "nvidiaN")
        if gi is None or isinstance(gpu, Missing):
            return gpu
        found = [one for one in self._of(gpu) if one.gi == int(gi)]
        return _only(found, "nvidiaN/giM", f"instance of nvidia{minor} with GPU instance {gi}")

    def _minor(self, minor: int, form: str) -> Gpu | Missing:
        return self._by_minor.get(minor) or Missing(form, f"no GPU here has the minor number {minor}")

    def _mig_order(self, index: int, place: int) -> Device | Missing:
        gpu = self._by_index.get(index)
        found = [one for one in self._of(gpu) if one.index == place] if gpu else []
        return _only(found, "mig=N:M", f"MIG device {place} of GPU {index}")

    def _of(self, gpu: Gpu) -> list[Instance]:
        return self._instances.get(gpu.uuid.lower(), [])


def find_claimed(
    names: DeviceNames, claimed: Claimed, uuids: Uuids, parents: Uuids
) -> tuple[Device | Missing, str]:
    """The Device that was claimed, and how it was found: `dra` by UUID, `dra_name` by its name alone.

    A UUID that was told stands: where no Device has it, none is guessed by name.
    """
    key = (claimed.driver, claimed.pool, claimed.device)
    if uuid := uuids.get(key):
        return names.uuid(uuid), "dra"
    if parent := parents.get(key):
        return names.dra(claimed.device, parent), "dra"
    return names.dra(claimed.device), "dra_name"


def _only(found: list[Instance], form: str, what: str) -> Device | Missing:
    if len(found) == 1:
        return found[0]
    return Missing(form, f"several: {len(found)} are a {what}" if found else f"no {what} here")


def _pair(match: re.Match[str]) -> tuple[int, int]:
    return int(match[2]), int(match[3])


def _pci(match: re.Match[str]) -> str:
    return f"{int(match[1] or '0', 16):08x}:{match[2]}"
