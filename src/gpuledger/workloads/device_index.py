"""From the names that batch systems and the kernel have for devices to the Devices of a Snapshot: pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Final, Generic, NamedTuple, TypeVar

from gpuledger.model.devices import Device, Gpu, Instance

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# The second is the form of drivers before 470, and what Slurm makes for MIG.
_ANY_UUID: Final = re.compile(
    rf"(?:GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/\d{{1,3}}/\d{{1,3}})", re.ASCII | re.IGNORECASE
)


class DeviceRef(NamedTuple):
    """A name of a device, and what sort of name it is.

    `by` is `uuid`; `minor` (3 is /dev/nvidia3); `mig` (`minor/gi`, or `minor/gi/ci`); `index` (the driver's
    own order); or `number`: a minor or an index, it is not known which.
    """

    by: str
    name: str


def uuids_of(text: str) -> tuple[DeviceRef, ...]:
    """The comma-separated UUIDs of a text; none at all where anything in it is something else."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(_ANY_UUID.fullmatch(word) for word in words):
        return ()
    return tuple(DeviceRef("uuid", word) for word in words)


class DeviceIndex:
    """The Devices of one Snapshot, to be found by any of their names."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._uuids: dict[str, Device] = {}
        self._minors: dict[int, Gpu] = {}
        self._indexes: dict[int, Gpu] = {}
        self._instances: dict[Gpu, list[Instance]] = {}
        for device in devices:
            self._uuids[device.uuid.lower()] = device
            if isinstance(device, Instance):
                self._instances.setdefault(device.parent, []).append(device)
                old = f"mig-{device.parent.uuid}/{device.gi}/{device.ci}".lower()
                self._uuids.setdefault(old, device)
            else:
                self._indexes[device.index] = device
                if device.minor is not None:
                    self._minors[device.minor] = device
        # Where both orders are the same, a number says enough.
        self._one_order = bool(self._indexes) and self._minors == self._indexes

    def find(self, ref: DeviceRef) -> tuple[Device, ...]:
        """The Devices of this name: none if it is not known here, several for a Gpu that is cut up.

        Of a Gpu with Instances its Instances are answered, for it has no processes of its own.
        """
        if ref.by == "uuid":
            found = self._uuids.get(ref.name.lower())
            return self._cut(found) if isinstance(found, Gpu) else (found,) if found else ()
        numbers = ref.name.split("/")
        if not all(number.isascii() and number.isdigit() for number in numbers):
            return ()
        first, *rest = map(int, numbers)
        if ref.by == "mig":
            return self._within(self._minors.get(first), rest)
        if ref.by == "minor":
            return self._cut(self._minors.get(first))
        if self._instances or (ref.by == "number" and not self._one_order):
            # Slurm counts Instances as it counts Gpus, and a guess would bill somebody else.
            return ()
        return self._cut(self._indexes.get(first))

    def _cut(self, gpu: Gpu | None) -> tuple[Device, ...]:
        if gpu is None:
            return ()
        return tuple(self._instances.get(gpu, ())) or (gpu,)

    def _within(self, gpu: Gpu | None, place: Sequence[int]) -> tuple[Device, ...]:
        if gpu is None or not place:
            return ()
        wanted = tuple(place)
        return tuple(
            item for item in self._instances.get(gpu, ()) if (item.gi, item.ci)[: len(wanted)] == wanted
        )


T = TypeVar("T")


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """True for the very same objects in the same order. Equal ones will not do: a Gpu is equal to its later
    self under another index.
    """
    return len(one) == len(other) and all(map(is_, one, other))


class Kept(Generic[T]):
    """The answer of a pure function, the same object for as long as it is asked with the same objects."""

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._inputs: tuple[object, ...] | None = None
        self._answer: T

    def __call__(self, *inputs: object) -> T:
        """The answer to these inputs."""
        if self._inputs is None or not same_objects(inputs, self._inputs):
            self._answer = self._make(*inputs)
            self._inputs = inputs
        return self._answer
