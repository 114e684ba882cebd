"""dcgm-exporter's vocabulary without DCGM: its names, labels, types and units, from NVML's facts.

Two things are not as there, on purpose. Under MIG, what only the whole GPU has (power, clocks, energy) is
told once, on the GPU, so that sums are right. And a GPU that several share bears no pod's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuledger.dialects.dcgm.collectors import Collectors, Column
from gpuledger.dialects.dcgm.field import Field, Schema, Values
from gpuledger.dialects.dcgm.fields import HEALTH, XID, XID_TOTAL
from gpuledger.dialects.dcgm.holders import attribute_names, holders
from gpuledger.dialects.dcgm.shape import Layout, Place, Shape, tail
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Level
from gpuledger.model.snapshot import Reading, Snapshot

# dcgmHealthWatchResults_t.
_PASS: Final = 0
_WARNING: Final = 10
_FAILURE: Final = 20

Verdict = tuple[int, str, str]

# Worst first: what is above 0, the result, DCGM's name of the error (dcgm_errors.h).
_RULES: Final = (
    (q.ROW_REMAP_FAILURE, _FAILURE, "DCGM_FR_ROW_REMAP_FAILURE"),
    (q.ECC_UNCORRECTED_VOLATILE, _FAILURE, "DCGM_FR_VOLATILE_DBE_DETECTED"),
    (q.ROW_REMAP_PENDING, _WARNING, "DCGM_FR_PENDING_ROW_REMAP"),
    (q.RETIRED_PAGES_PENDING, _WARNING, "DCGM_FR_PENDING_PAGE_RETIREMENTS"),
)


def memory(values: Values) -> Verdict | None:
    """Result, error code and watch; None where the card tells nothing of its memory's errors."""
    for quantity, result, code in _RULES:
        if values.get(quantity):
            return result, code, "MEM"
    if any(quantity in values for quantity, _, _ in _RULES):
        return _PASS, "DCGM_FR_OK", "MEM"
    return None


# The part of a tick that drains the driver's events.
_EVENTS: Final = "events"

MESSAGES: Final[Mapping[int, str]] = {
    0: "No Error",
    8: "GPU stopped processing",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    38: "Driver firmware error",
    43: "GPU stopped processing",
    48: "Double Bit ECC Error",
    61: "Internal micro-controller breakpoint/warning",
    62: "Internal micro-controller halt",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    68: "NVDEC0 Exception",
    69: "Graphics Engine class error",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context Switch Timeout Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    121: "C2C Link Error",
    137: "NVLink Privilege Error",
    140: "Unrecovered ECC Error",
    143: "GPU Initialization Failure",
    149: "NVLINK: NETIR Error",
    154: "GPU Recovery Action Changed",
    171: "Uncorrectable DRAM Error",
    172: "Uncorrectable SRAM Error",
}


def last_xid(page: NodeState, snapshot: Snapshot, reading: Reading) -> int | None:
    """The Xid of a Gpu that came last: 0 for none while its events are readable, else None."""
    uuid = reading.device.uuid
    came = [xid for owner, xid in page.ledger.xid_times if owner == uuid]
    if came:
        return came[-1]
    return 0 if reading.up and _listens(snapshot, uuid) else None


def _listens(snapshot: Snapshot, uuid: str) -> bool:
    if not any(part.name == _EVENTS and part.success for part in snapshot.collected):
        return False
    return not any(
        failure.part == _EVENTS and (failure.device is None or failure.device.uuid == uuid)
        for failure in snapshot.failures
    )


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

    def families(self, page: NodeState) -> Iterable[Family]:
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
        self, page: NodeState, snapshot: Snapshot, place: Place, shape: Shape, families: Sequence[Family]
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
    field: Field, page: NodeState, snapshot: Snapshot, reading: Reading
) -> Iterator[tuple[float, Mapping[str, str]]]:
    """Values of a field that has labels of its own, with these."""
    if field is XID:
        last = last_xid(page, snapshot, reading)
        if last is not None:
            yield last, {"err_code": str(last), "err_msg": MESSAGES.get(last, "")}
    elif field is XID_TOTAL:
        for (uuid, xid), seen in sorted(page.ledger.xids.items()):
            if uuid == reading.device.uuid:
                yield seen, {"xid": str(xid)}
    elif field is HEALTH:
        verdict = memory(reading.values)
        if verdict is not None:
            yield verdict[0], {"health_error_code": verdict[1], "health_watch": verdict[2]}
