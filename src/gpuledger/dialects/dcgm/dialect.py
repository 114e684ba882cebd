"""The dcgm dialect: dcgm-exporter's names, labels, types and units, computed from NVML without DCGM.

It differs from dcgm-exporter in two ways on purpose. Under MIG, quantities of the whole GPU (power, clocks,
energy) are exported once, on the GPU, so that sums are correct. A GPU shared by several pods has no pod
label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuledger.dialects.dcgm.collectors import Collectors, Column
from gpuledger.dialects.dcgm.field_definition import Field, Schema, Values
from gpuledger.dialects.dcgm.field_tables import HEALTH, XID, XID_TOTAL
from gpuledger.dialects.dcgm.holder_labels import holder_label_names, holder_labels
from gpuledger.dialects.dcgm.label_layout import DeviceLabels, LabelLayout, LabelShape, trailing_values
from gpuledger.dialects.labels import nvidia_only
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Level, Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.model.xids import XID_MEANINGS

# dcgmHealthWatchResults_t.
_PASS: Final = 0
_WARNING: Final = 10
_FAILURE: Final = 20

MemoryHealth = tuple[int, str, str]

# Worst first: a quantity above 0 gives this result and this error of DCGM (dcgm_errors.h).
_RULES: Final = (
    (q.ROW_REMAP_FAILURE, _FAILURE, "DCGM_FR_ROW_REMAP_FAILURE"),
    (q.ECC_UNCORRECTED_VOLATILE, _FAILURE, "DCGM_FR_VOLATILE_DBE_DETECTED"),
    (q.ROW_REMAP_PENDING, _WARNING, "DCGM_FR_PENDING_ROW_REMAP"),
    (q.RETIRED_PAGES_PENDING, _WARNING, "DCGM_FR_PENDING_PAGE_RETIREMENTS"),
)


def memory_health(values: Values) -> MemoryHealth | None:
    """Returns result, error code and watch; None if the card does not report memory errors."""
    for quantity, result, code in _RULES:
        if values.get(quantity):
            return result, code, "MEM"
    if any(quantity in values for quantity, _, _ in _RULES):
        return _PASS, "DCGM_FR_OK", "MEM"
    return None


# The collector that reads the driver's events.
_EVENTS: Final = "events"


def last_xid(state: NodeState, snapshot: Snapshot, reading: Reading) -> int | None:
    """Returns the last Xid of a Gpu; if there is none, 0, or None if its events cannot be read."""
    uuid = reading.device.uuid
    xids = [xid for gpu_uuid, xid in state.ledger.xid_times if gpu_uuid == uuid]
    if xids:
        return xids[-1]
    return 0 if reading.up and _can_read_events(snapshot, uuid) else None


def _can_read_events(snapshot: Snapshot, uuid: str) -> bool:
    if not any(run.name == _EVENTS and run.success for run in snapshot.collected):
        return False
    return not any(
        failure.part == _EVENTS and (failure.device is None or failure.device.uuid == uuid)
        for failure in snapshot.failures
    )


_NO_LABELS: Mapping[str, str] = {}
_LONGEST_START = 15.0


def _quantities_of(columns: Iterable[Column]) -> frozenset[Quantity]:
    return frozenset(quantity for column in columns for quantity in column.field.quantities)


class _Metric:
    """A column that is exported as a family, with attributes that are computed once."""

    def __init__(self, column: Column, schema: Schema) -> None:
        self.column = column
        self.field = column.field
        self.scale = column.scale(schema)
        self.has_instance_level = column.field.level is Level.INSTANCE


class DcgmDialect:
    """The families that a collectors file selects.

    `specs` have every label that the families can have, except labels taken from pods. `required_quantities`
    are those that the fields of the file are computed from.
    """

    name = "dcgm"

    def __init__(self, settings: DcgmSettings, collectors: Collectors, hostname: str = "") -> None:
        self._settings = settings
        labels = [column for column in collectors.columns if column.is_label]
        metrics = [column for column in collectors.columns if not column.is_label]
        self._metrics = [_Metric(column, settings.schema) for column in metrics]
        self._layout = LabelLayout(settings, labels, hostname)
        self.specs = self._specs(self._layout.full_shape(holder_label_names(settings)))
        self.required_quantities = _quantities_of(collectors.columns)
        self._label_quantities = _quantities_of(labels)
        # Cached: the set of labels rarely changes (new MIG instances, the first pod).
        self._last: tuple[LabelShape, tuple[FamilySpec, ...]] | None = None

    def families(self, state: NodeState) -> Iterable[Family]:
        """Returns the families of one NodeState; none without a Snapshot, or before all labels are known."""
        state = nvidia_only(state)
        if state.snapshot is None or not self._knows_labels(state, state.snapshot):
            return ()
        shape, devices = self._layout.lay_out(
            state.snapshot, holder_labels(state, state.snapshot, self._settings)
        )
        last = self._last
        if last is None or last[0] != shape:
            self._last = last = (shape, self._specs(shape))
        families = [Family(spec) for spec in last[1]]
        for device in devices:
            self._add_device(state, state.snapshot, device, shape, families)
        return families

    def _knows_labels(self, state: NodeState, snapshot: Snapshot) -> bool:
        """Whether the labels are those of later pages: a label that appears later makes each series new.

        The first answer about Allocations is not awaited for longer than a scrape interval.
        """
        is_starting = state.unix - state.health.started < _LONGEST_START
        awaits_pods = not snapshot.allocations_complete and is_starting
        return state.has_read(self._label_quantities) and not awaits_pods

    def _specs(self, shape: LabelShape) -> tuple[FamilySpec, ...]:
        return tuple(self._spec(metric, shape) for metric in self._metrics)

    def _spec(self, metric: _Metric, shape: LabelShape) -> FamilySpec:
        field, unit = metric.field, metric.scale.unit
        own_help = f"{field.help} (in {unit})." if unit else f"{field.help}."
        return FamilySpec(
            metric.column.name(self._settings.schema),
            "counter" if field.type == "counter" else "gauge",
            metric.column.help or own_help,
            self._layout.names(shape, field.labels),
            source=f"DCGM field {field.id}" if field.id else "as dcgm-exporter",
        )

    def _add_device(
        self,
        state: NodeState,
        snapshot: Snapshot,
        device: DeviceLabels,
        shape: LabelShape,
        families: Sequence[Family],
    ) -> None:
        reading = device.reading
        is_instance = isinstance(reading.device, Instance)
        end = trailing_values(shape, device.holder, _NO_LABELS)
        shared_end = trailing_values(shape, device.shared_holder, _NO_LABELS)
        for metric, family in zip(self._metrics, families, strict=True):
            # On a GPU with instances, instances export what an instance has, and the GPU all else.
            if device.has_instances if metric.has_instance_level else is_instance:
                continue
            field = metric.field
            if field.labels:
                for labeled_value, own in _labeled_samples(field, state, snapshot, reading):
                    family.add(labeled_value, *device.own, *trailing_values(shape, device.holder, own))
                continue
            value = field.value(reading.values, metric.scale)
            if not field.shared:
                family.add(value, *device.own, *end)
            elif device.shared is not None:
                family.add(value, *device.shared, *shared_end)


def _labeled_samples(
    field: Field, state: NodeState, snapshot: Snapshot, reading: Reading
) -> Iterator[tuple[float, Mapping[str, str]]]:
    """Yields the samples of a field that has own labels, each with the values of these labels."""
    if field is XID:
        last = last_xid(state, snapshot, reading)
        if last is not None:
            yield last, {"err_code": str(last), "err_msg": XID_MEANINGS.get(last, "")}
    elif field is XID_TOTAL:
        for (uuid, xid), count in sorted(state.ledger.xids.items()):
            if uuid == reading.device.uuid:
                yield 0 if (uuid, xid) in state.ledger.new_xids else count, {"xid": str(xid)}
    elif field is HEALTH:
        health = memory_health(reading.values)
        if health is not None:
            yield health[0], {"health_error_code": health[1], "health_watch": health[2]}
