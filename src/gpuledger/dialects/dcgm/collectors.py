"""Which fields are told, from a collectors file in dcgm-exporter's format or by default.

A line is `FIELD, TYPE, HELP`. FIELD is a name of either schema, or of dcgm-exporter 1, or an id; TYPE is
label, gauge or counter. `#` begins a comment, a help text may hold commas, quotes may surround a cell. Pure:
somebody else reads the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from re import split
from typing import Final

from gpuledger.dialects.dcgm.field import PREFIX, Field, Scale, Schema
from gpuledger.dialects.dcgm.fields import FIELDS
from gpuledger.dialects.dcgm.profiling import PROFILING
from gpuledger.model.errors import UsageError
from gpuledger.model.text import clean_name

BY_NAME: Final[Mapping[str, Field]] = {name: field for field in FIELDS for name in field.names}
BY_ID: Final[Mapping[int, Field]] = {number: field for field in FIELDS for number in field.ids}

# The names of dcgm-exporter 1, which its successors take and tell as they are written.
_ONE: Final = {
    "sm_clock": 100,
    "memory_clock": 101,
    "memory_temp": 140,
    "gpu_temp": 150,
    "power_usage": 155,
    "total_energy_consumption": 156,
    "pcie_replay_counter": 202,
    "gpu_utilization": 203,
    "mem_copy_utilization": 204,
    "enc_utilization": 206,
    "dec_utilization": 207,
    "xid_errors": 230,
    "power_violation": 240,
    "thermal_violation": 241,
    "sync_boost_violation": 242,
    "board_limit_violation": 243,
    "low_util_violation": 244,
    "reliability_violation": 245,
    "fb_free": 251,
    "fb_used": 252,
    "ecc_sbe_volatile_total": 310,
    "ecc_dbe_volatile_total": 311,
    "ecc_sbe_aggregate_total": 312,
    "ecc_dbe_aggregate_total": 313,
    "retired_pages_sbe": 390,
    "retired_pages_dbe": 391,
    "retired_pages_pending": 392,
    "nvlink_flit_crc_error_count_total": 409,
    "nvlink_data_crc_error_count_total": 419,
    "nvlink_replay_error_count_total": 429,
    "nvlink_recovery_error_count_total": 439,
    "nvlink_bandwidth_total": 449,
}
OLDEST: Final[Mapping[str, Field]] = {
    **{f"dcgm_{name}": BY_ID[number] for name, number in _ONE.items()},
    **{field.name("4.8").lower(): field for field in PROFILING},
}

_INFOROM: Final = "versions of the inforom are not read"
_CLOCK_EVENTS: Final = (
    "clock events are not counted; DCGM_FI_DEV_CLOCKS_EVENT_REASONS is their state and "
    "DCGM_FI_DEV_*_VIOLATION their time"
)

# What NVIDIA's own collectors files name and gpuledger does not tell, and why not.
UNTOLD: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_BRAND": "brands are not read",
    "DCGM_FI_DEV_GPU_BRAND": "brands are not read",
    "DCGM_FI_DEV_OEM_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_ECC_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_POWER_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _INFOROM,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "licences of vGPUs are not read",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "links are told together, by DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_EXP_XID_ERRORS_COUNT": "events of a window are not counted; take "
    "increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": _CLOCK_EVENTS,
    "DCGM_EXP_CLOCK_EVENTS_TOTAL": _CLOCK_EVENTS,
    "DCGM_EXP_P2P_STATUS": "links between pairs of GPUs are not read",
}


_TYPES: Final = ("label", "gauge", "counter")
# Those of dcgm-exporter have a line; a page carries them at every scrape.
_LONGEST_HELP: Final = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """One field to be told, as a family or as a label of all families.

    `written` is what the file calls it, empty for an id; `help` is the file's, else empty.
    """

    field: Field
    is_label: bool
    written: str = ""
    help: str = ""

    def name(self, schema: Schema) -> str:
        """Its name in a schema; second names in the old one, and those of dcgm-exporter 1, are as written."""
        second = schema == "4.8" and self.written.removeprefix(PREFIX) in self.field.also
        return self.written if second or self.written in OLDEST else self.field.name(schema)

    def scale(self, schema: Schema) -> Scale:
        """How its values are told: under a name of dcgm-exporter 1 always as it told them."""
        return self.field.scale("4.8" if self.written in OLDEST else schema)


@dataclass(frozen=True, slots=True)
class Collectors:
    """What a collectors file asks for, and the lines to be logged about what it does not get."""

    columns: tuple[Column, ...]
    warnings: tuple[str, ...] = ()


def parse(content: bytes, origin: str) -> Collectors:
    """The columns of a file; `origin` names it in messages.

    A line that cannot be honoured is skipped with a warning. Raises UsageError when none is left.
    """
    try:
        lines = split(r"\r\n|\r|\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError(
            f"{origin} is not UTF-8 text; a collectors file of dcgm-exporter is wanted"
        ) from None
    reader = _Reader(origin)
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            reader.take(number, line)
    return reader.finish()


class _Reader:
    """Columns and warnings, line by line."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._columns: dict[tuple[Field, bool], Column] = {}
        self._warnings: list[str] = []
        self._otherwise: list[str] = []

    def take(self, number: int, line: str) -> None:
        try:
            column = self._column(_cells(line))
        except ValueError as error:
            self._warnings.append(f"{self._origin} line {number} is skipped: {error}")
            return
        # Files are about that list a field twice: the first line counts, as in dcgm-exporter.
        self._columns.setdefault((column.field, column.is_label), column)

    def finish(self) -> Collectors:
        if not self._columns:
            reason = f" ({self._warnings[0]})" if self._warnings else ""
            raise UsageError(
                f"{self._origin} names no field that can be told{reason}; a line such as "
                "'DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).' is wanted"
            )
        if self._otherwise:
            types = ", ".join(dict.fromkeys(self._otherwise))
            self._warnings.append(f"{self._origin}: types are told as DCGM has them: {types}")
        return Collectors(tuple(self._columns.values()), tuple(self._warnings))

    def _column(self, cells: list[str]) -> Column:
        if len(cells) < 2:
            raise ValueError("FIELD, TYPE, HELP is wanted")
        name, kind = cells[0], cells[1].lower()
        text = clean_name(", ".join(cells[2:]), _LONGEST_HELP)
        field = _find(name)
        if kind not in _TYPES:
            raise ValueError(f"the type '{cells[1]}' is none of {', '.join(_TYPES)}")
        if kind == "label" and field.labels:
            raise ValueError(f"{name} cannot be a label: it has labels of its own")
        is_label = kind == "label" or field.type == "text"
        if is_label and kind != "label":
            self._otherwise.append(f"{name} is a label")
        elif not is_label and kind != field.type:
            self._otherwise.append(f"{name} is a {field.type}")
        return Column(field, is_label, "" if name.isdigit() else name, text)


def _cells(line: str) -> list[str]:
    import csv

    try:
        (cells,) = csv.reader([line], skipinitialspace=True)
    except csv.Error as error:
        raise ValueError(f"it is no CSV ({error})") from None
    return [cell.strip() for cell in cells]


def _find(name: str) -> Field:
    """The field of a name or an id. Raises ValueError with the nearest name."""
    if name.isdecimal() and name.isascii():
        # Longer ones are no ids, and long to turn into a number.
        found = BY_ID.get(int(name)) if len(name) <= 5 else None
        if found is None:
            raise ValueError(f"there is no field with the id {name[:20]}, or gpuledger cannot tell it")
        return found
    if name in UNTOLD:
        raise ValueError(f"{name}: {UNTOLD[name]}")
    field = BY_NAME.get(name) or OLDEST.get(name)
    if field is None:
        raise ValueError(f"unknown field '{name[:80]}'; {_hint(name[:80])}")
    return field


def _hint(name: str) -> str:
    # Only the unlucky pay for it.
    from difflib import get_close_matches

    near = get_close_matches(name, [*BY_NAME, *OLDEST], n=1, cutoff=0.5)
    return (
        f"did you mean '{near[0]}'?" if near else "a name such as DCGM_FI_DEV_GPU_TEMP, or its id, is wanted"
    )


def _default() -> Iterable[Column]:
    """The fields that dcgm-exporter tells without a file, and those that its users commonly add."""
    for number in (1, 2, 50, 53, 54, 65, 66, 500, 67, 69, 76, 77):
        yield Column(BY_ID[number], is_label=True)
    clocks_and_heat = (100, 101, 140, 150, 155, 190, 156)
    traffic = (1009, 1010, 202)
    use = (203, 204, 206, 207)
    memory = (250, 251, 252, 253, 254)
    errors = (230, 312, 313, 393, 394, 395)
    links_and_profiling = (449, 1001, 1002, 1003, 1004, 1005)
    for number in (*clocks_and_heat, *traffic, *use, *memory, *errors, *links_and_profiling):
        yield Column(BY_ID[number], is_label=False)


DEFAULT: Final = Collectors(tuple(_default()))
