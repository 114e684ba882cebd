"""Where an operator runs, and as whom."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.workloads.pods.access import Access


@dataclass(frozen=True, slots=True)
class Place:
    """The API server, the operator's own namespace, and the name by which it holds the Lease."""

    access: Access
    namespace: str
    identity: str
