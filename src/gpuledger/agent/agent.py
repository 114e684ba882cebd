"""The agent as a whole: the targets of its configuration, and the receivers of what they tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.config.model import AgentConfig
from gpuledger.agent.scrape.loop import TargetLoop
from gpuledger.agent.scrape.memory import PageMemory
from gpuledger.agent.scrape.pool import Pool
from gpuledger.agent.scrape.state import GroupTotals
from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.receivers import Receivers
from gpuledger.outputs.remote_write.state import ReceiverState


@dataclass(frozen=True, slots=True)
class AgentView:
    """One moment of the agent, for its page and its metrics. `now` is unix seconds; `error` is why the
    configuration, as it stands now, could not be taken, and `configured` when the one in force was.
    """

    now: float
    loops: tuple[TargetLoop, ...]
    totals: dict[str, GroupTotals]
    receivers: tuple[ReceiverState, ...]
    dropped: int
    error: str
    configured: float


class Agent:
    """Used by the event loop's thread alone."""

    def __init__(
        self, config: AgentConfig, queues: Path, clock: Clock, memory: PageMemory | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._receivers = Receivers(config.receivers, queues, clock)
        self._pool = Pool(self._receivers.accept, clock, memory)
        self._configured = clock.unix()
        self.error = ""

    def start(self) -> None:
        """Scrape and deliver, in the running loop. Raises GpuledgerError when the queues cannot be had."""
        self._receivers.start()
        self._pool.become(self._config.targets, self._config.deliveries)

    async def become(self, config: AgentConfig) -> None:
        """Go on with another configuration. Raises GpuledgerError, and then goes on with the old one."""
        if config.receivers != self._config.receivers:
            await self._receivers.apply(config.receivers)
        self._config = config
        self._pool.become(config.targets, config.deliveries)
        self._configured = self._clock.unix()
        self.error = ""

    async def stop(self, drain_seconds: float) -> None:
        """Scrape no more, and deliver what is queued for so long at most; the rest waits on disk."""
        await self._pool.stop()
        await self._receivers.stop(drain_seconds)

    def view(self) -> AgentView:
        """The agent as it is now."""
        return AgentView(
            self._clock.unix(),
            self._pool.loops,
            self._pool.totals,
            self._receivers.state(),
            self._config.dropped,
            self.error,
            self._configured,
        )
