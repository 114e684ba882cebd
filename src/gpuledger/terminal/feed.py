"""The protocol of a source of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gpuledger.terminal.top_view import SnapshotOrigin


class Feed(Protocol):
    """A source of snapshots of one node: this machine, or another node over HTTP."""

    @property
    def origin(self) -> SnapshotOrigin:
        """The node that the snapshots come from."""

    def snapshot(self) -> Mapping[str, Any]:
        """The newest snapshot, in the format of `/api/v1/snapshot`. Raises GpuledgerError on failure."""

    def remarks(self) -> list[str]:
        """Notes about the node that are not in a snapshot, one line each."""

    def close(self) -> None:
        """Release the node. Idempotent."""
