"""Maps device names of device plugins, CDI and DRA drivers to the Devices of a Snapshot. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuledger.model.devices import AMD, Device, Gpu, Instance
from gpuledger.workloads.device_index import UUID_FORM, DeviceTables
from gpuledger.workloads.pods.pod import ResourceSlices

FOUND_BY_SOCKET = "pod_resources"
FOUND_BY_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device allocated by DRA (Dynamic Resource Allocation): `driver`, `pool` and `device` identify it.

    `share` is the id of a share of its capacity, empty if the claim has the whole device.
    """

    driver: str
    pool: str
    device: str
    claim: str = ""
    share: str = ""


@dataclass(frozen=True, slots=True)
class KubeletAllocation:
    """One device that the kubelet allocated to one container. Unknown text is empty.

    Either `resource` and `device_id` are set, with the names of the device plugin, or `claimed_device`. The
    socket gives the namespace and name of the pod, the checkpoint gives its UID.
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    resource: str = ""
    device_id: str = ""
    claimed_device: ClaimedDevice | None = None
    pod_uid: str = ""

    @property
    def claim_name(self) -> tuple[str, str]:
        """Namespace and name of the ResourceClaim, which is in the namespace of its pod; else empty."""
        return (self.namespace, self.claimed_device.claim) if self.claimed_device else ("", "")


@dataclass(frozen=True, slots=True, eq=False)
class PodResources:
    """All device allocations of a node at one moment; `len` is their number.

    `found_by` is `pod_resources` (the socket) or `checkpoint`; `socket_error` says why the checkpoint was
    read. No two reads are equal, so that matching checks the pods' cgroups again after each. `replicas` is
    the number of ids that a shared device has, by resource and device id without its replica. `ignored` names
    the entries that make no sense. `lacks_claims` if GPUs may be allocated by DRA that it does not have.
    """

    allocations: tuple[KubeletAllocation, ...] = ()
    found_by: str = FOUND_BY_SOCKET
    socket_error: str = ""
    replicas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    lacks_claims: bool = False

    def __len__(self) -> int:
        return len(self.allocations)

    def __iter__(self) -> Iterator[KubeletAllocation]:
        return iter(self.allocations)


NO_POD_RESOURCES = PodResources()


_OLD_MIG: Final = re.compile(r"mig-gpu-[^/]+/\d+/\d+")
_NODE: Final = re.compile(r"(?:/dev/)?nvidia(\d+)(?:/gi(\d+))?")
_PCI: Final = re.compile(r"(?:([0-9a-f]{4}|[0-9a-f]{8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_CDI: Final = re.compile(r"([a-z0-9.-]+/[a-z0-9._-]+)=(.+)")
_CLAIM: Final = re.compile(r".*?\b(gpu-\d+(?:-mig-.+)?)")
_DRA_GPU: Final = re.compile(r"gpu-(\d+)")
# Minor of the parent, profile, its id and its place: a MIG instance that the DRA driver creates on demand.
# Names of DRA devices have no dots and plus signs: 1g10gb-me is 1g.10gb+me.
_DRA_MIG: Final = re.compile(r"gpu-(\d+)-mig-(\d+(?:c\.?\d+)?g\.?\d+gb(?:[.+-][a-z.+-]+)?)-\d+-\d+", re.ASCII)
# Partitions of AMD's plugin, and shares of a card of Intel's.
_XCP: Final = re.compile(r"amdgpu_xcp[._]\d+")
_INTEL_SHARE: Final = re.compile(r"(card\d+)-\d+")
# Devices of the DRA drivers of AMD (card and render node) and Intel (PCI address and id).
_AMD_DRA: Final = re.compile(r"gpu-(\d+)-(\d+)(?:-\d+)?")
_INTEL_DRA: Final = re.compile(r"([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])-0x[0-9a-f]+")
_AMD_DRIVER, _INTEL_DRIVER = "gpu.amd.com", "gpu.intel.com"
# Replicas of time-slicing: NVIDIA's plugin appends ::N, Google's /vgpuN.
_REPLICA: Final = re.compile(r"(?:::\d*.*|/vgpu\d+)$")
# A full UUID, and what a plugin appended to it: HAMi and Volcano -N, others _-_-N, -core-N, ...
_TAILED: Final = re.compile(
    rf"((?:gpu|mig)-{UUID_FORM}|mig-gpu-{UUID_FORM}/\d{{1,3}}/\d{{1,3}})([^0-9a-f].*)", re.ASCII | re.DOTALL
)


def without_replica(device_id: str) -> str:
    """The device id in lower case, without the number of a replica or what else follows a full UUID."""
    name = _REPLICA.sub("", device_id.strip().lower())
    if share := _INTEL_SHARE.fullmatch(name):
        return share[1]
    tailed = _TAILED.fullmatch(name)
    return tailed[1] if tailed else name


def is_equal_replica(device_id: str) -> bool:
    """Whether the id is a replica by time-slicing or MPS: all replicas of a device are equal parts of it.

    The number behind a UUID of HAMi is not: an annotation of the pod states the size of that share.
    """
    name = device_id.strip().lower()
    return _REPLICA.search(name) is not None or _INTEL_SHARE.fullmatch(name) is not None


def is_numbered_share(device_id: str) -> bool:
    """Whether the id is a GPU's UUID with the number of a share, as those of HAMi and Volcano.

    Only with such an id does an annotation count: in other clusters users can write the same annotation. The
    ids of MIG instances are the devices themselves.
    """
    name = device_id.strip().lower()
    is_share = name != without_replica(name) and not is_equal_replica(name)
    return is_share and not name.startswith("mig-")


@dataclass(frozen=True, slots=True)
class NoMatch:
    """No Device has the name; `form` is how the name was parsed."""

    form: str
    why: str


class DeviceNames(DeviceTables):
    """Finds the Devices of one Snapshot by the names of device plugins, CDI and DRA drivers."""

    def __init__(self, devices: Iterable[Device]) -> None:
        super().__init__(devices)
        self._by_pci: dict[str, Gpu] = {}
        for gpu in self._indexes.values():
            if pci := _PCI.fullmatch(gpu.pci_bus_id.lower()):
                self._by_pci[_pci_address(pci)] = gpu

    def find(self, device_id: str) -> Device | NoMatch:
        """The Device with this id of a device plugin or of CDI. A replica gives its device."""
        name = without_replica(device_id)
        if match := _CDI.fullmatch(name):
            return self._find_cdi(match[1], match[2])
        return self._find_name(name)

    def has_instances(self, gpu: Gpu) -> bool:
        """Whether the Gpu is divided into MIG instances."""
        return bool(self._instances.get(gpu))

    def by_uuid(self, uuid: str) -> Device | NoMatch:
        """The Device with this UUID."""
        return self._uuids.get(uuid.lower()) or NoMatch("uuid", f"no device here has the UUID {uuid}")

    def by_dra_name_of(self, driver: str, name: str) -> Device | NoMatch:
        """The Device with this name of AMD's or Intel's DRA driver."""
        lower = name.lower()
        if driver == _AMD_DRIVER:
            if match := _AMD_DRA.fullmatch(lower):
                return self._find_node(f"renderD{match[2]}")
            return NoMatch("dra", "expected gpu-CARD-RENDER")
        if match := _INTEL_DRA.fullmatch(lower):
            return self._find_name(f"{match[1]}:{match[2]}:{match[3]}.{match[4]}")
        return NoMatch("dra", "expected a PCI address and id such as 0000-03-00-0-0x56a0")

    def by_dra_name(self, name: str, parent: str = "") -> Device | NoMatch:
        """The Device with this name of NVIDIA's DRA driver; `parent` is the UUID of its Gpu if known."""
        lower = name.lower()
        if match := _DRA_GPU.fullmatch(lower):
            return self._find_minor(int(match[1]), "gpu-N")
        match = _DRA_MIG.fullmatch(lower)
        if match is None:
            return NoMatch("dra", "expected gpu-N or gpu-N-mig-PROFILE-ID-PLACEMENT")
        gpu = self.by_uuid(parent) if parent else self._find_minor(int(match[1]), "gpu-N-mig")
        if isinstance(gpu, NoMatch):
            return gpu
        instances = self._instances.get(gpu.gpu, ())
        profile = _dra_profile(match[2])
        found = [instance for instance in instances if _dra_profile(instance.profile) == profile]
        return _only_instance(found, "gpu-N-mig", f"instance {match[2]} on GPU {gpu.gpu.index}")

    def _find_cdi(self, kind: str, name: str) -> Device | NoMatch:
        if kind.startswith("k8s.gpu.nvidia.com/"):
            match = _CLAIM.fullmatch(name)
            return (
                self.by_dra_name(match[1]) if match else NoMatch("cdi", "expected a claim that ends in gpu-N")
            )
        if kind == "nvidia.com/mig" and ":" in name:
            gpu, _, place = name.partition(":")
            if not gpu.isdecimal() or not place.isdecimal():
                return NoMatch("cdi", "expected nvidia.com/mig=GPU:INSTANCE")
            return self._find_mig_index(int(gpu), int(place))
        if name == "all":
            return NoMatch("cdi", "`all` names no single device")
        return self._find_name(without_replica(name))

    def _find_name(self, name: str) -> Device | NoMatch:
        if _OLD_MIG.fullmatch(name):
            no_match = NoMatch("mig-gpu", "no instance of that Gpu with these ids here")
            return self._uuids.get(name) or no_match
        if name.startswith(("gpu-", "mig-")):
            return self.by_uuid(name)
        if match := _NODE.fullmatch(name):
            return self._find_device_node(int(match[1]), match[2])
        if name.isdecimal():
            return self._indexes.get(int(name)) or NoMatch("index", f"no GPU here has the index {name}")
        if match := _PCI.fullmatch(name):
            return self._find_pci(match) or NoMatch("pci", f"no GPU here is at {name}")
        if _XCP.fullmatch(name) or name.startswith(("card", "renderd")):
            return self._find_node(name.replace("renderd", "renderD").replace("xcp.", "xcp_"))
        return NoMatch(
            "unknown", "expected a UUID, nvidiaN, nvidiaN/giM, an index, a PCI bus id or a CDI name"
        )

    def _find_pci(self, match: re.Match[str]) -> Device | None:
        """The Gpu at an address. AMD's plugin names the first partition of a GPU by it."""
        gpu = self._by_pci.get(_pci_address(match))
        if gpu is None or gpu.vendor != AMD:
            return gpu
        return next(iter(self._instances.get(gpu, ())), gpu)

    def _find_node(self, name: str) -> Device | NoMatch:
        names = {node.replace("xcp.", "xcp_"): device for node, device in self._nodes.items()}
        return names.get(name) or NoMatch("node", f"no GPU here is {name}")

    def _find_device_node(self, minor: int, gi: str | None) -> Device | NoMatch:
        gpu = self._find_minor(minor, "nvidiaN")
        if gi is None or isinstance(gpu, NoMatch):
            return gpu
        found = [instance for instance in self._instances.get(gpu, ()) if instance.gi == int(gi)]
        return _only_instance(found, "nvidiaN/giM", f"instance of nvidia{minor} with GPU instance {gi}")

    def _find_minor(self, minor: int, form: str) -> Gpu | NoMatch:
        return self._minors.get(minor) or NoMatch(form, f"no GPU here has the minor number {minor}")

    def _find_mig_index(self, index: int, place: int) -> Device | NoMatch:
        gpu = self._indexes.get(index)
        instances = self._instances.get(gpu, ()) if gpu else ()
        found = [instance for instance in instances if instance.index == place]
        return _only_instance(found, "mig=N:M", f"MIG device {place} of GPU {index}")


def find_claimed_device(
    names: DeviceNames, claimed: ClaimedDevice, slices: ResourceSlices
) -> tuple[Device | NoMatch, str]:
    """The claimed Device, and how it was found: `dra` by UUID, `dra_name` by its name alone.

    A known UUID is authoritative: if no Device has it, the name is not used.
    """
    if claimed.driver in (_AMD_DRIVER, _INTEL_DRIVER):
        return names.by_dra_name_of(claimed.driver, claimed.device), "dra"
    key = (claimed.driver, claimed.pool, claimed.device)
    if uuid := slices.uuids.get(key):
        return names.by_uuid(uuid), "dra"
    if parent := slices.parents.get(key):
        return names.by_dra_name(claimed.device, parent), "dra"
    return names.by_dra_name(claimed.device), "dra_name"


def _dra_profile(profile: str) -> str:
    """A MIG profile as in the name of a DRA device."""
    return re.sub(r"[^a-z0-9]", "-", profile.lower().replace(".", ""))


def _only_instance(found: list[Instance], form: str, what: str) -> Device | NoMatch:
    if len(found) == 1:
        return found[0]
    return NoMatch(form, f"several: {len(found)} are a {what}" if found else f"no {what} here")


def _pci_address(match: re.Match[str]) -> str:
    return f"{int(match[1] or '0', 16):08x}:{match[2]}"
