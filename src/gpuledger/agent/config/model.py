"""What the agent's configuration file says, read and checked."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.agent.scrape.loop import Deliveries
from gpuledger.agent.scrape.settings import Target
from gpuledger.outputs.remote_write.settings import ReceiverSettings


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The targets in the file's order, without those that relabelling drops, which are counted; and to whom
    their samples go.
    """

    targets: tuple[Target, ...]
    dropped: int
    receivers: tuple[ReceiverSettings, ...]
    deliveries: Deliveries
