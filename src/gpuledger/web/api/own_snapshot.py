"""The snapshot for a reader of own rows: own processes and owners, and GPU-wide values only where they are.

On a GPU on which the reader has a process or an allocation, the values of the whole GPU are shown, as
nvidia-smi shows them to each process there. Of other GPUs the reader sees that they exist, how they are, and
whether they are free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from gpuledger.model.access import Reader
from gpuledger.model.availability import FREE
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.web.api.json_values import JsonObject
from gpuledger.web.api.snapshot import build_snapshot

# What is shown of a device of others: its identity, size, health and availability. A new key is not shown.
_PUBLIC: Final = frozenset(
    {
        *("uuid", "gpu", "instance", "device_uuid", "name", "vendor", "profile", "pci_bus_id"),
        *("up", "down_reason", "holds_processes", "memory_total_bytes", "memory_shared_with"),
        *("power_limit_watts", "energy_of_module", "problems", "ecc", "memory_repair", "pcie", "nvlink"),
        *("availability", "availability_reason", "free_seconds", "memory_free_bytes", "reserved_until"),
        # Those of the reader: 0 and empty; a reservation is made before there is a process.
        *("processes", "sessions", "owners", "reserved_by"),
    }
)


# Words that are null if there are none.
_NULLABLE: Final = frozenset({"state"})


def snapshot_for(state: NodeState, node: str, reader: Reader) -> JsonObject:
    """The JSON of a NodeState of the machine `node`, as the reader may see it."""
    if reader.reads_all:
        return build_snapshot(state, node)
    body = build_snapshot(own_state(state, reader), node)
    present = {(row["uuid"], row["instance"]) for row in body["processes"]}
    for device in body["devices"]:
        is_present = (device["uuid"], device["instance"]) in present or any(
            owner["present"] for owner in _owners_here(device, state, reader)
        )
        _hide(device, reader, is_present=is_present)
    return body


def own_state(state: NodeState, reader: Reader) -> NodeState:
    """The state with the processes, sessions and owners of the reader only, and counts of these."""
    if reader.reads_all:
        return state
    ledger = state.ledger
    sessions = tuple(row for row in ledger.sessions if reader.permits(row.process.workload))
    own = frozenset(row.process.key for row in sessions)
    known = frozenset(row.process.key for row in ledger.sessions)

    def own_processes(reading: Reading) -> Reading:
        if reading.processes is None:
            return reading
        # A session keeps a name that its owner index has lost for a moment.
        shown = (
            one
            for one in reading.processes
            if one.key in own or (one.key not in known and reader.permits(one.workload))
        )
        return replace(reading, processes=tuple(shown))

    counts = dict.fromkeys(ledger.compute_sessions, 0)
    for row in sessions:
        uuid = row.process.device.uuid
        if uuid in counts:
            counts[uuid] += 1
    snapshot: Snapshot | None = state.snapshot
    if snapshot is not None:
        snapshot = replace(
            snapshot, readings=tuple(map(own_processes, snapshot.readings)), allocations=(), xids=()
        )
    # Kind and user are the first and the fifth label of an owner.
    owners = tuple(row for row in ledger.owners if reader.permits_names(row.labels[0], row.labels[4]))
    return replace(
        state,
        snapshot=snapshot,
        ledger=replace(
            ledger,
            sessions=sessions,
            owners=owners,
            omitted={uuid: keys & own for uuid, keys in ledger.omitted.items()},
            compute_sessions=counts,
            graphics_sessions=dict.fromkeys(ledger.graphics_sessions, 0),
            sessions_closed={},
            session_durations={},
        ),
    )


def _owners_here(device: JsonObject, state: NodeState, reader: Reader) -> list[JsonObject]:
    """The own owners of exactly this Device: the JSON lists those of all parts of a Gpu."""
    place = (device["uuid"], device["instance"])
    return [
        {"present": row.present}
        for row in state.ledger.owners
        if (row.device.gpu.uuid, row.device.instance) == place
        and reader.permits_names(row.labels[0], row.labels[4])
    ]


def _hide(device: JsonObject, reader: Reader, *, is_present: bool) -> None:
    # All that anybody used since the ledger began.
    device["energy_joules"] = None
    if not is_present:
        for name in device.keys() - _PUBLIC:
            device[name] = None if name in _NULLABLE else _blank(device[name])
        if device["availability"] == FREE:
            # Without it, the page and `top` count no free GPU.
            device["state"] = "idle"
        # Throttling is a sign of load.
        device["problems"] = [one for one in device["problems"] if not one["kind"].endswith("_throttling")]
    if device["reserved_by"] not in reader.users:
        device["reserved_by"] = ""
    device["xids"] = [{**row, "pid": None, "command": ""} for row in device["xids"]]


def _blank(value: Any) -> Any:
    """The value of the same type that says nothing."""
    if isinstance(value, str):
        return ""
    return [] if isinstance(value, list) else None
