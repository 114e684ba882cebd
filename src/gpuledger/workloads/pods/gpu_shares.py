"""Parts of GPUs that schedulers of fractions write into the annotations and labels of a pod. Pure.

HAMi and Volcano write `GPU-UUID,NVIDIA,MEMORY,CORES:` for each device of a container, in MiB and percent, and
`;` after each container; newer ones have the init containers first. HAMi adds the MIG instances as JSON. KAI
and Run:ai write the fraction (or the memory in MiB) that the pod has of each GPU, and as labels the groups of
these GPUs. A reservation pod has the same label, and the GPU from the kubelet. Formats: HAMi 2.9
pkg/device/devices.go, Volcano's vGPU device plugin pkg/util/util.go, KAI 0.13 pkg/common/resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

from gpuledger.model.text import clean_name

_HAMI: Final = "hami.io/vgpu-devices-allocated"
_HAMI_MIG: Final = "hami.io/vgpu-mig-allocations"
_VOLCANO: Final = "volcano.sh/vgpu-ids-new"
_GROUP: Final = "runai-gpu-group"
_FRACTION: Final = "gpu-fraction"
_MEMORY: Final = "gpu-memory"
_CONTAINER: Final = "gpu-fraction-container-name"

_MIB: Final = 1024 * 1024
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)
_DECIMAL: Final = re.compile(r"[01]?\.\d{1,18}|[01]\.?", re.ASCII)
_LONGEST_NAME: Final = 253
# No pod has more: text beyond it is not from a scheduler.
_MOST_DEVICES: Final = 1024


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A part of one device. `uuid` is empty if the scheduler has not written yet which MIG instance it is.

    `fraction` is its compute share; None if only `memory` (bytes) is stated, or nothing.
    """

    uuid: str = ""
    fraction: Fraction | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class PodShares:
    """What the annotations and labels of one pod state.

    `containers` has the devices of each container that has any, in the order of the pod's containers.
    `groups` are the groups of GPUs of which `container` has `part` each; `annotation` is where the part
    stands. A pod with `groups` and no `part` has no part of their GPUs: only its namespace shows whether it
    reserves one. `problem` says which annotation is ignored and why; all others still count.
    """

    containers: tuple[tuple[DeviceShare, ...], ...] = ()
    groups: frozenset[str] = frozenset()
    part: DeviceShare | None = None
    container: str = ""
    annotation: str = ""
    problem: str = ""


NO_SHARES = PodShares()


class _Senseless(ValueError):
    """An annotation that no scheduler writes."""


class PodContainers(NamedTuple):
    """The number of a pod's containers, the name of the first, and which init containers have ended."""

    number: int = 0
    first: str = ""
    init_ended: tuple[bool, ...] = ()

    def ended_of(self, written: int) -> frozenset[int]:
        """The places of ended init containers in a list of `written` containers."""
        if written != len(self.init_ended) + self.number:
            return frozenset()
        return frozenset(place for place, has_ended in enumerate(self.init_ended) if has_ended)


_NO_CONTAINERS: Final = PodContainers()


def parse_pod_shares(
    annotations: Mapping[str, Any], labels: Mapping[str, Any], pod: PodContainers = _NO_CONTAINERS
) -> PodShares:
    """The shares that a pod states. Its first container has the fraction unless an annotation names another.

    An init container that has ended has nothing.
    """
    problem = ""
    containers: tuple[tuple[DeviceShare, ...], ...] = ()
    part, annotation = None, ""
    for name in (_HAMI, _VOLCANO):
        if isinstance(text := annotations.get(name), str) and not containers:
            try:
                mig = annotations.get(_HAMI_MIG) if name == _HAMI else None
                containers = _parse_devices(text, mig, pod)
            except _Senseless as error:
                problem = f"annotation {name} is ignored: {error}"
    groups = frozenset(_groups(labels)) or frozenset(_groups(annotations))
    if groups:
        try:
            part, annotation = _parse_part(annotations)
        except _Senseless as error:
            # Still a working pod, with a fraction that is not known.
            part, problem = DeviceShare(), f"the part of its GPU is not known: {error}"
    if not containers and not groups and not problem:
        return NO_SHARES
    container = annotations.get(_CONTAINER)
    return PodShares(
        containers,
        groups,
        part,
        clean_name(container, _LONGEST_NAME) if isinstance(container, str) and container else pod.first,
        annotation,
        problem,
    )


def _parse_devices(text: str, mig: object, pod: PodContainers) -> tuple[tuple[DeviceShare, ...], ...]:
    instances = _parse_instances(mig)
    found: list[tuple[DeviceShare, ...]] = []
    listed = text.strip().removesuffix(";").split(";")
    ended = pod.ended_of(len(listed))
    for number, container in enumerate(listed):
        written = [device for device in container.split(":") if device.strip()]
        if len(written) > _MOST_DEVICES or number > _MOST_DEVICES:
            raise _Senseless(f"it names more than {_MOST_DEVICES} devices")
        devices = []
        for position, device in enumerate(written):
            share = _parse_device(device)
            instance = instances.get((number, position))
            # A MIG instance is not shared: the pod has all of it.
            devices.append(share if instance is None else DeviceShare(instance, Fraction(1)))
        if devices and number not in ended:
            found.append(tuple(devices))
    return tuple(found)


def _parse_device(text: str) -> DeviceShare:
    uuid, *fields = (field.strip() for field in text.split(","))
    if len(fields) < 3 or not all(_NUMBER.fullmatch(field) for field in fields[1:3]) or not uuid:
        raise _Senseless(f"expected UUID,TYPE,MEMORY,CORES, not {_shown(text)}")
    memory, cores = int(fields[1]), int(fields[2])
    if cores > 100:
        raise _Senseless(f"{cores} % of the cores of {_shown(uuid)}")
    # 0 is "not stated".
    return DeviceShare(
        # HAMi before 2.9 names a MIG instance by its place in a table: GPU-UUID[0-1].
        "" if "[" in uuid else clean_name(uuid, _LONGEST_NAME),
        Fraction(cores, 100) if cores else None,
        memory * _MIB if memory else None,
    )


def _parse_instances(text: object) -> dict[tuple[object, object], str]:
    """The UUIDs of MIG instances by container and position; empty text if it does not exist yet."""
    import json

    if not isinstance(text, str) or not text.strip():
        return {}
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise _Senseless(f"{_HAMI_MIG} is not JSON") from None
    found: dict[tuple[object, object], str] = {}
    for one in listed if isinstance(listed, list) else (None,):
        fields = one if isinstance(one, dict) else {}
        place = (fields.get("containerIndex"), fields.get("deviceIndex"))
        uuid = fields.get("migUUID", "")
        if not all(type(number) is int for number in place) or not isinstance(uuid, str):
            raise _Senseless(f"{_HAMI_MIG} has no container and device numbers")
        found[place] = clean_name(uuid, _LONGEST_NAME)
    return found


def _groups(names: Mapping[str, Any]) -> Iterator[str]:
    for name, value in names.items():
        if (name == _GROUP or name.startswith(f"{_GROUP}/")) and isinstance(value, str) and value:
            yield clean_name(value, _LONGEST_NAME)


def _parse_part(annotations: Mapping[str, Any]) -> tuple[DeviceShare | None, str]:
    """What a pod has of each GPU of its groups, and the annotation; None if it states no part."""
    if (text := annotations.get(_FRACTION)) is not None:
        fraction = Fraction(text) if isinstance(text, str) and _DECIMAL.fullmatch(text) else Fraction(0)
        if not 0 < fraction <= 1:
            raise _Senseless(f"annotation {_FRACTION} is {_shown(text)}, expected a number such as 0.5")
        return DeviceShare(fraction=fraction), _FRACTION
    if (text := annotations.get(_MEMORY)) is not None:
        memory = int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else 0
        if not memory:
            raise _Senseless(f"annotation {_MEMORY} is {_shown(text)}, expected a number of MiB")
        return DeviceShare(memory=memory * _MIB), _MEMORY
    return None, ""


def _shown(value: object) -> str:
    return clean_name(repr(value), 80)
