"""Label names of the families of one page, in dcgm-exporter's order, and the label values of each Device.

dcgm-exporter writes a label only on series that have it. Here all series of a family have the same labels: a
label that no Device has is omitted, and a label that only some Devices have is empty on the others, which is
the same for Prometheus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuledger.dialects.dcgm.collectors import Column
from gpuledger.dialects.dcgm.holder_labels import HolderLabels
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.devices import Device, Instance
from gpuledger.model.family import LabelValues
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo


@dataclass(frozen=True, slots=True)
class TextSubject:
    """A Device with its machine and the Instances of its Gpu, from which text fields are computed."""

    device: Device
    source: SourceInfo
    instances: Sequence[Instance]


def gpu_profile(instance: Instance) -> str:
    """Returns the profile of the GPU instance, without a compute instance's prefix such as `1c.`."""
    first, dot, rest = instance.profile.partition(".")
    return rest if dot and first.endswith("c") and first[:-1].isdigit() else instance.profile


def _name(subject: TextSubject) -> str:
    device = subject.device
    return (device.profile if isinstance(device, Instance) else "") or device.gpu.name


def _minor(subject: TextSubject) -> str:
    minor = subject.device.gpu.minor
    return "" if minor is None else str(minor)


def _gpu_instances(subject: TextSubject) -> str:
    found = {item.gi: gpu_profile(item) for item in subject.instances}
    return ",".join(f"{gi}:{profile}" for gi, profile in sorted(found.items()))


def _compute_instances(subject: TextSubject) -> str:
    ordered = sorted(subject.instances, key=lambda item: (item.gi, item.ci))
    return ",".join(f"{item.gi}/{item.ci}:{item.profile}" for item in ordered)


# By field id. In DCGM, fields 76 and 77 are binary lists of possible profiles.
TEXTS: Final[Mapping[int, Callable[[TextSubject], str]]] = {
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
# Not in dcgm-exporter, which knows only GPU instances. Used if one has several compute instances.
_COMPUTE_INSTANCE = "GPU_CI_ID"

_NO_HOLDER: HolderLabels = {}


@dataclass(frozen=True, slots=True)
class LabelShape:
    """The optional labels that a page has: `columns` are names of label fields, `holder` of holder labels."""

    mig: bool
    split: bool
    columns: tuple[str, ...]
    holder: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceLabels:
    """The label values of one Device: `own` without the trailing labels, and the `holder` labels.

    `shared` and `shared_holder` are the same for fields of the whole GPU instance; `shared` is None if
    another Device of the GPU instance exports them.
    """

    reading: Reading
    own: LabelValues
    shared: LabelValues | None
    holder: HolderLabels
    shared_holder: HolderLabels
    has_instances: bool


class LabelLayout:
    """Computes label names and values with the user's settings. An empty `hostname` adds no label."""

    def __init__(self, settings: DcgmSettings, labels: Sequence[Column], hostname: str) -> None:
        self._settings = settings
        self._hostname = (hostname,) if hostname and settings.hostname_label else ()
        # Sorted by name, as in dcgm-exporter.
        self._columns = sorted(labels, key=lambda column: column.name(settings.schema))
        self._texts = tuple(column.name(settings.schema) for column in self._columns)
        self._extra = dict(sorted(settings.labels))
        self._reserved = frozenset(self.names(self.full_shape(()), ()))

    def full_shape(self, holder: tuple[str, ...]) -> LabelShape:
        """Returns the shape of a page that has all labels, including these `holder` labels."""
        return LabelShape(mig=True, split=True, columns=self._texts, holder=holder)

    def names(self, shape: LabelShape, own: Iterable[str]) -> tuple[str, ...]:
        """Returns the label names of a family that has the labels `own` in addition to those of devices."""
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
            *sorted({*shape.holder, *own}),
        )

    def lay_out(
        self, snapshot: Snapshot, holders: Mapping[str, HolderLabels]
    ) -> tuple[LabelShape, list[DeviceLabels]]:
        """Returns the shape of a page, and the labels of its Devices in order of their Readings."""
        gpus = {reading.device.uuid: reading for reading in snapshot.readings}
        instances: dict[str, list[Instance]] = {}
        for reading in snapshot.readings:
            if isinstance(reading.device, Instance):
                instances.setdefault(reading.device.parent.uuid, []).append(reading.device)
        values = [self._fields(reading, gpus, instances, snapshot.source) for reading in snapshot.readings]
        present = [any(texts[index] for texts in values) for index in range(len(self._texts))]
        holder_names = {name for labels in holders.values() for name in labels} - self._reserved
        shape = LabelShape(
            mig=bool(instances),
            split=any(_is_split(siblings) for siblings in instances.values()),
            columns=_select(self._texts, present),
            holder=tuple(sorted(holder_names)),
        )
        devices = [
            self._device_labels(shape, reading, instances, _select(texts, present), holders)
            for reading, texts in zip(snapshot.readings, values, strict=True)
        ]
        return shape, devices

    def _device_labels(
        self,
        shape: LabelShape,
        reading: Reading,
        instances: Mapping[str, Sequence[Instance]],
        texts: LabelValues,
        holders: Mapping[str, HolderLabels],
    ) -> DeviceLabels:
        device = reading.device
        gpu = device.gpu
        siblings = instances.get(gpu.uuid, ())
        model = "-".join(gpu.name.split()) if self._settings.model_dashes else gpu.name
        start = (str(gpu.index), gpu.uuid, gpu.pci_bus_id, f"nvidia{gpu.index}", model)
        end = (*self._hostname, *texts, *self._extra.values())
        own: LabelValues = (*start, *_instance_values(device, shape), *end)
        shared: LabelValues | None = own
        holder = shared_holder = holders.get(device.uuid, _NO_HOLDER)
        if isinstance(device, Instance):
            same_gi = [item for item in siblings if item.gi == device.gi]
            if len(same_gi) > 1:
                own = (*start, *_instance_values(device, shape, str(device.ci)), *end)
                shared = shared if device.ci == min(item.ci for item in same_gi) else None
                same_holder = all(holders.get(item.uuid) == holder for item in same_gi)
                shared_holder = holder if same_holder else _NO_HOLDER
        has_instances = bool(siblings) and not isinstance(device, Instance)
        return DeviceLabels(reading, own, shared, holder, shared_holder, has_instances)

    def _fields(
        self,
        reading: Reading,
        gpus: Mapping[str, Reading],
        instances: Mapping[str, Sequence[Instance]],
        source: SourceInfo,
    ) -> LabelValues:
        """Returns the values of the label fields, empty where unknown."""
        uuid = reading.device.gpu.uuid
        subject = TextSubject(reading.device, source, instances.get(uuid, ()))
        gpu = gpus.get(uuid, reading)
        # Like DCGM, use the GPU's value for an instance that has none.
        values = reading.values if gpu is reading else {**gpu.values, **reading.values}
        texts = []
        for column in self._columns:
            if column.field.type == "text":
                texts.append(TEXTS[column.field.id](subject))
                continue
            value = column.field.value(values, column.scale(self._settings.schema))
            texts.append("" if value is None else f"{value:.15g}")
        return tuple(texts)


def trailing_values(shape: LabelShape, holder: HolderLabels, own: Mapping[str, str]) -> LabelValues:
    """Returns the values of the trailing labels, of the holder and the field (`own`), sorted by name."""
    both = {**holder, **own}
    return tuple([both.get(name, "") for name in sorted({*shape.holder, *own})])


def _select(values: LabelValues, present: Sequence[bool]) -> LabelValues:
    return tuple([value for value, is_present in zip(values, present, strict=True) if is_present])


def _instance_values(device: Device, shape: LabelShape, compute_instance: str = "") -> LabelValues:
    """Returns the values of the labels that identify an instance; empty texts for a whole GPU."""
    if not shape.mig:
        return ()
    values = (gpu_profile(device), str(device.gi)) if isinstance(device, Instance) else ("", "")
    return (*values, compute_instance) if shape.split else values


def _is_split(instances: Iterable[Instance]) -> bool:
    return any(count > 1 for count in Counter(item.gi for item in instances).values())
