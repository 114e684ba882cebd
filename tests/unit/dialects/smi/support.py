"""The page of the smi dialect for a Snapshot."""

from __future__ import annotations

from dataclasses import replace

from builders import gpu, node_state, reading, snapshot
from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.exposition import text
from gpuledger.model.node_state import CollectorHealth, Health, NodeState
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import CollectorRun, Reading, SourceInfo

CARD = gpu(0, name="NVIDIA H100 PCIe", pci_bus_id="00000000:C1:00.0", vbios="96.00", compute_capability="9.0")
OK = Health(
    attempted=True, healthy=True, collectors=(CollectorHealth("source", True, 0.25, 1_700_000_000.0, "", 3),)
)


def lines(state: NodeState, dialect: SmiDialect | None = None, **settings: bool) -> dict[str, str]:
    """Returns values by series."""
    made = dialect or SmiDialect(SmiDialectSettings(**settings), "1.2.3")
    body = text.encode_text(made.families(state)).decode()
    return dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))


def state_of(
    *readings: Reading, source: SourceInfo | None = None, ledger: LedgerState | None = None
) -> NodeState:
    seen = snapshot(*readings)
    if any(reading.raw for reading in readings):
        seen = replace(seen, collected=(CollectorRun("columns", 0.1),))
    made = node_state(seen, ledger, OK)
    if source is None or made.snapshot is None:
        return made
    return replace(made, source=source, snapshot=replace(made.snapshot, source=source))


def columns(**cells: str) -> Reading:
    """Returns a Reading with columns; `__` in argument names stands for a dot."""
    return reading(
        CARD, raw={"uuid": CARD.uuid, **{name.replace("__", "."): cell for name, cell in cells.items()}}
    )
