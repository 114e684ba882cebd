"""Parses `/api/v1/snapshot` into typed rows. Absent values are None."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from typing import Any, TypeVar, cast

from rich.cells import cell_len

from gpuledger.model.errors import GpuledgerError

# Some scripts use two combining marks per letter; more are an attack on the display.
_MARKS = 2
_LONGEST = 256


# The same few names recur in every snapshot.
@lru_cache(maxsize=16_384)
def printable_name(name: str, longest: int = _LONGEST) -> str:
    """The first characters as one printable line of predictable width; others are escaped, as `\\x1b`."""
    if name.isascii() and name.isprintable():
        return name[:longest]
    return "".join(_safe(name[:longest]))


def _safe(name: str) -> list[str]:
    parts: list[str] = []
    marks = 0
    for sign in name:
        category = unicodedata.category(sign)
        marks = marks + 1 if category == "Mn" else 0
        # Without a letter before it, a mark would combine with the text to its left. Variation selectors
        # (category Mn) change the width of the character before them, and terminals disagree by how much.
        misplaced = marks > _MARKS or (marks == 1 and (not parts or parts[-1] == " "))
        selector = 0xFE00 <= ord(sign) <= 0xFE0F or 0xE0100 <= ord(sign) <= 0xE01EF
        # Modifiers such as a skin tone take no cell.
        modifier = category != "Mn" and cell_len(sign) == 0
        if not sign.isprintable() or category == "Me" or misplaced or selector or modifier:
            parts.append(sign.encode("unicode_escape").decode() if ord(sign) != 0x5C else sign)
        else:
            parts.append(sign)
    return parts


VERSION = "v1"
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process or device. Here and below, a field is named as its JSON key."""

    owner_kind: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    job: str = ""
    user: str = ""

    @property
    def text(self) -> str:
        """The shortest identifying name; empty when no owner is known."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.job:
            return f"job {self.job} {self.user}".rstrip()
        return self.container or self.user


@dataclass(frozen=True, slots=True)
class DeviceOwner:
    """An owner of a device, and the seconds for which it has held the device without work."""

    owner: Owner
    present: bool = False
    held_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """What is wrong with a GPU, and what to do about it.

    `level` is `failure`, `warning`, or `info`, which needs nobody. `since` is when it began or happened, in
    unix seconds; `ratio` is its share of the last `observed_seconds`.
    """

    kind: str = ""
    level: str = ""
    label: str = ""
    summary: str = ""
    remedy: str = ""
    since: float | None = None
    count: int | None = None
    ratio: float | None = None
    observed_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceXid:
    """An Xid of a GPU, and the only process that was on it then; no pid if there was none or several."""

    xid: int | None = None
    unix: float = 0.0
    pid: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row for a device. `gpu` is the index as text, `instance` is `GI_CI` or empty."""

    uuid: str = ""
    gpu: str = ""
    instance: str = ""

    @property
    def device_key(self) -> tuple[str, str]:
        """Identifies the device."""
        return (self.uuid, self.instance)

    @property
    def place(self) -> str:
        """`3`, or `1/2_0` under MIG."""
        return f"{self.gpu}/{self.instance}" if self.instance else self.gpu


@dataclass(frozen=True, slots=True)
class DeviceRow(_Row):
    """One GPU or MIG instance."""

    name: str = ""
    vendor: str = ""
    profile: str = ""
    up: bool = True
    holds_processes: bool = True
    state: str = ""
    utilization_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    memory_shared_with: str = ""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    processes: int | None = None
    energy_joules: float | None = None
    owners: tuple[DeviceOwner, ...] = ()
    down_reason: str = ""
    reserved_by: str = ""
    problems: tuple[ProblemRow, ...] = ()
    xids: tuple[DeviceXid, ...] = ()

    @property
    def serious(self) -> tuple[ProblemRow, ...]:
        """The problems that need somebody, the worst first."""
        return tuple(problem for problem in self.problems if problem.level != "info")

    @property
    def present(self) -> tuple[DeviceOwner, ...]:
        """The owners that are present now."""
        return tuple(holder for holder in self.owners if holder.present)


RowKey = tuple[str, str, int | None, float | None]


@dataclass(frozen=True, slots=True)
class ProcessRow(_Row):
    """One process on one device, or with `count` all those of the device beyond its process limit."""

    owner: Owner = field(default_factory=Owner)
    pid: int | None = None
    count: int | None = None
    command: str = ""
    # With arguments; only of this machine's processes, and only if the user may read them.
    command_line: str = ""
    types: str = ""
    memory_bytes: float | None = None
    sm_ratio: float | None = None
    memory_bandwidth_ratio: float | None = None
    power_watts: float | None = None
    joules: float | None = None
    measured_joules: float | None = None
    start_unix: float | None = None
    start_exact: bool = True
    unresolved: str = ""

    @property
    def key(self) -> RowKey:
        """Identifies the process across snapshots."""
        return (self.uuid, self.instance, self.pid, self.start_unix)


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A parsed snapshot. `unix` is the node's time, `interval_seconds` the time between its reads."""

    source: str
    status: str
    node: str = ""
    unix: float = 0.0
    simulated: bool = False
    detail: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    healthy: bool = False
    readings: bool = False
    paused: bool = False
    interval_seconds: float = 1.0
    devices_complete: bool = True
    devices: tuple[DeviceRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()


def parse_snapshot(body: object) -> NodeSnapshot:
    """Parse a decoded JSON body. Raises GpuledgerError when it is not a snapshot of this version."""
    if not isinstance(body, Mapping):
        raise GpuledgerError("the response is not a gpuledger snapshot: expected a JSON object")
    if body.get("version") != VERSION:
        version = printable_name(str(body.get("version"))[:40])
        raise GpuledgerError(
            f"this top reads snapshots of version {VERSION}, not '{version}': use the same gpuledger version"
        )
    try:
        source, status = body["source"], body["status"]
        return _parse(
            NodeSnapshot,
            {**source, **status, **body},
            source=_text("name", source.get("name", "")),
            status=_text("text", status.get("text", "")),
            devices=tuple(_device(item) for item in _list(body, "devices")),
            processes=tuple(_process(item) for item in _list(body, "processes")),
        )
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise GpuledgerError(
            f"the response is not a gpuledger snapshot: {printable_name(str(error))[:80]}"
        ) from None


def _device(item: Mapping[str, Any]) -> DeviceRow:
    owners = (_parse(DeviceOwner, one, owner=_parse(Owner, one)) for one in _list(item, "owners"))
    problems = (_parse(ProblemRow, one) for one in _list(item, "problems"))
    xids = (_parse(DeviceXid, one) for one in _list(item, "xids"))
    return _parse(DeviceRow, item, owners=tuple(owners), problems=tuple(problems), xids=tuple(xids))


def _process(item: Mapping[str, Any]) -> ProcessRow:
    types = "+".join(printable_name(str(kind)) for kind in _list(item, "types"))
    return _parse(ProcessRow, item, types=types, owner=_parse(Owner, item))


def _parse(row: type[R], item: Mapping[str, Any], **parsed: object) -> R:
    """The row of a JSON object; a field that is absent or null has its default."""
    for one in fields(cast("type", row)):
        found = item.get(one.name)
        if one.name not in parsed and found is not None:
            parsed[one.name] = _PARSERS[one.type](one.name, found)
    return row(**parsed)


def _list(item: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = item.get(key) or ()
    if not isinstance(found, list | tuple):
        raise TypeError(f"{key} is not a list")
    return found


def _text(key: str, found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{key} is not a string")
    return printable_name(found)


def _number(key: str, found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise TypeError(f"{key} is not a number")
    return float(found)


def _whole(key: str, found: object) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise TypeError(f"{key} is not an integer")
    return found


# By the type of the field.
_PARSERS: Mapping[Any, Callable[[str, object], object]] = {
    "str": _text,
    "bool": lambda _, found: bool(found),
    "float": _number,
    "float | None": _number,
    "int | None": _whole,
}
