"""Native families of Sessions and of what Devices do: active, held, idle."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.dialects.native.devices import DEVICE, labels
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page

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


def tell(page: Page) -> Iterator[Family]:
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
