"""Where pictures come from, as the views see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gpuledger.terminal.view import Origin


class Feed(Protocol):
    """A node that is looked at: this machine, or another one over HTTP."""

    @property
    def origin(self) -> Origin:
        """Where the pictures come from."""

    def snapshot(self) -> Mapping[str, Any]:
        """The newest, as `/api/v1/snapshot` has it. Raises GpuledgerError when there is none to be had."""

    def remarks(self) -> list[str]:
        """What a snapshot does not say of the node and its reader should know, a line each."""

    def close(self) -> None:
        """Let go of the node. Idempotent."""
