"""A scripted source and a node that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builders import SOURCE
from gpuledger.host.clock import SystemClock
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import NodeState
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.node.loop import Node


class ScriptedSource:
    """Runs one act per tick and repeats the last one. Counts how often it was closed."""

    def __init__(self, *acts: Callable[[], Snapshot], info: SourceInfo = SOURCE) -> None:
        self.acts = list(acts)
        self.info = info
        self.wanted: list[frozenset[Quantity]] = []
        self.closed = 0

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        self.wanted.append(wanted)
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        return act()

    def close(self) -> None:
        self.closed += 1


def node_of(
    source: ScriptedSource, publish: Callable[[NodeState], None] = lambda state: None, **more: Any
) -> Node:
    """A node with the system clock and a ledger in memory; `more` overrides its parameters."""
    usual: dict[str, Any] = {
        "name": lambda seen: seen,
        "post": Ledger(LedgerSettings()).post,
        "required_quantities": frozenset,
        "clock": SystemClock(),
        "interval": 1.0,
    }
    return Node(source, publish=publish, **(usual | more))
