"""Parses `/api/v1/snapshot` into typed rows. Absent values are None."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from rich.cells import cell_len

from gpuledger.model.errors import GpuledgerError

# Some scripts use two combining marks per letter; more are an attack on the display.
_MARKS = 2
_LONGEST = 256


# The same few names recur in every snapshot.
@lru_cache(maxsize=16_384)
def printable_name(name: str) -> str:
    """The name as one printable line of predictable width; other characters are escaped, as `\\x1b`."""
    if name.isascii() and name.isprintable():
        return name[:_LONGEST]
    return "".join(_safe(name[:_LONGEST]))


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


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a process or device; `kind` is the label `owner_kind`."""

    kind: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    user: str = ""
    job: str = ""

    @property
    def text(self) -> str:
        """The shortest identifying name; empty when no owner is known."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.job:
            return f"job {self.job} {self.user}".rstrip()
        return self.container or self.user

    @property
    def known(self) -> bool:
        """Whether the owner has a name."""
        return bool(self.text)


@dataclass(frozen=True, slots=True)
class DeviceOwner:
    """An owner of a device, and the seconds for which it has held the device without work."""

    owner: Owner
    present: bool
    held: float | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One GPU or MIG instance. `gpu` is the index as text, `instance` is `GI_CI` or empty."""

    uuid: str
    gpu: str
    instance: str
    name: str
    profile: str
    up: bool
    holds: bool
    state: str | None
    utilization: float | None
    memory_used: float | None
    memory_total: float | None
    power: float | None
    power_limit: float | None
    temperature: float | None
    processes: int | None
    joules: float | None
    holders: tuple[DeviceOwner, ...] = ()

    @property
    def present(self) -> tuple[DeviceOwner, ...]:
        """The owners that are present now."""
        return tuple(holder for holder in self.holders if holder.present)

    @property
    def place(self) -> str:
        """`3`, or `1/2_0` under MIG."""
        return _place(self.gpu, self.instance)


RowKey = tuple[str, str, int | None, float | None]


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process on one device, or with `count` all those of the device beyond its process limit."""

    uuid: str
    gpu: str
    instance: str
    pid: int | None
    count: int | None
    command: str
    types: str
    owner: Owner
    memory: float | None
    sm: float | None
    bandwidth: float | None
    watts: float | None
    joules: float | None
    measured: float | None
    start: float | None
    exact: bool
    unresolved: str

    @property
    def key(self) -> RowKey:
        """Identifies the process across snapshots."""
        return (self.uuid, self.instance, self.pid, self.start)

    @property
    def place(self) -> str:
        """`3`, or `1/2_0` under MIG."""
        return _place(self.gpu, self.instance)


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A parsed snapshot. `unix` is the node's time, `interval` the seconds between its reads."""

    node: str
    unix: float
    source: str
    simulated: bool
    detail: str
    driver: str
    cuda: str
    status: str
    healthy: bool
    readings: bool
    paused: bool
    interval: float
    complete: bool
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
        return _snapshot(body)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise GpuledgerError(
            f"the response is not a gpuledger snapshot: {printable_name(str(error))[:80]}"
        ) from None


def _snapshot(body: Mapping[str, Any]) -> NodeSnapshot:
    source, status = body["source"], body["status"]
    return NodeSnapshot(
        node=_text(body, "node"),
        unix=_number(body, "unix") or 0.0,
        source=_text(source, "name"),
        simulated=bool(source.get("simulated")),
        detail=_text(source, "detail"),
        driver=_text(source, "driver_version"),
        cuda=_text(source, "cuda_version"),
        status=_text(status, "text"),
        healthy=bool(status.get("healthy")),
        readings=bool(status.get("readings")),
        paused=bool(status.get("paused")),
        interval=_number(status, "interval_seconds") or 1.0,
        complete=bool(body.get("devices_complete", True)),
        devices=tuple(_device(item) for item in _list(body, "devices")),
        processes=tuple(_process(item) for item in _list(body, "processes")),
    )


def _device(item: Mapping[str, Any]) -> DeviceRow:
    return DeviceRow(
        uuid=_text(item, "uuid"),
        gpu=_text(item, "gpu"),
        instance=_text(item, "instance"),
        name=_text(item, "name"),
        profile=_text(item, "profile"),
        up=bool(item.get("up", True)),
        holds=bool(item.get("holds_processes", True)),
        state=_text(item, "state") or None,
        utilization=_number(item, "utilization_ratio"),
        memory_used=_number(item, "memory_used_bytes"),
        memory_total=_number(item, "memory_total_bytes"),
        power=_number(item, "power_watts"),
        power_limit=_number(item, "power_limit_watts"),
        temperature=_number(item, "temperature_celsius"),
        processes=_whole(item, "processes"),
        joules=_number(item, "energy_joules"),
        holders=tuple(_holder(one) for one in _list(item, "owners")),
    )


def _holder(item: Mapping[str, Any]) -> DeviceOwner:
    return DeviceOwner(
        owner=_owner(item),
        present=bool(item.get("present")),
        held=_number(item, "held_seconds"),
    )


def _owner(item: Mapping[str, Any]) -> Owner:
    return Owner(
        kind=_text(item, "owner_kind"),
        namespace=_text(item, "namespace"),
        pod=_text(item, "pod"),
        container=_text(item, "container"),
        user=_text(item, "user"),
        job=_text(item, "job"),
    )


def _process(item: Mapping[str, Any]) -> ProcessRow:
    return ProcessRow(
        uuid=_text(item, "uuid"),
        gpu=_text(item, "gpu"),
        instance=_text(item, "instance"),
        pid=_whole(item, "pid"),
        count=_whole(item, "count"),
        command=_text(item, "command"),
        types="+".join(printable_name(str(kind)) for kind in _list(item, "types")),
        owner=_owner(item),
        memory=_number(item, "memory_bytes"),
        sm=_number(item, "sm_ratio"),
        bandwidth=_number(item, "memory_bandwidth_ratio"),
        watts=_number(item, "power_watts"),
        joules=_number(item, "joules"),
        measured=_number(item, "measured_joules"),
        start=_number(item, "start_unix"),
        exact=bool(item.get("start_exact", True)),
        unresolved=_text(item, "unresolved"),
    )


def _place(gpu: str, instance: str) -> str:
    return f"{gpu}/{instance}" if instance else gpu


def _list(item: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = item.get(key) or ()
    if not isinstance(found, list | tuple):
        raise TypeError(f"{key} is not a list")
    return found


def _text(item: Mapping[str, Any], key: str) -> str:
    found = item.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise TypeError(f"{key} is not a string")
    return printable_name(found)


def _number(item: Mapping[str, Any], key: str) -> float | None:
    found = item.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise TypeError(f"{key} is not a number")
    return float(found)


def _whole(item: Mapping[str, Any], key: str) -> int | None:
    found = item.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int):
        raise TypeError(f"{key} is not an integer")
    return found
