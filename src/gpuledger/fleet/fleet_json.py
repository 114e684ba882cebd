"""The JSON of a node of the fleet, for its page, `top --fleet`, `free --fleet` and programs."""

from __future__ import annotations

import json
from typing import Any, Final

from gpuledger.fleet.fleet_node import FleetNode
from gpuledger.fleet.gpu_cells import FREE, UNKNOWN_STATE, CellOwner, GpuCell

# Numbers are rounded to what a person can see, so that a node at rest does not change.
_MIB: Final = 1 << 20
_MEMORY_STEP: Final = 64 * _MIB
_WATTS: Final = 5


def encode_node(node: FleetNode, claimed: frozenset[str]) -> bytes:
    """The JSON of a node. GPUs in `claimed` count as those of another node, and are left out here."""
    return json.dumps(node_fields(node, claimed), separators=(",", ":")).encode("ascii")


def node_fields(node: FleetNode, claimed: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The fields of a node; see `docs/fleet.md`. GPUs of a node that cannot be read are unknown."""
    report, status = node.report, node.status
    cells = () if report is None else report.cells
    own = [cell for cell in cells if cell.uuid not in claimed]
    skew = node.skew
    return {
        "key": node.address.url,
        "name": node.name,
        "page": node.address.page or f"{node.address.url}/",
        "up": node.is_up,
        "status": status.kind,
        "reason": status.text,
        "since": None if node.is_up or status.since is None else round(status.since),
        "last_read": None if node.is_up or node.read_at is None else round(node.read_at),
        "gpuledger": "" if report is None else report.program,
        "simulated": report is not None and report.simulated,
        "complete": report is None or report.complete,
        "clock_ahead_seconds": None if skew is None else 60 * round(skew / 60),
        "counted_elsewhere": len(cells) - len(own),
        "gpus": [_cell(cell, known=node.is_up) for cell in own],
    }


def _cell(cell: GpuCell, *, known: bool) -> dict[str, Any]:
    used, total = cell.memory_used, cell.memory_total
    return {
        "uuid": cell.uuid,
        "gpu": cell.gpu,
        "instance": cell.instance,
        "model": cell.model,
        "profile": cell.profile,
        "state": cell.state if known else UNKNOWN_STATE,
        "utilization_ratio": None if cell.utilization is None or not known else round(cell.utilization, 2),
        "memory_used_bytes": None if used is None or not known else _rounded(used, _MEMORY_STEP),
        "memory_total_bytes": total,
        "power_watts": None if cell.power is None or not known else _rounded(int(cell.power), _WATTS),
        "processes": cell.processes if known else None,
        "owners": [_owner(owner) for owner in cell.owners] if known else [],
        "problem": cell.problem if known else "",
        "free_now": is_free_now(cell, known=known),
        "availability": cell.availability if known else "",
        "availability_reason": cell.availability_reason if known else "",
        "reserved_by": cell.reserved_by if known else "",
    }


def is_free_now(cell: GpuCell, *, known: bool) -> bool:
    """Whether somebody may start there now. A node that does not judge it shows only whether it is used."""
    if not known or cell.state != FREE:
        return False
    return cell.availability == "free" if cell.availability else not cell.reserved_by


def _owner(owner: CellOwner) -> dict[str, Any]:
    # Whole minutes: seconds would change with every reading.
    held = None if owner.held_seconds is None else int(owner.held_seconds // 60) * 60
    return {
        "name": owner.name,
        "group": owner.group,
        "kind": owner.kind,
        "processes": owner.processes,
        "held_seconds": held,
    }


def _rounded(value: int, step: int) -> int:
    return (value + step // 2) // step * step
