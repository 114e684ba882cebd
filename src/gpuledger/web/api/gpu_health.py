"""The JSON of a GPU's health: problems, throttling, Xids, ECC, repairs of memory, and links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpuledger.model import quantities as q
from gpuledger.model.devices import Instance
from gpuledger.model.gpu_problems import GpuProblem, find_problems
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState, ThrottleRow, XidRow
from gpuledger.model.snapshot import Reading, nvlinks
from gpuledger.model.xids import find_xid, xid_advice
from gpuledger.web.api.json_values import VERSION, JsonObject, whole
from gpuledger.web.api.shown_quantities import HEALTH_COUNTS

# Xids of a device in the snapshot; `/api/v1/xids` has all.
_NEWEST: Final = 5


def health_fields(reading: Reading, ledger: LedgerState, unix: float) -> JsonObject:
    """The JSON fields of a device's health at the time `unix`; empty for an Instance."""
    is_gpu = not isinstance(reading.device, Instance)
    uuid = reading.device.gpu.uuid
    throttling = ledger.throttling.get(uuid, ()) if is_gpu else ()
    xids = [row for row in ledger.xid_log if row.uuid == uuid] if is_gpu else []
    counts = {
        name: {key: whole(reading.get(quantity)) for key, quantity in quantities.items()}
        for name, quantities in HEALTH_COUNTS.items()
    }
    return {
        "problems": [_problem(one) for one in find_problems(reading, throttling, xids, unix)],
        "throttling": [_throttling(row) for row in throttling],
        "xids": [xid_fields(row, reading.device.gpu.pci_bus_id) for row in _newest(xids)],
        **counts,
        "memory_repair": {
            **counts["memory_repair"],
            "pending": _any(reading, q.ROW_REMAP_PENDING, q.RETIRED_PAGES_PENDING),
            "failed": _any(reading, q.ROW_REMAP_FAILURE),
        },
        "nvlink": {
            "up": _links(reading, q.NVLINKS_UP),
            "down": _links(reading, q.NVLINKS_DOWN),
            **counts["nvlink"],
        },
    }


def xid_fields(row: XidRow, bus_id: str) -> JsonObject:
    """The JSON of an Xid with NVIDIA's action; `bus_id` is the GPU's PCI bus id, if known."""
    xid = find_xid(row.xid)
    return {
        "xid": row.xid,
        "meaning": xid.meaning,
        "action": xid.action,
        "advice": xid_advice(row.xid, bus_id),
        "instance": row.instance,
        "unix": row.last,
        "first_unix": row.first,
        "count": row.times,
        "pid": row.pid,
        "command": row.command,
    }


def list_xids(state: NodeState, gpu: str | None) -> JsonObject:
    """The JSON of all kept Xids, or those of the GPU with this index or UUID."""
    readings = state.snapshot.readings if state.snapshot is not None else ()
    gpus = {reading.device.gpu.uuid: reading.device.gpu for reading in readings}
    rows = []
    for row in reversed(state.ledger.xid_log):
        known = gpus.get(row.uuid)
        index = None if known is None else str(known.index)
        if gpu in (None, "", row.uuid, index):
            bus_id = "" if known is None else known.pci_bus_id
            rows.append({"uuid": row.uuid, "gpu": index, **xid_fields(row, bus_id)})
    return {"version": VERSION, "xids": rows}


def _newest(xids: Sequence[XidRow]) -> Iterable[XidRow]:
    return list(reversed(xids))[:_NEWEST]


def _problem(one: GpuProblem) -> JsonObject:
    return {
        "kind": one.kind,
        "level": one.level,
        "label": one.label,
        "summary": one.summary,
        "remedy": one.remedy,
        "since": one.since,
        "count": one.times,
        "ratio": None if one.ratio is None else round(one.ratio, 4),
        "observed_seconds": None if one.observed is None else round(one.observed, 3),
    }


def _throttling(row: ThrottleRow) -> JsonObject:
    return {
        "reason": row.reason,
        "active": row.since is not None,
        "since": row.since,
        "seconds": round(row.seconds, 3),
        "observed_seconds": round(row.observed, 3),
        "ratio": round(row.ratio, 4),
        "estimated": row.is_estimate,
    }


def _any(reading: Reading, *flags: Quantity) -> bool | None:
    reported = [reading.get(flag) for flag in flags if reading.get(flag) is not None]
    return any(reported) if reported else None


def _links(reading: Reading, mask: Quantity) -> list[int] | None:
    links = nvlinks(reading, mask)
    return None if links is None else list(links)
