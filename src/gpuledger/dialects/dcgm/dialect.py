"""dcgm-exporter's vocabulary without DCGM: its names, labels, types and units, from NVML's facts.

Two things are not as there, on purpose. Under MIG, what only the whole GPU has (power, clocks, energy) is
told once, on the GPU, so that sums are right. And a GPU that several share bears no pod's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuledger.dialects.dcgm import health, xids
from gpuledger.dialects.dcgm.collectors import Collectors, Column
from gpuledger.dialects.dcgm.field import Field, Schema
from gpuledger.dialects.dcgm.fields import HEALTH, XID, XID_TOTAL
from gpuledger.dialects.dcgm.holders import attribute_names, holders
from gpuledger.dialects.dcgm.shape import Layout, Place, Shape, tail
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.devices import Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page
from gpuledger.model.quantities import Level
from gpuledger.model.snapshot import Reading, Snapshot

_NO_LABELS: Mapping[str, str] = {}


class _Metric:
    """A column told as a family, with what is asked of it for every Device of every page."""

    def __init__(self, column: Column, schema: Schema) -> None:
        self.column = column
        self.field = column.field
        self.scale = column.scale(schema)
        self.is_deep = column.field.level is Level.INSTANCE


class DcgmDialect:
    """The families that a collectors file asks for.

    `specs` are all of them, with every label that each can have but pods' own; `wants` are the quantities
    that the file's fields are made of.
    """

    name = "dcgm"

    def __init__(self, settings: DcgmSettings, collectors: Collectors, hostname: str = "") -> None:
        self._settings = settings
        labels = [column for column in collectors.columns if column.is_label]
        metrics = [column for column in collectors.columns if not column.is_label]
        self._metrics = [_Metric(column, settings.schema) for column in metrics]
        self._layout = Layout(settings, labels, hostname)
        self.specs = self._specs(self._layout.whole(attribute_names(settings)))
        self.wants = frozenset(
            quantity for column in collectors.columns for quantity in column.field.quantities
        )
        # Shapes change when MIG is cut anew or a first pod comes: seldom.
        self._last: tuple[Shape, tuple[FamilySpec, ...]] | None = None

    def tell(self, page: Page) -> Iterable[Family]:
        """The families of one Page; none while there is no Snapshot."""
        if page.snapshot is None:
            return ()
        shape, places = self._layout.lay_out(page.snapshot, holders(page, page.snapshot, self._settings))
        last = self._last
        if last is None or last[0] != shape:
            self._last = last = (shape, self._specs(shape))
        families = [Family(spec) for spec in last[1]]
        for place in places:
            self._tell_device(page, page.snapshot, place, shape, families)
        return families

    def _specs(self, shape: Shape) -> tuple[FamilySpec, ...]:
        return tuple(self._spec(metric, shape) for metric in self._metrics)

    def _spec(self, metric: _Metric, shape: Shape) -> FamilySpec:
        field, unit = metric.field, metric.scale.unit
        own_help = f"{field.help} (in {unit})." if unit else f"{field.help}."
        return FamilySpec(
            metric.column.name(self._settings.schema),
            "counter" if field.type == "counter" else "gauge",
            metric.column.help or own_help,
            self._layout.names(shape, field.labels),
            source=f"DCGM field {field.id}" if field.id else "as dcgm-exporter",
        )

    def _tell_device(
        self, page: Page, snapshot: Snapshot, place: Place, shape: Shape, families: Sequence[Family]
    ) -> None:
        reading = place.reading
        is_instance = isinstance(reading.device, Instance)
        end = tail(shape, place.attributes, _NO_LABELS)
        shared_end = tail(shape, place.shared_attributes, _NO_LABELS)
        for metric, family in zip(self._metrics, families, strict=True):
            # Of a GPU that is cut up, what an instance has is told by its instances, all else by the GPU.
            if place.is_cut if metric.is_deep else is_instance:
                continue
            field = metric.field
            if field.labels:
                for special, own in _special(field, page, snapshot, reading):
                    family.add(special, *place.own, *tail(shape, place.attributes, own))
                continue
            value = field.value(reading.values, metric.scale)
            if not field.shared:
                family.add(value, *place.own, *end)
            elif place.shared is not None:
                family.add(value, *place.shared, *shared_end)


def _special(
    field: Field, page: Page, snapshot: Snapshot, reading: Reading
) -> Iterator[tuple[float, Mapping[str, str]]]:
    """Values of a field that has labels of its own, with these."""
    if field is XID:
        last = xids.last_xid(page, snapshot, reading)
        if last is not None:
            yield last, {"err_code": str(last), "err_msg": xids.MESSAGES.get(last, "")}
    elif field is XID_TOTAL:
        for (uuid, xid), seen in sorted(page.ledger.xids.items()):
            if uuid == reading.device.uuid:
                yield seen, {"xid": str(xid)}
    elif field is HEALTH:
        verdict = health.memory(reading.values)
        if verdict is not None:
            yield verdict[0], {"health_error_code": verdict[1], "health_watch": verdict[2]}
