"""Parses the snapshot of a node into cells: one for each GPU or MIG instance that can run something.

Nodes of other versions are read as far as they agree: an unknown key is ignored, and a missing one is absent,
never 0. All text is cut and printable; it comes from other machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from gpuledger.fleet.node_client import NodeRequestFailed
from gpuledger.model.text import clean_name, to_short_line

# The version of the API that nodes serve.
API_VERSION: Final = "v1"
FREE, HELD, ACTIVE, DOWN, UNKNOWN_STATE = "free", "held", "active", "down", "unknown"
_STATES: Final = {"idle": FREE, "held": HELD, "active": ACTIVE, "unknown": UNKNOWN_STATE}
# Devices of a node: sixteen GPUs with seven instances each, and some more.
MOST_CELLS: Final = 512
_MOST_OWNERS: Final = 16
_LONGEST: Final = 128


class CellOwner(NamedTuple):
    """An owner of a GPU: its name, and the user or namespace by which cells are grouped."""

    name: str
    group: str
    kind: str
    processes: int | None
    held_seconds: float | None


class GpuCell(NamedTuple):
    """One GPU or MIG instance. Sizes are in bytes, power in watts; None is not known.

    `state` is free, held (allocated or with a process, and idle), active, down or unknown. `availability`
    says whether somebody may start there now (`free`), or why not; it is empty for a node that does not
    judge it.
    `reserved_by` is the user that reserved it, empty without a reservation or if the name is not shown.
    """

    uuid: str
    gpu: str
    instance: str
    model: str
    profile: str
    state: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None
    power: float | None
    processes: int | None
    owners: tuple[CellOwner, ...]
    problem: str
    availability: str
    availability_reason: str
    reserved_by: str


class NodeCells(NamedTuple):
    """What a node says of itself at one moment. `unix` is its own time.

    `trouble` is its status if it reads no GPUs now, else empty.
    """

    node: str
    unix: float
    program: str
    simulated: bool
    trouble: str
    cells: tuple[GpuCell, ...]
    complete: bool


def parse_node_report(body: object) -> NodeCells:
    """Parse a decoded snapshot. Raises NodeRequestFailed if it is none, or of another version of the API."""
    if not isinstance(body, Mapping):
        raise NodeRequestFailed("the answer is not a snapshot: is this a gpuledger?", "foreign")
    version = body.get("version")
    if version != API_VERSION:
        raise NodeRequestFailed(
            f"the node serves version {to_short_line(version)[:20]!r} of the API, and this fleet reads "
            f"{API_VERSION}: upgrade the older one",
            "version",
        )
    status, source = _mapping(body, "status"), _mapping(body, "source")
    reads = status.get("readings") is not False and not status.get("paused")
    devices = body.get("devices")
    if not isinstance(devices, list):
        raise NodeRequestFailed("the snapshot has no list of devices: is this a gpuledger?", "foreign")
    unix = _number(body, "unix")
    return NodeCells(
        _text(body, "node"),
        0.0 if unix is None else unix,
        _text(body, "gpuledger"),
        source.get("simulated") is True,
        "" if reads else _text(status, "text") or "no readings",
        tuple(_cells(devices[:MOST_CELLS])),
        body.get("devices_complete") is not False and len(devices) <= MOST_CELLS,
    )


def _cells(devices: list[Any]) -> Iterator[GpuCell]:
    for one in devices:
        if not isinstance(one, Mapping):
            continue
        up = one.get("up") is not False
        # A GPU with MIG instances holds no processes: its instances are cells. Lost, it is one.
        if one.get("holds_processes") is False and up:
            continue
        total, used = _number(one, "memory_total_bytes"), _number(one, "memory_used_bytes")
        yield GpuCell(
            _text(one, "uuid"),
            _text(one, "gpu"),
            _text(one, "instance"),
            _text(one, "name"),
            _text(one, "profile"),
            _STATES.get(str(one.get("state")), UNKNOWN_STATE) if up else DOWN,
            _number(one, "utilization_ratio"),
            None if used is None else int(used),
            None if total is None else int(total),
            _number(one, "power_watts"),
            _whole(one, "processes"),
            tuple(_owners(one.get("owners"))),
            _problem(one),
            _text(one, "availability"),
            _text(one, "availability_reason"),
            _text(one, "reserved_by"),
        )


def _owners(owners: Any) -> Iterator[CellOwner]:
    found = owners if isinstance(owners, list) else []
    for one in found[:_MOST_OWNERS]:
        if isinstance(one, Mapping) and one.get("present") is not False:
            yield CellOwner(
                owner_name(one),
                _text(one, "namespace") or _text(one, "user") or owner_name(one),
                _text(one, "owner_kind"),
                _whole(one, "processes"),
                _number(one, "held_seconds"),
            )


def owner_name(owner: Mapping[str, Any]) -> str:
    """The most specific name of an owner, as the page of a node shows it."""
    pod, job, user, namespace = (_text(owner, key) for key in ("pod", "job", "user", "namespace"))
    if pod:
        return f"{namespace}/{pod}" if namespace else pod
    if job:
        return f"job {job} ({user})" if user else f"job {job}"
    return _text(owner, "container") or user or (f"{namespace}/?" if namespace else "unknown owner")


def _problem(device: Mapping[str, Any]) -> str:
    """Why the GPU is down, else its worst problem that needs somebody."""
    if reason := _text(device, "down_reason"):
        return reason
    problems = device.get("problems")
    for one in problems if isinstance(problems, list) else ():
        if isinstance(one, Mapping) and one.get("level") in ("failure", "warning"):
            return _text(one, "summary")
    return ""


def _mapping(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = body.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(body: Mapping[str, Any], key: str) -> str:
    found = body.get(key)
    return clean_name(found, _LONGEST).replace("\n", " ").replace("\t", " ") if isinstance(found, str) else ""


def _number(body: Mapping[str, Any], key: str) -> float | None:
    found = body.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return float(found) if isfinite(found) and found >= 0 else None
    except OverflowError:
        return None


def _whole(body: Mapping[str, Any], key: str) -> int | None:
    found = _number(body, key)
    return None if found is None else int(found)
