"""Native families of GPU time: its accounts, what is watched and pending, its basis, and its price."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuledger.dialects.native.devices import DEVICE_LABELS, device_labels
from gpuledger.dialects.native.ledger import amounts_by_gpu
from gpuledger.dialects.native.owners import OWNER_LABELS
from gpuledger.model.devices import Device
from gpuledger.model.family import Family, declare_family
from gpuledger.model.node_state import NodeState

GPU_SECONDS = declare_family(
    "gpuledger_gpu_seconds_total",
    "GPU time by account: owner, idle (no owner had the GPU), unattributed (an engine was busy, but its "
    "owner is not known), unobserved (gpuledger ran, but could not read who had the GPU) or down (lost, or "
    "needs a reset); an instance counts by its multiprocessors, by the basis of gpuledger_books_info. "
    "Since the ledger was created; 0 for a new series until energy.zero_hold has passed.",
    ("uuid", "mig_instance", "account", *OWNER_LABELS),
    "ledger; process lists and cgroups; kubelet, DRA, Slurm",
)
WATCHED = declare_family(
    "gpuledger_gpu_watched_seconds_total",
    "Time for which gpuledger watched the GPU: the sum of all accounts of GPU time, pending and "
    "closed. Since the ledger was created.",
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

PRICE = declare_family(
    "gpuledger_gpu_price",
    "Price of an hour of the whole GPU now, in price.currency, for the GPU and for each MIG instance: "
    "multiply it by hours of gpuledger_gpu_seconds_total. Absent where no entry of price.gpu_hour applies.",
    DEVICE_LABELS,
    "configuration: price.gpu_hour",
)
SPECS = (GPU_SECONDS, WATCHED, GPU_PENDING, GPU_CLOSED, BOOKS, PRICE)

# The price of a device's time at a unix time; None if it has none.
PriceOf = Callable[[Device, float], float | None]


def time_families(state: NodeState, price: PriceOf | None) -> Iterator[Family]:
    """Yields the families of GPU time; all but the price have samples even without a Snapshot."""
    time = state.ledger.time
    yield Family(GPU_SECONDS, {row.labels: row.microseconds / 1e6 for row in time.rows})
    yield amounts_by_gpu(WATCHED, time.watched, 1_000_000)
    yield amounts_by_gpu(GPU_PENDING, time.pending, 1_000_000)
    yield amounts_by_gpu(GPU_CLOSED, time.closed, 1_000_000)
    yield Family(BOOKS, {(time.basis,): 1})
    prices, snapshot = Family(PRICE), state.snapshot
    if snapshot is not None and price is not None:
        for reading in snapshot.readings:
            prices.add(price(reading.device, snapshot.unix), *device_labels(reading.device))
    yield prices
