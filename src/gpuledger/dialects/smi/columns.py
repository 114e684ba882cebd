"""Families of nvidia-smi's columns: one per numeric column, and `gpu_info` with text columns as labels."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import isfinite
from re import compile as pattern
from typing import Final

from gpuledger.dialects.smi.emulated_row import emulate_row
from gpuledger.dialects.smi.fields import ONLY_NVML, column_family, declare_smi_family
from gpuledger.model.devices import Gpu
from gpuledger.model.enumeration_words import FABRIC_STATES, RECOVERY_ACTIONS
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.quantities import COLUMNS
from gpuledger.model.snapshot import Snapshot

_WORDS: Final = {
    "enabled": 1,
    "yes": 1,
    "active": 1,
    "disabled": 0,
    "no": 0,
    "not active": 0,
    "default": 0,
    "exclusive_thread": 1,
    "prohibited": 2,
    "exclusive_process": 3,
}

# Fields with the words of an NVML enumeration. Other words have no value, even if they contain digits.
_ENUMERATIONS: Final[Mapping[str, Mapping[str, int]]] = {
    "gpu_recovery_action": RECOVERY_ACTIONS,
    "fabric.state": FABRIC_STATES,
}

# Hexadecimal according to `--help-query-gpu`, even without the prefix 0x.
_HEXADECIMAL: Final = frozenset(
    {
        "pci.domain",
        "pci.bus",
        "pci.device",
        "pci.baseClass",
        "pci.subClass",
        "pci.device_id",
        "pci.sub_device_id",
    }
)
_NUMBER = pattern(r"[+-]?(?:[0-9]*\.)?[0-9]+")
_HEX = pattern(r"[0-9A-Fa-f]{1,16}")


@lru_cache(maxsize=2048)
def parse_cell(cell: str, field: str, factor: float) -> float | None:
    """Returns the value of a cell in the family's unit; None if it is not exactly one finite number."""
    text = cell.strip()
    if text[:2] == "0x" or field in _HEXADECIMAL:
        digits = text.removeprefix("0x")
        return int(digits, 16) if _HEX.fullmatch(digits) else None
    lowered = text.lower()
    names = _ENUMERATIONS.get(field)
    if names is not None:
        return names.get(lowered)
    if lowered in _WORDS:
        return _WORDS[lowered]
    found = _NUMBER.findall(lowered)
    if len(found) != 1:
        return None
    value = float(found[0]) * factor
    return value if isfinite(value) else None


def is_unknown_word(cell: str, field: str) -> bool:
    """Returns whether the field is an enumeration without this word; words for absence are known."""
    text = cell.strip()
    absent = text[:1] + text[-1:] == "[]" or text.upper() in ("", "N/A")
    names = _ENUMERATIONS.get(field)
    return names is not None and not absent and text.lower() not in names


log = logging.getLogger("gpuledger.smi")

_QUERY: Final = "nvidia-smi --query-gpu"
# Labels in alphabetical order, like those of Prometheus's client library.
_INFO: Final = (
    ("compute_cap", "compute_cap"),
    ("driver_model_current", "driver_model.current"),
    ("driver_model_pending", "driver_model.pending"),
    ("driver_version", "driver_version"),
    ("index", "index"),
    ("name", "name"),
    ("pci_bus_id", "pci.bus_id"),
    ("pci_sub_device_id", "pci.sub_device_id"),
    ("serial", "serial"),
    ("uuid", "uuid"),
    ("vbios_version", "vbios_version"),
)
GPU_INFO: Final = declare_smi_family(
    "gpu_info",
    "1 for each GPU, with its text fields as nvidia-smi prints them.",
    tuple(sorted(["cuda_version", *(label for label, _ in _INFO)])),
    _QUERY,
)
# Bounds the memory for warnings that were logged: a driver could print any number of headers.
_MAX_WARNINGS: Final = 256
# Rows computed from quantities have as many sets of headers as there are combinations of present quantities.
_MAX_HEADER_SETS: Final = 64


def uuid_label(uuid: str) -> str:
    """Returns the `uuid` label of a UUID: lower case, without `gpu-` or `mig-`."""
    return uuid.strip().lower().removeprefix("gpu-").removeprefix("mig-")


@lru_cache(maxsize=1024)
def column_spec(header: str) -> FamilySpec:
    """Returns the declaration of the family of one column; its help is the header as printed."""
    column = column_family(header)
    source = "NVML" if column.field.startswith(ONLY_NVML) else f"{_QUERY}={column.field}"
    return FamilySpec(column.name, "gauge", header, ("uuid",), source=source)


class ColumnFamilies:
    """Creates families of columns; `reserved` are names that columns must not use. Logs each problem once."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._reserved = frozenset(reserved)
        self._warned: set[str] = set()
        # Exportable headers by all headers of a row: GPUs of one machine can have different headers.
        self._exportable: dict[tuple[str, ...], tuple[str, ...]] = {}

    def families(self, snapshot: Snapshot) -> list[Family]:
        """Returns `gpu_info`, then the columns in the order of their rows."""
        info = Family(GPU_INFO)
        families: dict[str, Family] = {}
        for gpu, cells in _rows(snapshot):
            uuid = uuid_label(gpu.uuid)
            labels = {label: cells.get(field, "") for label, field in _INFO}
            # Since CUDA 14 the version of the driver has another name.
            labels["driver_version"] = labels["driver_version"] or cells.get("kmd_version", "")
            labels |= {"uuid": uuid, "cuda_version": snapshot.source.cuda_version}
            info.add(1, *(labels[name] for name in GPU_INFO.labels))
            for header in self._exportable_headers(tuple(cells)):
                column = column_family(header)
                value = parse_cell(cells[header], column.field, column.factor)
                if value is not None:
                    family = families.get(column.name)
                    if family is None:
                        family = families[column.name] = Family(column_spec(header))
                    family.add(value, uuid)
                elif is_unknown_word(cells[header], column.field):
                    self._warn(
                        f"{column.field}: {cells[header]}",
                        f"unknown value '{cells[header]}' of nvidia-smi's {column.field}: not exported",
                    )
        return [info, *families.values()]

    def _exportable_headers(self, titles: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the headers with a family name that is unique and not reserved."""
        exportable = self._exportable.get(titles)
        if exportable is None:
            if len(self._exportable) >= _MAX_HEADER_SETS:
                self._exportable.clear()
            names: dict[str, list[str]] = {}
            for header in titles:
                names.setdefault(column_family(header).name, []).append(header)
            unique = {headers[0] for name, headers in names.items() if self._is_exportable(name, headers)}
            exportable = self._exportable[titles] = tuple(header for header in titles if header in unique)
        return exportable

    def _is_exportable(self, name: str, headers: list[str]) -> bool:
        if len(headers) > 1:
            self._warn(
                name,
                f"the nvidia-smi columns {', '.join(headers)} would all be named {name}: none is exported",
            )
            return False
        if name in self._reserved:
            self._warn(name, f"the nvidia-smi column {headers[0]} would be named {name}: not exported")
            return False
        if column_family(headers[0]).unknown_unit:
            self._warn(
                name, f"unknown unit of the nvidia-smi column {headers[0]}: exported unscaled as {name}"
            )
        return True

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(key)
            log.warning("%s", text)


def _rows(snapshot: Snapshot) -> Iterator[tuple[Gpu, Mapping[str, str]]]:
    """Yields the row of each Gpu: printed by nvidia-smi or, if it was not queried, emulated.

    A source that is not nvidia-smi can have read further columns than quantities. A row that nvidia-smi was
    queried for but did not return is not emulated.
    """
    was_queried = any(run.name == COLUMNS.key for run in snapshot.collected)
    gpus = [reading for reading in snapshot.readings if isinstance(reading.device, Gpu)]
    for reading in gpus:
        if was_queried and reading.raw:
            yield reading.device.gpu, reading.raw
        elif reading.up and not was_queried:
            row = emulate_row(reading, snapshot.source, len(gpus))
            yield reading.device.gpu, {**row, **reading.raw}
