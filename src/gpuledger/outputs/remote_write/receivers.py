"""All receivers together: what is accepted is in each one's queue, and each is sent to on its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.block import Block
from gpuledger.outputs.remote_write.settings import ReceiverSettings
from gpuledger.outputs.remote_write.state import ReceiverState


class Receivers:
    """Used by the event loop's thread alone."""

    def __init__(self, settings: Sequence[ReceiverSettings], directory: Path, clock: Clock) -> None:
        self._settings = tuple(settings)
        self._directory = directory
        self._clock = clock

    def start(self) -> None:
        """Open the queues and begin to send, in the running loop. Raises GpuledgerError."""

    def accept(self, block: Block, receivers: Collection[str] | None = None) -> None:
        """Take a Block for these receivers (None: for all); names that are not there are passed over."""

    async def apply(self, settings: Sequence[ReceiverSettings]) -> None:
        """Go on with other settings. Raises GpuledgerError, and then goes on with the old ones."""

    async def stop(self, drain_seconds: float = 5.0) -> None:
        """Send what is queued, for so long at most; what is left waits on disk for the next start."""

    def state(self) -> tuple[ReceiverState, ...]:
        """Each receiver as it is now."""
        return ()
