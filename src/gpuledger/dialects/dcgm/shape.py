"""Which labels the families of one page have, in dcgm-exporter's order, and what they say of each Device.

dcgm-exporter writes a label where it knows it. A family has one list of labels here: one that no Device of
the page has is left out, and one that only some have is empty on the others, which to Prometheus is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuledger.dialects.dcgm.collectors import Column
from gpuledger.dialects.dcgm.holders import Attributes
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.devices import Device, Instance
from gpuledger.model.family import LabelValues
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo


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


_PROFILE = ("GPU_I_PROFILE", "GPU_I_ID")
# Not of dcgm-exporter, which tells GPU instances alone: where one holds several compute instances.
_COMPUTE_INSTANCE = "GPU_CI_ID"

_NOBODY: Attributes = {}


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the labels that not every page has there is: `columns` are label fields by name, `attributes`
    those of holders.
    """

    mig: bool
    split: bool
    columns: tuple[str, ...]
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """One Device of a page: its label values, without those at the end.

    `shared` are those for what the GPU instance has as a whole, None where another Device tells it, and
    `shared_attributes` of who holds all of it.
    """

    reading: Reading
    own: LabelValues
    shared: LabelValues | None
    attributes: Attributes
    shared_attributes: Attributes
    is_cut: bool


class Layout:
    """Label names and values under the user's settings. An empty `hostname` is none."""

    def __init__(self, settings: DcgmSettings, labels: Sequence[Column], hostname: str) -> None:
        self._settings = settings
        self._hostname = (hostname,) if hostname and settings.hostname_label else ()
        # By name, as dcgm-exporter sorts them.
        self._columns = sorted(labels, key=lambda column: column.name(settings.schema))
        self._texts = tuple(column.name(settings.schema) for column in self._columns)
        self._extra = dict(sorted(settings.labels))
        self._taken = frozenset(self.names(self.whole(()), ()))

    def whole(self, attributes: tuple[str, ...]) -> Shape:
        """The shape of a page that has everything, these attributes included."""
        return Shape(mig=True, split=True, columns=self._texts, attributes=attributes)

    def names(self, shape: Shape, own: Iterable[str]) -> tuple[str, ...]:
        """Label names of a family that has labels of its `own`."""
        old = self._settings.schema == "4.8"
        return (
            "gpu",
            "uuid" if self._settings.old_namespace else "UUID",
            *("pci_bus_id", "device", "modelName"),
            *(_PROFILE if shape.mig else ()),
            *((_COMPUTE_INSTANCE,) if shape.split else ()),
            *(("Hostname" if old else "hostname",) if self._hostname else ()),
            *shape.columns,
            *self._extra,
            *sorted({*shape.attributes, *own}),
        )

    def lay_out(self, snapshot: Snapshot, held: Mapping[str, Attributes]) -> tuple[Shape, list[Place]]:
        """The shape of a page, and its Devices in order of their Readings."""
        gpus = {reading.device.uuid: reading for reading in snapshot.readings}
        instances: dict[str, list[Instance]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Instance):
                instances.setdefault(reading.device.parent.uuid, []).append(reading.device)
        told = [self._fields(reading, gpus, instances, snapshot.source) for reading in snapshot.readings]
        there = [any(texts[index] for texts in told) for index in range(len(self._texts))]
        attributes = {name for labels in held.values() for name in labels} - self._taken
        shape = Shape(
            mig=bool(instances),
            split=any(_is_split(siblings) for siblings in instances.values()),
            columns=_only(self._texts, there),
            attributes=tuple(sorted(attributes)),
        )
        places = [
            self._place(shape, reading, instances, _only(texts, there), held)
            for reading, texts in zip(snapshot.readings, told, strict=True)
        ]
        return shape, places

    def _place(
        self,
        shape: Shape,
        reading: Reading,
        instances: Mapping[str, Sequence[Instance]],
        texts: LabelValues,
        held: Mapping[str, Attributes],
    ) -> Place:
        device = reading.device
        gpu = device.gpu
        siblings = instances.get(gpu.uuid, ())
        model = "-".join(gpu.name.split()) if self._settings.model_dashes else gpu.name
        start = (str(gpu.index), gpu.uuid, gpu.pci_bus_id, f"nvidia{gpu.index}", model)
        end = (*self._hostname, *texts, *self._extra.values())
        own: LabelValues = (*start, *_instance(device, shape), *end)
        shared: LabelValues | None = own
        holder = of_all = held.get(device.uuid, _NOBODY)
        if isinstance(device, Instance):
            alike = [item for item in siblings if item.gi == device.gi]
            if len(alike) > 1:
                own = (*start, *_instance(device, shape, str(device.ci)), *end)
                shared = shared if device.ci == min(item.ci for item in alike) else None
                of_all = holder if all(held.get(item.uuid) == holder for item in alike) else _NOBODY
        is_cut = bool(siblings) and not isinstance(device, Instance)
        return Place(reading, own, shared, holder, of_all, is_cut)

    def _fields(
        self,
        reading: Reading,
        gpus: Mapping[str, Reading],
        instances: Mapping[str, Sequence[Instance]],
        source: SourceInfo,
    ) -> LabelValues:
        """What the label fields say; empty for what is not known."""
        uuid = reading.device.gpu.uuid
        subject = Subject(reading.device, source, instances.get(uuid, ()))
        gpu = gpus.get(uuid, reading)
        # DCGM answers for an instance with what its GPU says, where the instance has no say.
        values = reading.values if gpu is reading else {**gpu.values, **reading.values}
        told = []
        for column in self._columns:
            if column.field.type == "text":
                told.append(TEXTS[column.field.id](subject))
                continue
            value = column.field.value(values, column.scale(self._settings.schema))
            told.append("" if value is None else f"{value:.15g}")
        return tuple(told)


def tail(shape: Shape, attributes: Attributes, own: Mapping[str, str]) -> LabelValues:
    """Values of the labels at the end: the holder's and the field's `own`, sorted together by name."""
    both = {**attributes, **own}
    return tuple([both.get(name, "") for name in sorted({*shape.attributes, *own})])


def _only(values: LabelValues, there: Sequence[bool]) -> LabelValues:
    return tuple([value for value, is_there in zip(values, there, strict=True) if is_there])


def _instance(device: Device, shape: Shape, compute_instance: str = "") -> LabelValues:
    """Values of the labels that tell instances apart; empty on a whole GPU."""
    if not shape.mig:
        return ()
    told = (gpu_profile(device), str(device.gi)) if isinstance(device, Instance) else ("", "")
    return (*told, compute_instance) if shape.split else told


def _is_split(instances: Iterable[Instance]) -> bool:
    return any(count > 1 for count in Counter(item.gi for item in instances).values())
