"""What a DCGM field is: ids, names in both schemas, true type, and how it is made of quantities.

Ids and old names have been the same in every DCGM from 2.4 to 4.6 (dcgm_fields.h). Schema 4.9 takes the names
of DCGM 4.6's naming standard (ids unchanged) and, where DCGM 4.7 measures in base units, its fields from 1600
on (dcgm-exporter 4.9.0). In DCGM 4.6 GPU_UTIL_RATIO was field 203 and a percentage: ids tell, names do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gpuledger.model.quantities import Level, Quantity

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scale:
    """`to` gives the value told for one in the base unit; None is a value that DCGM has no word for."""

    unit: str
    to: Callable[[float], float | None]


def _as_it_is(value: float) -> float:
    # DCGM prints six decimals of what it holds as double.
    return round(value, 6)


def _compute_mode(value: float) -> float | None:
    # nvmlComputeMode_t 0, 2, 3 are DCGM's 0 default, 1 prohibited, 2 exclusive process (dcgm_structs.h);
    # NVML's 1, exclusive thread, is of CUDA 7 and older.
    return {0: 0, 2: 1, 3: 2}.get(int(value))


# DCGM_FT_INT64, unscaled.
COUNT = Scale("", int)
CELSIUS = Scale("C", int)
NANOSECONDS = Scale("ns", int)
COMPUTE_MODE = Scale("", _compute_mode)
BYTES = Scale("bytes", int)
BYTES_PER_SECOND = Scale("bytes per second", int)
# DCGM_FT_DOUBLE, unscaled.
WATTS = Scale("W", _as_it_is)
RATIO = Scale("0 to 1", _as_it_is)
# DCGM_FT_INT64 in units of its own. NVML tells whole percents: 0.57 must come out as 57.
PERCENT = Scale("%", lambda value: round(value * 100))
MEBIBYTES = Scale("MiB", lambda value: int(value) // _MIB)
MEGAHERTZ = Scale("MHz", lambda value: round(value / 1_000_000))
HERTZ = Scale("Hz", int)
MILLIJOULES = Scale("mJ", int)
JOULES = Scale("J", lambda value: int(value) // 1000)
# Field 449: thousands of KiB a second, which NVIDIA calls MB/s.
NVLINK_MEGABYTES = Scale("thousands of KiB per second", lambda value: int(value / 1_024_000))


PREFIX: Final = "DCGM_FI_"
Schema = Literal["4.8", "4.9"]
Values = Mapping[Quantity, float]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One DCGM field. Names are without `prefix`; `new_id` is set where DCGM 4.7 made a new field of it.

    `type` is what DCGM does, which is not what every collectors file says; text is for what can only be a
    label. `quantities` are what it is made of: the first one's value, or what `derive` makes of them. `also`
    are other names of it that a collectors file may use, `labels` those that its samples have beside the
    device's. `shared` marks what a GPU instance has as a whole, however many compute instances are in it.
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
    also: tuple[str, ...] = ()
    shared: bool = False
    labels: tuple[str, ...] = ()
    prefix: str = PREFIX

    @property
    def level(self) -> Level:
        """The deepest Device on which it exists."""
        return self.quantities[0].level if self.quantities else Level.GPU

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which it is known."""
        return tuple(self.prefix + word for word in (self.old, self.new, *self.also))

    @property
    def ids(self) -> tuple[int, ...]:
        """Every id by which it is known."""
        return tuple(number for number in (self.id, self.new_id) if number)

    def name(self, schema: Schema) -> str:
        """The family's, or label's, name in a schema."""
        return self.prefix + (self.old if schema == "4.8" else self.new)

    def scale(self, schema: Schema) -> Scale:
        """How its values are told in a schema."""
        return self.old_scale if schema == "4.8" else self.new_scale

    def value(self, values: Values, scale: Scale) -> float | None:
        """What is told of a Device's readings; None is absent."""
        found = values.get(self.quantities[0]) if self.derive is None else self.derive(values)
        return None if found is None else scale.to(found)


def scaled(
    number: int,
    old: str,
    new: str | tuple[str, int],
    quantity: Quantity,
    scale: Scale | tuple[Scale, Scale],
    text: str,
    *,
    counter: bool = False,
    also: tuple[str, ...] = (),
    shared: bool = False,
) -> Field:
    """A field that is one quantity, scaled; `new` is a name, or a name and an id."""
    name, new_id = new if isinstance(new, tuple) else (new, 0)
    old_scale, new_scale = scale if isinstance(scale, tuple) else (scale, scale)
    return Field(
        number,
        old,
        name or old,
        "counter" if counter else "gauge",
        text,
        (quantity,),
        old_scale,
        new_scale,
        new_id,
        also=also,
        shared=shared,
    )
