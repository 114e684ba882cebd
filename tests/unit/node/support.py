"""A source that does what a test tells it, and the node that reads it."""

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
    """Does per tick what the script says; the last act repeats. Counts how often it was let go."""

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
    source: ScriptedSource, publish: Callable[[NodeState], None] = lambda page: None, **more: Any
) -> Node:
    """On the machine's own clock, with books in memory, unless something else is said."""
    usual: dict[str, Any] = {
        "name": lambda seen: seen,
        "post": Ledger(LedgerSettings()).post,
        "wanted": frozenset,
        "clock": SystemClock(),
        "interval": 1.0,
    }
    return Node(source, publish=publish, **(usual | more))
