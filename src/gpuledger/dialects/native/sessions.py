"""Native families of Sessions and of what Devices do: active, held, idle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuledger.dialects.native.devices import DEVICE, labels
from gpuledger.dialects.native.owners import OWNER
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.node_state import NodeState

OPEN = FamilySpec(
    "gpuledger_sessions_open",
    "gauge",
    "Sessions that have not ended, graphics included.",
    DEVICE,
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
    "How long sessions lasted that have ended since the program started.",
    ("uuid",),
    unit="seconds",
    source="ledger",
)
STATE = FamilySpec(
    "gpuledger_device_state",
    "gauge",
    "1 for what the device did in the last interval: active (an engine worked), held (somebody has it, no "
    "engine worked), idle (nobody has it), unknown (the driver does not tell).",
    (*DEVICE, "state"),
    source="ledger",
)
STATE_SECONDS = FamilySpec(
    "gpuledger_device_state_seconds_total",
    "counter",
    "Time that the device has spent in each state since the program started.",
    (*DEVICE, "state"),
    unit="seconds",
    source="ledger",
)

SPECS = (OPEN, CLOSED, DURATION, STATE, STATE_SECONDS)
STATES = ("active", "held", "idle", "unknown")


def session_families(page: NodeState) -> Iterator[Family]:
    """Families of one Page; counters stay while there is no Snapshot."""
    ledger = page.ledger
    opened, states, closed, seconds = Family(OPEN), Family(STATE), Family(CLOSED), Family(STATE_SECONDS)
    for reading in page.snapshot.holders if page.snapshot is not None else ():
        uuid, where = reading.device.uuid, labels(reading.device)
        if uuid in ledger.compute_sessions:
            opened.add(ledger.compute_sessions[uuid] + ledger.graphics_sessions[uuid], *where)
        now = ledger.device_states.get(where)
        for state in STATES if now is not None else ():
            states.add(int(state == now), *where, state)
    for uuid, number in ledger.sessions_closed.items():
        closed.add(number, uuid)
    for (uuid, instance, state), spent in ledger.state_seconds.items():
        seconds.add(spent, uuid, instance, state)
    durations = Family(DURATION)
    durations.distributions.update({(uuid,): told for uuid, told in ledger.session_durations.items()})
    yield from (opened, closed, durations, states, seconds)


_COUNTER = "the GPU's energy counter (NVML field 83), or power integrated where there is none"

ENERGY = FamilySpec(
    "gpuledger_energy_joules_total",
    "counter",
    "Energy by account: process, with its owner; idle (nobody was there), unattributed (whose is not known), "
    "unobserved (nobody looked). method says on what the split rests; measured means that nothing was split.",
    ("uuid", "account", "method", *OWNER),
    unit="joules",
    source="ledger, from " + _COUNTER,
)
DEVICE_ENERGY = FamilySpec(
    "gpuledger_device_energy_joules_total",
    "counter",
    "Energy of the GPU since the books were opened.",
    ("uuid",),
    unit="joules",
    source=_COUNTER,
)
PENDING = FamilySpec(
    "gpuledger_energy_pending_joules",
    "gauge",
    "Booked, but not told yet: new series are told as 0 for energy.zero_hold, so that increase() sees them.",
    ("uuid",),
    unit="joules",
    source="ledger",
)
ENERGY_CLOSED = FamilySpec(
    "gpuledger_energy_closed_joules",
    "gauge",
    "Energy of owners whose series have ended. Accounts, pending and closed sum to the GPU's energy.",
    ("uuid",),
    unit="joules",
    source="ledger",
)
IMBALANCE = FamilySpec(
    "gpuledger_energy_imbalance_joules",
    "gauge",
    "The GPU's energy less all accounts, pending and closed: 0, or the books are wrong.",
    ("uuid",),
    unit="joules",
    source="ledger",
)

ENERGY_SPECS = (ENERGY, DEVICE_ENERGY, PENDING, ENERGY_CLOSED, IMBALANCE)


def energy_families(page: NodeState) -> Iterator[Family]:
    """Families of one Page; booked energy stays while there is no Snapshot."""
    books = page.ledger.energy
    accounts = Family(ENERGY)
    for row in books.owners:
        accounts.add(row.millijoules / 1000, *row.labels)
    yield accounts
    for spec, by_uuid in (
        (DEVICE_ENERGY, books.totals),
        (PENDING, books.pending),
        (ENERGY_CLOSED, books.closed),
        (IMBALANCE, books.imbalance),
    ):
        yield _per_gpu(spec, by_uuid)


def _per_gpu(spec: FamilySpec, millijoules: Mapping[str, int]) -> Family:
    family = Family(spec)
    for uuid, amount in millijoules.items():
        family.add(amount / 1000, uuid)
    return family
