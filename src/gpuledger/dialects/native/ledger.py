"""Native families of sessions, of Device states (active, held, idle) and of energy accounts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.dialects.native.owners import OWNER_LABELS
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState

OPEN = FamilySpec(
    "gpuledger_sessions_open",
    "gauge",
    "Open sessions on the device, including graphics sessions.",
    DEVICE_LABELS,
    source="ledger",
)
CLOSED = FamilySpec(
    "gpuledger_sessions_closed_total",
    "counter",
    "Sessions that have ended since the program started.",
    ("uuid",),
    source="ledger",
)
DURATION = FamilySpec(
    "gpuledger_session_duration_seconds",
    "histogram",
    "Duration of sessions that have ended since the program started.",
    ("uuid",),
    unit="seconds",
    source="ledger",
)
STATE = FamilySpec(
    "gpuledger_device_state",
    "gauge",
    "1 for the state of the device in the last interval: active (an engine was busy), held (it has an owner "
    "but no engine was busy), idle (it has no owner) or unknown (not reported by the driver).",
    (*DEVICE_LABELS, "state"),
    source="ledger",
)
STATE_SECONDS = FamilySpec(
    "gpuledger_device_state_seconds_total",
    "counter",
    "Time that the device spent in each state since the program started.",
    (*DEVICE_LABELS, "state"),
    unit="seconds",
    source="ledger",
)

SPECS = (OPEN, CLOSED, DURATION, STATE, STATE_SECONDS)
STATES = ("active", "held", "idle", "unknown")


def session_families(state: NodeState) -> Iterator[Family]:
    """Yields session and state families; without a Snapshot only counters have samples."""
    ledger = state.ledger
    opened, states, closed, seconds = Family(OPEN), Family(STATE), Family(CLOSED), Family(STATE_SECONDS)
    for reading in state.snapshot.process_readings if state.snapshot is not None else ():
        uuid, where = reading.device.uuid, device_labels(reading.device)
        if uuid in ledger.compute_sessions:
            opened.add(ledger.compute_sessions[uuid] + ledger.graphics_sessions[uuid], *where)
        current = ledger.device_states.get(where)
        for name in STATES if current is not None else ():
            states.add(int(name == current), *where, name)
    for uuid, number in ledger.sessions_closed.items():
        closed.add(number, uuid)
    for (uuid, instance, name), spent in ledger.state_seconds.items():
        seconds.add(spent, uuid, instance, name)
    durations = Family(DURATION)
    durations.distributions.update({(uuid,): found for uuid, found in ledger.session_durations.items()})
    yield from (opened, closed, durations, states, seconds)


_COUNTER = "the GPU's energy counter (NVML field 83), or integrated power if there is none"

ENERGY = FamilySpec(
    "gpuledger_energy_joules_total",
    "counter",
    "Energy by account: process (with its owner), idle (no process), unattributed (owner not known) or "
    "unobserved (gpuledger was not reading); method is the basis of the split, or measured without a split.",
    ("uuid", "account", "method", *OWNER_LABELS),
    unit="joules",
    source="ledger, from " + _COUNTER,
)
DEVICE_ENERGY = FamilySpec(
    "gpuledger_device_energy_joules_total",
    "counter",
    "Energy used by the GPU since its ledger was created.",
    ("uuid",),
    unit="joules",
    source=_COUNTER,
)
PENDING = FamilySpec(
    "gpuledger_energy_pending_joules",
    "gauge",
    "Energy that is booked but not exported yet: new series are 0 for energy.zero_hold so that increase() "
    "counts their first joules.",
    ("uuid",),
    unit="joules",
    source="ledger",
)
ENERGY_CLOSED = FamilySpec(
    "gpuledger_energy_closed_joules",
    "gauge",
    "Energy of accounts without series; with the exported accounts and pending it sums to the GPU's energy.",
    ("uuid",),
    unit="joules",
    source="ledger",
)
IMBALANCE = FamilySpec(
    "gpuledger_energy_imbalance_joules",
    "gauge",
    "The GPU's energy minus all accounts, pending and closed; anything but 0 is an error in the ledger.",
    ("uuid",),
    unit="joules",
    source="ledger",
)

ENERGY_SPECS = (ENERGY, DEVICE_ENERGY, PENDING, ENERGY_CLOSED, IMBALANCE)


def energy_families(state: NodeState) -> Iterator[Family]:
    """Yields the energy families; they have samples even without a Snapshot."""
    energy = state.ledger.energy
    accounts = Family(ENERGY)
    for row in energy.owners:
        accounts.add(row.millijoules / 1000, *row.labels)
    yield accounts
    for spec, by_uuid in (
        (DEVICE_ENERGY, energy.totals),
        (PENDING, energy.pending),
        (ENERGY_CLOSED, energy.closed),
        (IMBALANCE, energy.imbalance),
    ):
        yield _per_gpu(spec, by_uuid)


def _per_gpu(spec: FamilySpec, millijoules: Mapping[str, int]) -> Family:
    family = Family(spec)
    for uuid, amount in millijoules.items():
        family.add(amount / 1000, uuid)
    return family
