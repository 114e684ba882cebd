"""The tables of an exported ledger, and their columns.

Amounts are whole microseconds of whole Gpus and whole millijoules. `begins` and `ends` are UTC, at full
quarters of an hour: a row belongs to that cell as a whole. docs/books.md lists the same columns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuledger.model.workload import STORED_FIELDS

INTEGER, TEXT, TIME, BOOLEAN, BYTES = "integer", "text", "time", "boolean", "bytes"
# The version of this layout, in each manifest.
LAYOUT_VERSION: Final = 1


class ExportColumn(NamedTuple):
    """A column: `kind` is one of the above. A text is empty if unknown; the other kinds can be null."""

    name: str
    kind: str = TEXT


def _columns(kind: str, *names: str) -> tuple[ExportColumn, ...]:
    return tuple(ExportColumn(name, kind) for name in names)


# The first columns of every table. `books` identifies the ledger.
COMMON: Final = _columns(TEXT, "books", "node")
_CELL = _columns(TIME, "begins", "ends")
# Names of a party: those of its owner without the ids that differ between starts of the same workload.
OWNER_FIELDS: Final = tuple(
    name
    for name in STORED_FIELDS
    if name not in ("pod_uid", "container_id", "step", "found_by", "missing", "labels")
)

GPUS, PARTIES, GPU_TIME, INTERVALS, ENERGY, PRESENCE = (
    "gpus",
    "parties",
    "gpu_time",
    "energy_intervals",
    "energy",
    "presence",
)
TABLES: Final[dict[str, tuple[ExportColumn, ...]]] = {
    GPUS: (
        *_columns(TEXT, "device", "gpu"),
        *_columns(INTEGER, "gpu_index"),
        *_columns(TEXT, "model", "pci_bus_id"),
        *_columns(INTEGER, "sm_count", "gpu_instance", "compute_instance", "position"),
        *_columns(TEXT, "profile"),
        *_columns(BOOLEAN, "metered"),
        *_columns(TIME, "first_seen", "last_seen"),
    ),
    PARTIES: (*_columns(TEXT, "party", "device", "command", "owner", *OWNER_FIELDS, "labels"),),
    GPU_TIME: (
        *_CELL,
        *_columns(TEXT, "gpu", "model", "instance", "profile"),
        *_columns(INTEGER, "share_numerator", "share_denominator"),
        *_columns(TEXT, "account", "party"),
        *_columns(BOOLEAN, "is_estimate"),
        *_columns(INTEGER, "allocation_microseconds", "residence_microseconds"),
    ),
    INTERVALS: (
        *_CELL,
        *_columns(TEXT, "gpu"),
        *_columns(INTEGER, "interval", "epoch"),
        *_columns(TEXT, "method"),
        *_columns(
            INTEGER,
            "microseconds",
            "idle_millijoules",
            "unattributed_millijoules",
            "unobserved_millijoules",
            "owners_millijoules",
        ),
    ),
    ENERGY: (
        *_CELL,
        *_columns(TEXT, "gpu"),
        *_columns(INTEGER, "interval"),
        *_columns(TEXT, "method", "party"),
        *_columns(INTEGER, "millijoules", "low_millijoules", "high_millijoules"),
    ),
    PRESENCE: (
        *_CELL,
        *_columns(TEXT, "party"),
        *_columns(INTEGER, "resident_seconds", "held_seconds", "unknown_seconds", "allocated_seconds"),
        *_columns(BYTES, "resident", "held", "unknown", "allocated"),
        *_columns(INTEGER, "sessions_running", "sessions_begun"),
    ),
}


def columns_of(table: str) -> tuple[ExportColumn, ...]:
    """All columns of a table."""
    return (*COMMON, *TABLES[table])
