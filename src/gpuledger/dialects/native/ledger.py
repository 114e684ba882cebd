"""Native families of sessions, of Device states (active, held, idle), and of energy and time accounts."""

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
    "Time that the device spent in each state since the program started.",
    (*DEVICE_LABELS, "state"),
    "ledger",
)

SPECS = (OPEN, CLOSED, DURATION, STATE, STATE_SECONDS)
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
    yield Family(STATE_SECONDS, dict(ledger.state_seconds.items()))


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
    yield _by_gpu(DEVICE_ENERGY, energy.totals, 1000)
    yield _by_gpu(PENDING, energy.pending, 1000)
    yield _by_gpu(ENERGY_CLOSED, energy.closed, 1000)
    yield _by_gpu(IMBALANCE, energy.imbalance, 1000)


def _by_gpu(spec: FamilySpec, amounts: Mapping[str, int], per_unit: int) -> Family:
    """Converts whole amounts by Gpu uuid, of which `per_unit` are one unit of the family."""
    return Family(spec, {(uuid,): amount / per_unit for uuid, amount in amounts.items()})


GPU_SECONDS = declare_family(
    "gpuledger_gpu_seconds_total",
    "GPU time by account: owner, idle (no owner had the GPU), unattributed (an engine was busy, but its "
    "owner is not known), unobserved (gpuledger ran, but could not read who had the GPU) or down (lost, or "
    "needs a reset); an instance counts by its multiprocessors, by the basis of gpuledger_books_info. "
    "Begins at 0 when the program starts.",
    ("uuid", "mig_instance", "account", *OWNER_LABELS),
    "ledger; process lists and cgroups; kubelet, DRA, Slurm",
)
WATCHED = declare_family(
    "gpuledger_gpu_watched_seconds_total",
    "Time for which gpuledger watched the GPU: the sum of all accounts of GPU time, pending and "
    "closed. Begins at 0 when the program starts.",
    ("uuid",),
    "ledger",
)
GPU_PENDING = declare_family(
    "gpuledger_gpu_seconds_pending",
    "GPU time that is not exported yet: its owner is not decided, or its series is 0 for energy.zero_hold.",
    ("uuid",),
    "ledger",
)
GPU_CLOSED = declare_family(
    "gpuledger_gpu_seconds_closed_total",
    "GPU time of owners without series; with the exported accounts and pending it sums to the watched time.",
    ("uuid",),
    "ledger",
)
BOOKS = declare_family(
    "gpuledger_books_info",
    "1; basis is the rule by which GPU time is split: allocation or residence.",
    ("basis",),
    "ledger",
)

TIME_SPECS = (GPU_SECONDS, WATCHED, GPU_PENDING, GPU_CLOSED, BOOKS)


def time_families(state: NodeState) -> Iterator[Family]:
    """Yields the families of GPU time; they have samples even without a Snapshot."""
    time = state.ledger.time
    yield Family(GPU_SECONDS, {row.labels: row.microseconds / 1e6 for row in time.rows})
    yield _by_gpu(WATCHED, time.watched, 1_000_000)
    yield _by_gpu(GPU_PENDING, time.pending, 1_000_000)
    yield _by_gpu(GPU_CLOSED, time.closed, 1_000_000)
    yield Family(BOOKS, {(time.basis,): 1})
