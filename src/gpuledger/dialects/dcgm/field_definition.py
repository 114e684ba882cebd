"""Definition of a DCGM field: ids, names in both schemas, type, scale and its quantities.

Ids and old names are the same in all versions of DCGM from 2.4 to 4.6 (dcgm_fields.h). Schema 4.9 has the
names of DCGM 4.6's naming standard (same ids) and, where DCGM 4.7 has fields in base units, these fields with
ids from 1600 (dcgm-exporter 4.9.0). Names alone are ambiguous: in DCGM 4.6, GPU_UTIL_RATIO was field 203, a
percentage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gpuledger.model.quantities import Level, Quantity

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit and the conversion to it from the base unit; None for a value that DCGM does not have."""

    unit: str
    convert: Callable[[float], float | None]


def _round_double(value: float) -> float:
    # DCGM prints doubles with six decimals.
    return round(value, 6)


def _compute_mode(value: float) -> float | None:
    # nvmlComputeMode_t 0, 2, 3 are DCGM's 0 default, 1 prohibited, 2 exclusive process (dcgm_structs.h).
    # NVML's 1, exclusive thread, exists only up to CUDA 7.
    return {0: 0, 2: 1, 3: 2}.get(int(value))


# DCGM_FT_INT64, unscaled.
COUNT = Scale("", int)
CELSIUS = Scale("C", int)
NANOSECONDS = Scale("ns", int)
COMPUTE_MODE = Scale("", _compute_mode)
BYTES = Scale("bytes", int)
BYTES_PER_SECOND = Scale("bytes per second", int)
# DCGM_FT_DOUBLE, unscaled.
WATTS = Scale("W", _round_double)
RATIO = Scale("0 to 1", _round_double)
# DCGM_FT_INT64, scaled. NVML reports whole percents, so 0.57 must be exported as 57.
PERCENT = Scale("%", lambda value: round(value * 100))
MEBIBYTES = Scale("MiB", lambda value: int(value) // _MIB)
MEGAHERTZ = Scale("MHz", lambda value: round(value / 1_000_000))
HERTZ = Scale("Hz", int)
MILLIJOULES = Scale("mJ", int)
JOULES = Scale("J", lambda value: int(value) // 1000)
# Field 449: thousands of KiB per second, which NVIDIA calls MB/s.
NVLINK_MEGABYTES = Scale("thousands of KiB per second", lambda value: int(value / 1_024_000))

# By the unit of a quantity: the scale of its fields, and that of the fields from 1600.
_SCALES: Final = {
    "": COUNT,
    "celsius": CELSIUS,
    "nanoseconds": NANOSECONDS,
    "watts": WATTS,
    "bytes per second": BYTES_PER_SECOND,
    "ratio": PERCENT,
    "bytes": MEBIBYTES,
    "hertz": MEGAHERTZ,
    "millijoules": MILLIJOULES,
}
_BASE_SCALES: Final = {
    "bytes per second": BYTES_PER_SECOND,
    "ratio": RATIO,
    "bytes": BYTES,
    "hertz": HERTZ,
    "millijoules": JOULES,
}

PREFIX: Final = "DCGM_FI_"
Schema = Literal["4.8", "4.9"]
Values = Mapping[Quantity, float]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One DCGM field. Names are without `prefix`; `new_id` is set if DCGM 4.7 replaced the field.

    `type` is DCGM's type, which can differ from the one in a collectors file; text fields can only be labels.
    The value is that of the first of `quantities`, or computed from all of them by `derive`. `aliases` are
    further names that a collectors file can use. `labels` are those that its samples have in addition to the
    device's.
    """

    id: int
    old: str
    new: str
    type: Literal["gauge", "counter", "text"]
    help: str
    quantities: tuple[Quantity, ...] = ()
    old_scale: Scale = COUNT
    new_scale: Scale = COUNT
    new_id: int = 0
    derive: Callable[[Values], float | None] | None = None
    aliases: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    prefix: str = PREFIX

    @property
    def level(self) -> Level:
        """The deepest kind of Device that has the field."""
        return self.quantities[0].level if self.quantities else Level.GPU

    @property
    def shared(self) -> bool:
        """Whether it belongs to the whole GPU instance, not to one of its compute instances."""
        return any(quantity.shared for quantity in self.quantities)

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the field, with prefix."""
        return tuple(self.prefix + word for word in (self.old, self.new, *self.aliases))

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids of the field."""
        return tuple(number for number in (self.id, self.new_id) if number)

    def name(self, schema: Schema) -> str:
        """Returns the name of the family or the label in a schema."""
        return self.prefix + (self.old if schema == "4.8" else self.new)

    def scale(self, schema: Schema) -> Scale:
        """Returns the scale of the values in a schema."""
        return self.old_scale if schema == "4.8" else self.new_scale

    def value(self, values: Values, scale: Scale) -> float | None:
        """Returns the scaled value for the readings of a Device, None if absent."""
        found = values.get(self.quantities[0]) if self.derive is None else self.derive(values)
        return None if found is None else scale.convert(found)


def scaled(
    number: int,
    old: str,
    new: str | tuple[str, int],
    quantity: Quantity,
    text: str,
    *,
    scale: Scale | None = None,
    counter: bool = False,
    aliases: tuple[str, ...] = (),
    group: str = "DEV_",
) -> Field:
    """Creates the field of one quantity; `new` is a name, or a name and an id. `group` begins all names.

    `scale` is the one of `number`, if it does not follow from the unit of the quantity.
    """
    name, new_id = new if isinstance(new, tuple) else (new, 0)
    old_scale = scale or _SCALES[quantity.unit]
    return Field(
        number,
        group + old,
        group + (name or old),
        "counter" if counter else "gauge",
        text,
        (quantity,),
        old_scale,
        _BASE_SCALES[quantity.unit] if new_id else old_scale,
        new_id,
        aliases=tuple(group + alias for alias in aliases),
    )
