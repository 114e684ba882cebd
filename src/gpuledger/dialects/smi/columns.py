"""A family for each column of nvidia-smi, and `gpu_info` for what is text in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import isfinite
from re import compile as pattern
from typing import Final

from gpuledger.dialects.smi.fields import PREFIX, told_as
from gpuledger.dialects.smi.printed import printed
from gpuledger.model.devices import Gpu
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.quantities import COLUMNS
from gpuledger.model.snapshot import Snapshot, SourceInfo

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

# Fields whose words are an enumeration of NVML's (nvmlDeviceGpuRecoveryAction_t, nvmlGpuFabricState_t): other
# words are no value, whatever digits they have.
_RECOVERY: Final = {
    "none": 0,
    "reset": 1,
    "gpu reset": 1,
    "reboot": 2,
    "node reboot": 2,
    "drain p2p": 3,
    "drain and reset": 4,
    "recover imex domain": 5,
    "bus reset": 6,
    "system reboot": 7,
}
_FABRIC: Final = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
_ENUMERATIONS: Final[Mapping[str, Mapping[str, int]]] = {
    "gpu_recovery_action": _RECOVERY,
    "fabric.state": _FABRIC,
}

# `--help-query-gpu` says that these are hexadecimal, and so they are where 0x is not written.
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
def number(cell: str, field: str, factor: float) -> float | None:
    """The value of a cell in the family's unit; None for what is absent or no single finite number."""
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
    """Whether an enumeration has no value for this word, which is not one that says that there is none."""
    text = cell.strip()
    absent = text[:1] + text[-1:] == "[]" or text.upper() in ("", "N/A")
    names = _ENUMERATIONS.get(field)
    return names is not None and not absent and text.lower() not in names


log = logging.getLogger("gpuledger.smi")

_QUERY: Final = "nvidia-smi --query-gpu"
# Labels in alphabetical order, in which Prometheus's own library writes them.
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
GPU_INFO: Final = FamilySpec(
    f"{PREFIX}gpu_info",
    "gauge",
    "1 for each GPU, with what is text of it as nvidia-smi prints it.",
    tuple(sorted(["cuda_version", *(label for label, _ in _INFO)])),
    source=_QUERY,
)
# Headers that are remembered as warned of; a driver that invents more is not worth the memory.
_MOST_WARNINGS: Final = 256
# Of quantities each combination of what is told now and what is not is a shape of its own.
_MOST_SHAPES: Final = 64


def uuid_label(uuid: str) -> str:
    """A UUID as the `uuid` label has it: lower case, without `gpu-` or `mig-`."""
    return uuid.strip().lower().removeprefix("gpu-").removeprefix("mig-")


@lru_cache(maxsize=1024)
def column_spec(header: str) -> FamilySpec:
    """The declaration of the family of one column; its help is the header as printed."""
    told = told_as(header)
    return FamilySpec(told.name, "gauge", header, ("uuid",), source=f"{_QUERY}={told.field}")


class Columns:
    """Tells columns. `reserved` are names that no column may take. What is odd is warned of once."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._reserved = frozenset(reserved)
        self._warned: set[str] = set()
        # By the headers of a row: GPUs of one machine may have different ones.
        self._chosen: dict[tuple[str, ...], tuple[str, ...]] = {}

    def families(self, snapshot: Snapshot) -> list[Family]:
        """`gpu_info`, then the columns in nvidia-smi's order."""
        info = Family(GPU_INFO)
        families: dict[str, Family] = {}
        for gpu, cells in _rows(snapshot):
            uuid = uuid_label(gpu.uuid)
            _tell_info(info, uuid, cells, snapshot.source)
            for header in self._choose(tuple(cells)):
                told = told_as(header)
                value = number(cells[header], told.field, told.factor)
                if value is not None:
                    family = families.get(told.name)
                    if family is None:
                        family = families[told.name] = Family(column_spec(header))
                    family.add(value, uuid)
                elif is_unknown_word(cells[header], told.field):
                    self._warn(
                        f"{told.field}: {cells[header]}",
                        f"nvidia-smi says '{cells[header]}' of {told.field}, which has no number: not told",
                    )
        return [info, *families.values()]

    def _choose(self, titles: tuple[str, ...]) -> tuple[str, ...]:
        """The headers that can be told: each name has one claimant, and none is another family's."""
        chosen = self._chosen.get(titles)
        if chosen is None:
            if len(self._chosen) >= _MOST_SHAPES:
                self._chosen.clear()
            names: dict[str, list[str]] = {}
            for header in titles:
                names.setdefault(told_as(header).name, []).append(header)
            free = {claimants[0] for name, claimants in names.items() if self._is_free(name, claimants)}
            chosen = self._chosen[titles] = tuple(header for header in titles if header in free)
        return chosen

    def _is_free(self, name: str, claimants: list[str]) -> bool:
        strange = told_as(claimants[0]).strange
        if len(claimants) > 1:
            which = ", ".join(claimants)
            self._warn(name, f"the columns {which} of nvidia-smi would all be {name}: none is told")
            return False
        if name in self._reserved:
            self._warn(name, f"the column {claimants[0]} of nvidia-smi would be {name}: not told")
            return False
        if strange:
            self._warn(
                name,
                f"the unit of {claimants[0]} is not known: told as {name}, as nvidia-smi prints the number",
            )
        return True

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(key)
            log.warning("%s", text)


def _rows(snapshot: Snapshot) -> Iterator[tuple[Gpu, Mapping[str, str]]]:
    """The row of each Gpu: as nvidia-smi printed it or, where it was not asked to, as it would have.

    One that was asked for and did not come is not made up.
    """
    asked = any(part.name == COLUMNS.key for part in snapshot.collected)
    gpus = [reading for reading in snapshot.readings if isinstance(reading.device, Gpu)]
    for reading in gpus:
        if reading.raw:
            yield reading.device.gpu, reading.raw
        elif reading.up and not asked:
            yield reading.device.gpu, printed(reading, snapshot.source, len(gpus))


def _tell_info(info: Family, uuid: str, cells: Mapping[str, str], source: SourceInfo) -> None:
    labels = {label: cells.get(field, "") for label, field in _INFO}
    labels |= {"uuid": uuid, "cuda_version": source.cuda_version}
    info.add(1, *(labels[name] for name in GPU_INFO.labels))
