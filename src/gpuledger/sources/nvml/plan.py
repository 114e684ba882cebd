"""What to ask one Device in one tick: made once for the quantities wanted of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuledger.model.quantities import Level, Quantity
from gpuledger.sources.nvml.codes import NOT_SUPPORTED
from gpuledger.sources.nvml.fields import FIELDS, MEMORY, NUMBERS, RATES, Field, Number
from gpuledger.sources.nvml.structs import FIELD


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls and field ids for the wanted quantities that the Device has, as far as that is known.

    `request` is the batch of fields as nvmlDeviceGetFieldValues takes it. `supported` says of the wanted
    quantities whether the Device has them; what is not known yet is not in it.
    """

    rates: tuple[Quantity, ...]
    memory: tuple[Quantity, ...]
    numbers: tuple[Number, ...]
    fields: tuple[Field, ...]
    request: bytes
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
    asked = {
        quantity
        for quantity in here
        if support.get(quantity.key) is not False and (slow or not quantity.slow)
    }
    told = [each for each in FIELDS if each.quantity in asked]
    fields = tuple(each for each in told if each.field_id not in no_field)
    fallbacks = tuple(each.fallback for each in told if each.field_id in no_field and each.fallback)
    return Plan(
        rates=tuple(quantity for quantity in RATES if quantity in asked),
        memory=tuple(quantity for quantity in MEMORY if quantity in asked),
        numbers=tuple(number for number in NUMBERS if number.quantity in asked) + fallbacks,
        fields=fields,
        request=b"".join(FIELD.pack(each.field_id, 0, 0, 0, 0, NOT_SUPPORTED, b"") for each in fields),
        supported={quantity.key: support[quantity.key] for quantity in here if quantity.key in support},
    )
