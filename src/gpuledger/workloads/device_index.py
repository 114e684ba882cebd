"""Maps the device names of batch systems and of the kernel to the Devices of a Snapshot. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Final, Generic, NamedTuple, TypeVar

from gpuledger.model.devices import NVIDIA, Device, Gpu, Instance

UUID_FORM: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# MIG-GPU-UUID/GI/CI is the form of drivers before 470, and what Slurm writes for MIG.
_ANY_UUID: Final = re.compile(
    rf"(?:GPU-{UUID_FORM}|GPU-[0-9a-f]{{16}}|MIG-{UUID_FORM}|MIG-GPU-{UUID_FORM}/\d{{1,3}}/\d{{1,3}})",
    re.ASCII | re.IGNORECASE,
)


class DeviceRef(NamedTuple):
    """A device name and its kind.

    `by` is `uuid`, which can be shortened while only one device begins with it; `minor` (3 is /dev/nvidia3);
    `node` (`renderD128`); `mig` (`minor/gi` or `minor/gi/ci`); `index` (the order of the driver; `index:amd`
    counts the GPUs of one maker); `listed` (`n/minor/minor/...`: the n-th of these, by the order of the
    driver); or `number` (a minor or an index, unknown which).
    """

    by: str
    name: str


def parse_uuids(text: str) -> tuple[DeviceRef, ...]:
    """The UUIDs of a comma-separated text; empty if any element is not a UUID."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(_ANY_UUID.fullmatch(word) for word in words):
        return ()
    return tuple(DeviceRef("uuid", word) for word in words)


class DeviceTables:
    """The Devices of one Snapshot by UUID in lower case, by minor number, by index, and by the kernel's name.

    Minor numbers are those of NVIDIA's device files. The name of a Gpu with partitions is that of the first.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self._uuids: dict[str, Device] = {}
        self._minors: dict[int, Gpu] = {}
        self._indexes: dict[int, Gpu] = {}
        self._instances: dict[Gpu, list[Instance]] = {}
        self._nodes: dict[str, Device] = {}
        for device in devices:
            self._uuids[device.uuid.lower()] = device
            for node in device.nodes:
                self._nodes.setdefault(node, device)
            if isinstance(device, Instance):
                # The first partition has the files of its GPU.
                first = not self._instances.get(device.parent)
                self._nodes.update(dict.fromkeys(device.parent.nodes if first else (), device))
                self._instances.setdefault(device.parent, []).append(device)
                old_uuid = f"mig-{device.parent.uuid}/{device.gi}/{device.ci}".lower()
                self._uuids.setdefault(old_uuid, device)
            else:
                self._indexes[device.index] = device
                if device.minor is not None and device.vendor == NVIDIA:
                    self._minors[device.minor] = device


class DeviceIndex(DeviceTables):
    """Finds the Devices of one Snapshot by DeviceRef."""

    def __init__(self, devices: Iterable[Device]) -> None:
        super().__init__(devices)
        # If minors and indexes are the same, a plain number is unambiguous.
        self._minors_equal_indexes = bool(self._indexes) and self._minors == self._indexes

    def find(self, ref: DeviceRef) -> tuple[Device, ...]:
        """The Devices with this name; empty if the name is unknown.

        A Gpu with MIG Instances gives its Instances, because it has no processes itself.
        """
        if ref.by == "uuid":
            found = self._find_uuid(ref.name.lower())
            return self._instances_or_gpu(found) if isinstance(found, Gpu) else (found,) if found else ()
        if ref.by == "node":
            node = self._nodes.get(ref.name)
            return () if node is None else (node,)
        numbers = ref.name.split("/")
        if not all(number.isascii() and number.isdigit() for number in numbers):
            return ()
        first, *rest = map(int, numbers)
        if ref.by == "mig":
            return self._instances_within(self._minors.get(first), rest)
        if ref.by == "minor":
            return self._instances_or_gpu(self._minors.get(first))
        if ref.by.startswith("index:"):
            return self._find_of_maker(first, ref.by.partition(":")[2])
        if self._instances or (ref.by == "number" and not self._minors_equal_indexes):
            # Slurm numbers Instances and Gpus in one sequence. A wrong guess would bill the wrong owner.
            return ()
        if ref.by == "listed":
            return self._find_listed(first, sorted(rest))
        return self._instances_or_gpu(self._indexes.get(first))

    def _find_listed(self, place: int, minors: Sequence[int]) -> tuple[Device, ...]:
        """The GPU with this place among those with these minors; none if a missing one could change it."""
        known = [gpu for minor in minors if (gpu := self._minors.get(minor)) is not None]
        in_order = sorted(known, key=lambda gpu: gpu.index)
        if in_order == known:
            found = self._minors.get(minors[place]) if place < len(minors) else None
            return () if found is None else (found,)
        return tuple(in_order[place : place + 1]) if len(known) == len(minors) else ()

    def _find_of_maker(self, number: int, vendor: str) -> tuple[Device, ...]:
        """The GPU with this place among those of one maker; none if one is cut: its partitions count too."""
        gpus = [gpu for _, gpu in sorted(self._indexes.items()) if gpu.vendor == vendor]
        is_cut = any(self._instances.get(gpu) for gpu in gpus)
        return () if is_cut or number >= len(gpus) else (gpus[number],)

    def _find_uuid(self, text: str) -> Device | None:
        if found := self._uuids.get(text):
            return found
        beginning = {device.uuid: device for name, device in self._uuids.items() if name.startswith(text)}
        return beginning.popitem()[1] if len(beginning) == 1 else None

    def _instances_or_gpu(self, gpu: Gpu | None) -> tuple[Device, ...]:
        if gpu is None:
            return ()
        return tuple(self._instances.get(gpu, ())) or (gpu,)

    def _instances_within(self, gpu: Gpu | None, ids: Sequence[int]) -> tuple[Device, ...]:
        """Instances of `gpu` with the GPU instance id, and the compute instance id if given, in `ids`."""
        if gpu is None or not ids:
            return ()
        prefix = tuple(ids)
        return tuple(
            item for item in self._instances.get(gpu, ()) if (item.gi, item.ci)[: len(prefix)] == prefix
        )


T = TypeVar("T")


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether both sequences hold the same objects in the same order.

    Equality is not enough: a Gpu remains equal to itself when its index changes.
    """
    return len(one) == len(other) and all(map(is_, one, other))


class IdentityCache(Generic[T]):
    """Caches the last result of a pure function while its inputs are the same objects."""

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function
        self._inputs: tuple[object, ...] | None = None
        self._result: T

    def __call__(self, *inputs: object) -> T:
        """The result for these inputs."""
        if self._inputs is None or not same_objects(inputs, self._inputs):
            self._result = self._function(*inputs)
            self._inputs = inputs
        return self._result
