"""Parses `/api/v1/fleet` into typed rows. Absent values are None; it needs no library of terminals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import to_short_line

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """One GPU or MIG instance of a node. Sizes are in bytes.

    `state` is free, held, active, down or unknown; `free_now` says whether somebody may start there.
    `availability` is the node's own judgment, empty for a node that is too old. `groups` are the users or
    namespaces of `owners`. `held_seconds` is the longest time for which an owner has had it without use.
    """

    node: str
    uuid: str
    gpu: str
    instance: str
    model: str
    profile: str
    state: str
    free_now: bool
    availability: str
    availability_reason: str
    reserved_by: str
    memory_used: int | None
    memory_total: int | None
    utilization: float | None
    power: float | None
    owners: tuple[str, ...]
    groups: tuple[str, ...]
    held_seconds: float | None
    problem: str

    @property
    def place(self) -> str:
        """`3`, or `1/2_0` under MIG."""
        return f"{self.gpu}/{self.instance}" if self.instance else self.gpu

    @property
    def kind(self) -> str:
        """The model, with the profile under MIG."""
        return f"{self.model.removeprefix('NVIDIA ')} {self.profile}".strip() or "unknown model"


@dataclass(frozen=True, slots=True)
class FleetNodeRow:
    """One node. `status` is empty while it can be read, else why not; `since` is when that began.

    `last_read` is the time of the last reading of a node that cannot be read now; times are unix seconds of
    the fleet's clock. `key` is its URL.
    """

    key: str
    name: str
    page: str
    status: str
    since: float | None
    last_read: float | None
    program: str
    simulated: bool
    counted_elsewhere: int
    gpus: tuple[FleetGpu, ...]


@dataclass(frozen=True, slots=True)
class FleetPicture:
    """All nodes at one moment, the lists that cannot be read, and the sums of this week as they were sent."""

    unix: float
    nodes: tuple[FleetNodeRow, ...]
    list_errors: tuple[str, ...]
    week: Mapping[str, Any]

    @property
    def gpus(self) -> tuple[FleetGpu, ...]:
        """All GPUs, in the order of the nodes."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)


def parse_fleet(body: object) -> FleetPicture:
    """Parse a decoded answer. Raises GpuledgerError when it is not one of this version."""
    if not isinstance(body, Mapping) or not isinstance(body.get("nodes"), list):
        raise GpuledgerError("the answer is not that of a gpuledger fleet: give the URL of `gpuledger fleet`")
    if body.get("version") != _VERSION:
        raise GpuledgerError(
            f"this gpuledger reads version {_VERSION} of the fleet's API, not "
            f"'{to_short_line(body.get('version'))[:20]}': use the same version"
        )
    try:
        order = {key: place for place, key in enumerate(body.get("keys") or ())}
        names = Counter(_text(item, "name") for item in body["nodes"])
        nodes = [_node(item, names) for item in body["nodes"]]
        lists = body.get("lists") or ()
        week = body.get("week") or {}
        return FleetPicture(
            _number(body, "now") or 0.0,
            tuple(sorted(nodes, key=lambda node: order.get(node.key, len(order)))),
            tuple(error for one in lists if (error := _text(one, "error"))),
            week if isinstance(week, Mapping) else {},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise GpuledgerError(f"the answer of the fleet cannot be read: {to_short_line(error)}") from None


def _node(item: Mapping[str, Any], names: Mapping[str, int]) -> FleetNodeRow:
    """One node; several of one name, such as cloned machines, are distinguished by their addresses."""
    key, name = _text(item, "key"), _text(item, "name")
    if names[name] > 1:
        name = f"{name} ({key.partition('://')[2]})"
    up = item.get("up") is True
    return FleetNodeRow(
        key,
        name,
        _text(item, "page"),
        "" if up else _text(item, "reason") or "not read",
        _number(item, "since"),
        _number(item, "last_read"),
        _text(item, "gpuledger"),
        item.get("simulated") is True,
        _whole(item, "counted_elsewhere") or 0,
        tuple(_gpus(item.get("gpus") or (), name, up=up)),
    )


def _gpus(items: Any, node: str, *, up: bool) -> Iterator[FleetGpu]:
    for item in items:
        owners = [owner for owner in item.get("owners") or () if isinstance(owner, Mapping)]
        held = [seconds for owner in owners if (seconds := _number(owner, "held_seconds")) is not None]
        yield FleetGpu(
            node=node,
            uuid=_text(item, "uuid"),
            gpu=_text(item, "gpu"),
            instance=_text(item, "instance"),
            model=_text(item, "model"),
            profile=_text(item, "profile"),
            state=_text(item, "state") if up else "unknown",
            free_now=up and item.get("free_now") is True,
            availability=_text(item, "availability"),
            availability_reason=_text(item, "availability_reason"),
            reserved_by=_text(item, "reserved_by"),
            memory_used=_whole(item, "memory_used_bytes"),
            memory_total=_whole(item, "memory_total_bytes"),
            utilization=_number(item, "utilization_ratio"),
            power=_number(item, "power_watts"),
            owners=tuple(_text(owner, "name") for owner in owners),
            groups=tuple(dict.fromkeys(_text(owner, "group") for owner in owners)),
            held_seconds=max(held, default=None),
            problem=_text(item, "problem"),
        )


def _text(item: Mapping[str, Any], key: str) -> str:
    found = item.get(key)
    return to_short_line(found) if isinstance(found, str) else ""


def _number(item: Mapping[str, Any], key: str) -> float | None:
    found = item.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        return None
    return float(found)


def _whole(item: Mapping[str, Any], key: str) -> int | None:
    found = _number(item, key)
    return None if found is None else int(found)
