"""`/api/v1/snapshot`: a NodeState as JSON, for the web page, `top` and programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuledger import __version__
from gpuledger.model.availability import Availability
from gpuledger.model.devices import Device, Instance
from gpuledger.model.down_reasons import describe_down
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.process import GpuProcess, ProcessKey, ProcessType
from gpuledger.model.quantities import MEMORY_TOTAL, MEMORY_USED, POWER, POWER_LIMIT, TEMPERATURE
from gpuledger.model.session import EnergyState, LedgerState, OwnerRow, SessionRow
from gpuledger.model.snapshot import Reading
from gpuledger.model.workload import UNKNOWN
from gpuledger.web.api.availability_json import availability_fields
from gpuledger.web.api.gpu_health import health_fields
from gpuledger.web.api.json_values import (
    VERSION,
    JsonObject,
    finite,
    joules,
    label_fields,
    owner_fields,
    watts,
    whole,
)
from gpuledger.web.api.shown_quantities import utilization_of

_SOURCE_FIELDS: Final = ("name", "simulated", "detail", "driver_version", "cuda_version")
_TYPES: Final = (ProcessType.MPS, ProcessType.COMPUTE, ProcessType.GRAPHICS)


def build_snapshot(state: NodeState, node: str) -> JsonObject:
    """The JSON of a NodeState of the machine `node`; without a Snapshot devices and processes are empty."""
    snapshot = state.snapshot
    readings = snapshot.readings if snapshot is not None else ()
    shared = snapshot.memory_shared_with if snapshot is not None else {}
    holders = snapshot.process_readings if snapshot is not None else ()
    owners: dict[str, list[OwnerRow]] = {}
    for row in state.ledger.owners:
        owners.setdefault(row.device.uuid, []).append(row)
    held = {reading.device for reading in holders}
    sessions = {row.process.key: row for row in state.ledger.sessions}
    return {
        "version": VERSION,
        "gpuledger": __version__,
        "node": node,
        "unix": state.unix,
        "tick": state.health.ticks,
        "source": {name: getattr(state.source, name) for name in _SOURCE_FIELDS},
        "status": status_fields(state.health, readings=snapshot is not None),
        "invalid_values": state.ledger.invalid,
        "devices_complete": snapshot is not None and not snapshot.devices_failed,
        "devices": [
            {
                **_device(one, state.ledger, owners.get(one.device.uuid, ()), holds=one.device in held),
                **_memory(one, shared.get(one.device)),
                **_availability(one.device, state),
                **health_fields(one, state.ledger, state.unix),
            }
            for one in readings
        ],
        "processes": [row for one in holders for row in _processes(one, state.ledger, sessions)],
    }


def status_fields(health: Health, *, readings: bool) -> JsonObject:
    """The JSON of the node's status; `readings` says whether the state has any."""
    return {
        "text": health.status,
        "healthy": health.healthy,
        "stalled": health.stalled,
        "readings": readings,
        "paused": health.paused,
        "paused_until": None if health.pause is None else health.pause.until,
        "interval_seconds": health.interval,
    }


def device_fields(device: Device) -> dict[str, str]:
    """The JSON fields that identify a Device: UUID and index of the Gpu, and `GI_CI` under MIG."""
    gpu = device.gpu
    return {"uuid": gpu.uuid, "gpu": str(gpu.index), "instance": device.instance}


def _device(reading: Reading, ledger: LedgerState, owners: Iterable[OwnerRow], *, holds: bool) -> JsonObject:
    device = reading.device
    gpu, place = device.gpu, device_fields(device)
    instance = isinstance(device, Instance)
    counted = holds and reading.processes is not None
    return {
        **place,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "profile": device.profile if isinstance(device, Instance) else "",
        "pci_bus_id": gpu.pci_bus_id,
        "up": reading.up,
        "down_reason": "" if reading.up else describe_down(reading.down_reason),
        "holds_processes": holds,
        "state": ledger.device_states.get((place["uuid"], place["instance"])) if holds else None,
        "utilization_ratio": utilization_of(reading),
        "power_watts": watts(reading.get(POWER)),
        "power_limit_watts": watts(reading.get(POWER_LIMIT)),
        "temperature_celsius": finite(reading.get(TEMPERATURE)),
        "processes": len(reading.processes or ()) if counted else None,
        "sessions": _sessions(device, ledger) if counted else None,
        "energy_joules": None if instance else joules(ledger.energy.totals.get(gpu.uuid)),
        "energy_of_module": reading.counts_module_energy,
        "owners": [_owner(row) for row in owners],
    }


def _memory(reading: Reading, shared_with: Instance | None) -> JsonObject:
    return {
        "memory_used_bytes": None if shared_with else whole(reading.get(MEMORY_USED)),
        "memory_total_bytes": None if shared_with else whole(reading.get(MEMORY_TOTAL)),
        "memory_shared_with": shared_with.instance if shared_with else "",
    }


def _availability(device: Device, state: NodeState) -> JsonObject:
    """Whether the device can be taken, and the UUID by which a program selects it."""
    found: Availability | None = state.availability.get((device.gpu.uuid, device.instance))
    return {
        "device_uuid": device.uuid,
        **availability_fields(found),
        "reserved_by": "" if found is None else found.reserved_by,
    }


def _sessions(device: Device, ledger: LedgerState) -> int | None:
    computing = ledger.compute_sessions.get(device.uuid)
    drawing = ledger.graphics_sessions.get(device.uuid)
    return None if computing is None or drawing is None else computing + drawing


def _owner(row: OwnerRow) -> JsonObject:
    return {
        **label_fields(row.labels),
        "present": row.present,
        "processes": row.processes,
        "held_seconds": round(row.held, 3),
        "allocated_seconds": round(row.allocated, 3),
    }


def _processes(
    reading: Reading, ledger: LedgerState, sessions: Mapping[ProcessKey, SessionRow]
) -> Iterator[JsonObject]:
    """A row per process of the Device, then one row for those beyond the process limit."""
    omitted = ledger.omitted.get(reading.device.uuid, frozenset())
    place = device_fields(reading.device)
    energy = ledger.energy
    rest = []
    for process in reading.processes or ():
        if omitted and process.key in omitted:
            rest.append(process)
        else:
            session = sessions.get(process.key)
            yield {**place, **_process(process, session), **_energy([session], energy)}
    if rest:
        rows = [sessions.get(process.key) for process in rest]
        yield {**place, **_others(rest), **_energy(rows, energy)}


def _process(process: GpuProcess, session: SessionRow | None) -> JsonObject:
    usage, start = process.usage, process.host.start
    # A session keeps a name that its owner index has lost for a moment.
    owner = process.workload if session is None else session.process.workload
    return {
        "pid": process.pid,
        "count": None,
        "command": process.command,
        "types": _types([process]),
        **owner_fields(owner),
        "memory_bytes": process.memory,
        "sm_ratio": finite(usage.sm),
        "memory_bandwidth_ratio": finite(usage.memory),
        "start_unix": start.unix,
        "start_exact": start.exact,
        "unresolved": owner.missing,
    }


def _others(processes: Sequence[GpuProcess]) -> JsonObject:
    return {
        "pid": None,
        "count": len(processes),
        "command": "",
        "types": _types(processes),
        **owner_fields(UNKNOWN),
        "memory_bytes": whole(_sum([process.memory for process in processes])),
        "sm_ratio": None,
        "memory_bandwidth_ratio": None,
        "start_unix": None,
        "start_exact": False,
        "unresolved": "",
    }


def _energy(sessions: Sequence[SessionRow | None], energy: EnergyState) -> JsonObject:
    """The energy of one or several processes; a sum with an absent part is absent."""
    # On a Gpu without a meter the energy is absent, not zero.
    known = [row for row in sessions if row is not None and energy.is_known(row)]
    whole_sum = len(known) == len(sessions)
    measured = sum(row.measured for row in known)
    return {
        "power_watts": watts(_sum([row.watts for row in known])) if whole_sum else None,
        "joules": joules(measured + sum(row.apportioned for row in known)) if whole_sum else None,
        "measured_joules": joules(measured) if whole_sum else None,
    }


def _types(processes: Iterable[GpuProcess]) -> list[str]:
    found = frozenset().union(*(process.types for process in processes))
    return [kind.value for kind in _TYPES if kind in found]


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
