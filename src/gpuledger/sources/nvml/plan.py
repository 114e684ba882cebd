"""What to ask one Device in one tick: made once for the quantities wanted of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import NOT_SUPPORTED
from gpuledger.sources.nvml.fields import (
    CUT,
    FIELDS,
    GROUPS,
    LINK_RATE,
    LINKS,
    MEMORY,
    METRICS,
    NUMBERS,
    Field,
    Group,
    Metric,
    Number,
)
from gpuledger.sources.nvml.structs import FIELD, GPM_METRIC


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls, field ids and metrics for the wanted quantities that the Device has, as far as that is known.

    `request` is the batch of fields as nvmlDeviceGetFieldValues takes it, `metrics_request` that of metrics
    for nvmlGpmMetricsGet. `unasked` are quantities that are read to work out another, and not told.
    `supported` says of the wanted quantities whether the Device has them; what is not known yet is not in it.
    """

    groups: tuple[tuple[Group, tuple[Quantity, ...]], ...]
    memory: tuple[Quantity, ...]
    cut: tuple[Quantity, ...]
    numbers: tuple[Number, ...]
    fields: tuple[Field, ...]
    request: bytes
    link_rate: bool
    unasked: tuple[Quantity, ...]
    metrics: tuple[Metric, ...]
    metrics_request: bytes
    supported: Mapping[str, bool]


def make_plan(
    level: Level,
    wanted: Collection[Quantity],
    slow: bool,
    support: Mapping[str, bool],
    no_field: Collection[int],
) -> Plan:
    """The Plan for a Device of the level; without `slow`, one for a tick between the slow ones.

    `support` says what the Device has, `no_field` which field ids it does not tell.
    """
    here = [quantity for quantity in wanted if level is Level.GPU or quantity.level is Level.INSTANCE]
    told_here = {
        quantity
        for quantity in here
        if support.get(quantity.key) is not False and (slow or not quantity.slow)
    }
    link_rate = LINK_RATE in told_here
    unasked = tuple(quantity for quantity in LINKS if link_rate and quantity not in told_here)
    asked = told_here.union(unasked)
    told = [each for each in FIELDS if each.quantity in asked]
    fields = tuple(each for each in told if each.field_id not in no_field)
    fallbacks = tuple(each.fallback for each in told if each.field_id in no_field and each.fallback)
    groups = ((group, tuple(each for each in group.tells if each in asked)) for group in GROUPS)
    metrics = tuple(metric for metric in METRICS if metric.quantity in asked)
    return Plan(
        groups=tuple((group, mine) for group, mine in groups if mine),
        memory=tuple(quantity for quantity in MEMORY if quantity in asked),
        cut=tuple(quantity for quantity in CUT if quantity in asked),
        numbers=tuple(number for number in NUMBERS if number.quantity in asked) + fallbacks,
        fields=fields,
        request=b"".join(
            FIELD.pack(each.field_id, each.scope, 0, 0, 0, NOT_SUPPORTED, b"") for each in fields
        ),
        link_rate=link_rate,
        unasked=unasked,
        metrics=metrics,
        metrics_request=b"".join(
            GPM_METRIC.pack(metric.metric_id, NOT_SUPPORTED, 0.0, 0, 0, 0) for metric in metrics
        ),
        supported={quantity.key: support[quantity.key] for quantity in here if quantity.key in support},
    )
