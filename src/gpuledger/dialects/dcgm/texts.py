"""Texts of label fields: what a Device is, rather than what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuledger.model.devices import Device, Instance
from gpuledger.model.snapshot import SourceInfo


@dataclass(frozen=True, slots=True)
class Subject:
    """A Device, the machine that it is in, and the Instances of its Gpu."""

    device: Device
    source: SourceInfo
    instances: Sequence[Instance]


def gpu_profile(instance: Instance) -> str:
    """The profile of the GPU instance: that of a compute instance which is part of one begins `1c.`."""
    first, dot, rest = instance.profile.partition(".")
    return rest if dot and first.endswith("c") and first[:-1].isdigit() else instance.profile


def _name(subject: Subject) -> str:
    device = subject.device
    return (device.profile if isinstance(device, Instance) else "") or device.gpu.name


def _minor(subject: Subject) -> str:
    minor = subject.device.gpu.minor
    return "" if minor is None else str(minor)


def _gpu_instances(subject: Subject) -> str:
    found = {item.gi: gpu_profile(item) for item in subject.instances}
    return ",".join(f"{gi}:{profile}" for gi, profile in sorted(found.items()))


def _compute_instances(subject: Subject) -> str:
    ordered = sorted(subject.instances, key=lambda item: (item.gi, item.ci))
    return ",".join(f"{item.gi}/{item.ci}:{item.profile}" for item in ordered)


# By field id. DCGM tells fields 76 and 77 as binary lists of profiles that could be made.
TEXTS: Final[Mapping[int, Callable[[Subject], str]]] = {
    1: lambda subject: subject.source.driver_version,
    2: lambda subject: subject.source.library_version,
    50: _name,
    52: lambda subject: str(subject.device.gpu.index),
    53: lambda subject: subject.device.gpu.serial or "",
    54: lambda subject: subject.device.uuid,
    55: _minor,
    57: lambda subject: subject.device.gpu.pci_bus_id,
    76: _gpu_instances,
    77: _compute_instances,
    85: lambda subject: subject.device.gpu.vbios or "",
}
