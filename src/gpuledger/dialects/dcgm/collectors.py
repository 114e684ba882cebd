"""The exported fields, from the text of a collectors file in dcgm-exporter's format, and the default fields.

A line is `FIELD, TYPE, HELP`. FIELD is a name of either schema or of dcgm-exporter 1, or an id. TYPE is
label, gauge or counter. `#` begins a comment, a help text can contain commas, and a cell can be quoted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from re import split
from typing import Final

from gpuledger.dialects.dcgm.field_definition import PREFIX, Field, Scale, Schema
from gpuledger.dialects.dcgm.field_tables import FIELDS
from gpuledger.dialects.dcgm.profiling_fields import PROFILING
from gpuledger.model.errors import UsageError
from gpuledger.model.text import clean_name

BY_NAME: Final[Mapping[str, Field]] = {name: field for field in FIELDS for name in field.names}
BY_ID: Final[Mapping[int, Field]] = {number: field for field in FIELDS for number in field.ids}

# Names of dcgm-exporter 1. Later versions accept them and export them under the same name.
_V1_NAMES: Final = {
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
V1_FIELDS: Final[Mapping[str, Field]] = {
    **{f"dcgm_{name}": BY_ID[number] for name, number in _V1_NAMES.items()},
    **{field.name("4.8").lower(): field for field in PROFILING},
}

_INFOROM: Final = "inforom versions are not read"
_CLOCK_EVENTS: Final = (
    "clock events are not counted; use DCGM_FI_DEV_CLOCKS_EVENT_REASONS for their state and "
    "DCGM_FI_DEV_*_VIOLATION for their time"
)

# Fields of NVIDIA's collectors files that gpuledger does not export, with the reason.
UNSUPPORTED_FIELDS: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_BRAND": "brands are not read",
    "DCGM_FI_DEV_GPU_BRAND": "brands are not read",
    "DCGM_FI_DEV_OEM_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_ECC_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_POWER_INFOROM_VER": _INFOROM,
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _INFOROM,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "vGPU licenses are not read",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "single links are not read; use DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_EXP_XID_ERRORS_COUNT": "events of a time window are not counted; use "
    "increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": _CLOCK_EVENTS,
    "DCGM_EXP_CLOCK_EVENTS_TOTAL": _CLOCK_EVENTS,
    "DCGM_EXP_P2P_STATUS": "links between pairs of GPUs are not read",
}


_TYPES: Final = ("label", "gauge", "counter")
# Help texts of dcgm-exporter have one line. Longer ones are truncated, because every page contains them.
_MAX_HELP_LENGTH: Final = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """One field to export, as a family or as a label of all families.

    `written` is its name in the file, empty for an id; `help` is the help text in the file, empty if none.
    """

    field: Field
    is_label: bool
    written: str = ""
    help: str = ""

    def name(self, schema: Schema) -> str:
        """Returns its name in a schema; aliases (in schema 4.8) and names of dcgm-exporter 1 as written."""
        is_alias = schema == "4.8" and self.written.removeprefix(PREFIX) in self.field.aliases
        return self.written if is_alias or self.written in V1_FIELDS else self.field.name(schema)

    def scale(self, schema: Schema) -> Scale:
        """Returns the scale of its values; names of dcgm-exporter 1 always have the old scale."""
        return self.field.scale("4.8" if self.written in V1_FIELDS else schema)


@dataclass(frozen=True, slots=True)
class Collectors:
    """The columns that a collectors file selects, and warnings to log about lines that were not applied."""

    columns: tuple[Column, ...]
    warnings: tuple[str, ...] = ()


def parse_collectors(content: bytes, origin: str, schema: Schema = "4.8") -> Collectors:
    """Parses a collectors file for a schema; `origin` names it in messages.

    An invalid or unsupported line, or one that another line repeats, is skipped with a warning. Raises
    UsageError if no line is valid.
    """
    try:
        lines = split(r"\r\n|\r|\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError(f"{origin} is not UTF-8 text; expected a collectors file of dcgm-exporter") from None
    columns: dict[tuple[str, bool], tuple[int, Column]] = {}
    warnings: list[str] = []
    type_changes: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            column, type_change = _parse_line(line)
        except ValueError as error:
            warnings.append(f"{origin} line {number} is skipped: {error}")
            continue
        # Some published files list a field twice: use the first line, like dcgm-exporter.
        name = column.name(schema)
        first, _ = columns.setdefault((name, column.is_label), (number, column))
        if first != number:
            what = "label" if column.is_label else "metric"
            warnings.append(f"{origin} line {number} is skipped: line {first} exports the {what} {name}")
            continue
        if type_change:
            type_changes[type_change] = None
    if not columns:
        reason = f" ({warnings[0]})" if warnings else ""
        raise UsageError(
            f"{origin} has no field that can be exported{reason}; expected a line such as "
            "'DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).'"
        )
    if type_changes:
        warnings.append(f"{origin}: types were changed to those of DCGM: {', '.join(type_changes)}")
    return Collectors(tuple(column for _, column in columns.values()), tuple(warnings))


def _parse_line(line: str) -> tuple[Column, str]:
    """Returns the column, and a text if its type differs from the given one. Raises ValueError."""
    cells = _cells(line)
    if len(cells) < 2:
        raise ValueError("expected FIELD, TYPE, HELP")
    name, kind = cells[0], cells[1].lower()
    text = clean_name(", ".join(cells[2:]), _MAX_HELP_LENGTH)
    field = _find(name)
    if kind not in _TYPES:
        raise ValueError(f"the type '{cells[1]}' is invalid; expected one of {', '.join(_TYPES)}")
    if kind == "label" and field.labels:
        raise ValueError(f"{name} cannot be a label: it is a metric with own labels")
    is_label = kind == "label" or field.type == "text"
    actual = "label" if is_label else field.type
    column = Column(field, is_label, "" if name.isdigit() else name, text)
    return column, f"{name} is a {actual}" if actual != kind else ""


def _cells(line: str) -> list[str]:
    import csv

    try:
        (cells,) = csv.reader([line], skipinitialspace=True)
    except csv.Error as error:
        raise ValueError(f"the line is not CSV ({error})") from None
    return [cell.strip() for cell in cells]


def _find(name: str) -> Field:
    """Returns the field with a name or an id. Raises ValueError, with the most similar name."""
    if name.isdecimal() and name.isascii():
        # Ids have at most five digits; int() of a very long text is slow.
        found = BY_ID.get(int(name)) if len(name) <= 5 else None
        if found is None:
            raise ValueError(f"the field id {name[:20]} is unknown or not supported by gpuledger")
        return found
    if name in UNSUPPORTED_FIELDS:
        raise ValueError(f"{name}: {UNSUPPORTED_FIELDS[name]}")
    field = BY_NAME.get(name) or V1_FIELDS.get(name)
    if field is None:
        raise ValueError(f"unknown field '{name[:80]}'; {_hint(name[:80])}")
    return field


def _hint(name: str) -> str:
    # Imported lazily: only error messages need it.
    from difflib import get_close_matches

    near = get_close_matches(name, [*BY_NAME, *V1_FIELDS], n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else "expected a name such as DCGM_FI_DEV_GPU_TEMP, or an id"


def _default() -> Iterable[Column]:
    """Yields the default fields of dcgm-exporter and those that its users commonly add."""
    for number in (1, 2, 50, 53, 54, 65, 66, 500, 67, 69, 76, 77):
        yield Column(BY_ID[number], is_label=True)
    clocks_and_power = (100, 101, 140, 150, 155, 190, 156)
    traffic = (1009, 1010, 202)
    utilization = (203, 204, 206, 207)
    memory = (250, 251, 252, 253, 254)
    errors = (230, 312, 313, 393, 394, 395)
    links_and_profiling = (449, 1001, 1002, 1003, 1004, 1005)
    for number in (*clocks_and_power, *traffic, *utilization, *memory, *errors, *links_and_profiling):
        yield Column(BY_ID[number], is_label=False)


DEFAULT_COLLECTORS: Final = Collectors(tuple(_default()))
