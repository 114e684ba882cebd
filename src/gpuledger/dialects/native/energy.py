"""Native families of the energy books: by owner, method and account, with what makes them balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuledger.dialects.native.owners import OWNER
from gpuledger.model.family import Family, FamilySpec
from gpuledger.model.page import Page

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
DEVICE = FamilySpec(
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
CLOSED = FamilySpec(
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

SPECS = (ENERGY, DEVICE, PENDING, CLOSED, IMBALANCE)


def tell(page: Page) -> Iterator[Family]:
    """Families of one Page; booked energy stays while there is no Snapshot."""
    books = page.ledger.energy
    accounts = Family(ENERGY)
    for row in books.owners:
        accounts.add(row.millijoules / 1000, *row.labels)
    yield accounts
    for spec, by_uuid in (
        (DEVICE, books.totals),
        (PENDING, books.pending),
        (CLOSED, books.closed),
        (IMBALANCE, books.imbalance),
    ):
        yield _per_gpu(spec, by_uuid)


def _per_gpu(spec: FamilySpec, millijoules: Mapping[str, int]) -> Family:
    family = Family(spec)
    for uuid, amount in millijoules.items():
        family.add(amount / 1000, uuid)
    return family
