"""Native families of sessions, of Device states (active, held, idle), and of energy accounts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.dialects.native.owners import OWNER_LABELS
from gpuledger.model.family import Family, FamilySpec, declare_family
from gpuledger.model.node_state import NodeState

OPEN = declare_family(
    "gpuledger_sessions_open",
    "Open sessions on the device, including graphics sessions.",
    DEVICE_LABELS,
    "ledger",
)
CLOSED = declare_family(
    "gpuledger_sessions_closed_total",
    "Sessions that have ended since the program started.",
    ("uuid",),
    "ledger",
)
DURATION = declare_family(
    "gpuledger_session_duration_seconds",
    "Duration of sessions that have ended since the program started.",
    ("uuid",),
    "ledger",
    kind="histogram",
)
STATE = declare_family(
    "gpuledger_device_state",
    "1 for the state of the device in the last interval: active (an engine was busy), held (it has an owner "
    "but no engine was busy), idle (it has no owner) or unknown (not reported by the driver).",
    (*DEVICE_LABELS, "state"),
    "ledger",
)
STATE_SECONDS = declare_family(
    "gpuledger_device_state_seconds_total",
    "Time that the device spent in each state since the program started; 0 for a new device until "
    "energy.zero_hold has passed.",
    (*DEVICE_LABELS, "state"),
    "ledger",
)

ZERO_HOLD = declare_family(
    "gpuledger_zero_hold_seconds",
    "New counters are exported as 0 for this long, so that increase() counts their first value: "
    "energy.zero_hold, or longer if a client scrapes less often.",
    (),
    "ledger",
)

SPECS = (OPEN, CLOSED, DURATION, STATE, STATE_SECONDS, ZERO_HOLD)
STATES = ("active", "held", "idle", "unknown")


def session_families(state: NodeState) -> Iterator[Family]:
    """Yields session and state families; without a Snapshot only counters have samples."""
    ledger = state.ledger
    opened, states = Family(OPEN), Family(STATE)
    for reading in state.snapshot.process_readings if state.snapshot is not None else ():
        uuid, where = reading.device.uuid, device_labels(reading.device)
        if uuid in ledger.compute_sessions:
            opened.add(ledger.compute_sessions[uuid] + ledger.graphics_sessions[uuid], *where)
        current = ledger.device_states.get(where)
        for name in STATES if current is not None else ():
            states.add(int(name == current), *where, name)
    yield opened
    yield Family(CLOSED, {(uuid,): number for uuid, number in ledger.sessions_closed.items()})
    yield Family(DURATION, distributions={(uuid,): found for uuid, found in ledger.session_durations.items()})
    yield states
    yield Family(
        STATE_SECONDS,
        {key: 0.0 if key[:2] in ledger.new_devices else found for key, found in ledger.state_seconds.items()},
    )
    yield Family(ZERO_HOLD, {} if ledger.zero_hold is None else {(): ledger.zero_hold})


_COUNTER = "the GPU's energy counter (NVML field 83), or integrated power if there is none"

ENERGY = declare_family(
    "gpuledger_energy_joules_total",
    "Energy by account: process (with its owner), idle (no process), unattributed (owner not known) or "
    "unobserved (gpuledger was not reading); method is the basis of the split, or measured without a split.",
    ("uuid", "account", "method", *OWNER_LABELS),
    "ledger, from " + _COUNTER,
)
DEVICE_ENERGY = declare_family(
    "gpuledger_device_energy_joules_total",
    "Energy used by the GPU since its ledger was created.",
    ("uuid",),
    _COUNTER,
)
PENDING = declare_family(
    "gpuledger_energy_pending_joules",
    "Energy that is booked but not exported yet: new series are 0 for energy.zero_hold so that increase() "
    "counts their first joules.",
    ("uuid",),
    "ledger",
)
ENERGY_CLOSED = declare_family(
    "gpuledger_energy_closed_joules",
    "Energy of accounts without series; with the exported accounts and pending it sums to the GPU's energy.",
    ("uuid",),
    "ledger",
)
IMBALANCE = declare_family(
    "gpuledger_energy_imbalance_joules",
    "The GPU's energy minus all accounts, pending and closed; anything but 0 is an error in the ledger.",
    ("uuid",),
    "ledger",
)

ENERGY_SPECS = (ENERGY, DEVICE_ENERGY, PENDING, ENERGY_CLOSED, IMBALANCE)


def energy_families(state: NodeState) -> Iterator[Family]:
    """Yields the energy families; they have samples even without a Snapshot."""
    energy = state.ledger.energy
    accounts = Family(ENERGY)
    for row in energy.owners:
        accounts.add(row.millijoules / 1000, *row.labels)
    yield accounts
    yield amounts_by_gpu(DEVICE_ENERGY, energy.totals, 1000)
    yield amounts_by_gpu(PENDING, energy.pending, 1000)
    yield amounts_by_gpu(ENERGY_CLOSED, energy.closed, 1000)
    yield amounts_by_gpu(IMBALANCE, energy.imbalance, 1000)


def amounts_by_gpu(spec: FamilySpec, amounts: Mapping[str, int], per_unit: int) -> Family:
    """Converts whole amounts by Gpu uuid, of which `per_unit` are one unit of the family."""
    return Family(spec, {(uuid,): amount / per_unit for uuid, amount in amounts.items()})
