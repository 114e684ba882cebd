"""The agent: discovery, scrape pool and remote-write receivers of one configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.config.agent_config import AgentConfig
from gpuledger.agent.deliver.receivers import Receivers
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.agent.discovery.discovery import Discovery
from gpuledger.agent.discovery.selection import SCRAPE_STEPS
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.scrape.loop import ScrapeLoop
from gpuledger.agent.scrape.pool import ScrapePool
from gpuledger.agent.scrape.state import GroupTotals, PageMemoryBudget
from gpuledger.model.source import Clock


@dataclass(frozen=True, slots=True)
class AgentView:
    """Snapshot of the agent for its status page and metrics. Times are unix seconds.

    `error`: why the current configuration file was rejected; `configured`: when the active one was loaded.
    """

    now: float
    loops: tuple[ScrapeLoop, ...]
    totals: dict[str, GroupTotals]
    receivers: tuple[ReceiverState, ...]
    dropped: int
    error: str
    configured: float
    discovery: Discovery

    @property
    def shard(self) -> Shard | None:
        """This agent's shard; None if it is alone or the shard is unknown."""
        shard = self.discovery.assignment.shard
        return None if shard == Shard() else shard

    def scrape_step_counts(self, group: str) -> dict[str, int]:
        """Return the number of a group's targets that passed each of SCRAPE_STEPS."""
        states = [loop.state for loop in self.loops if loop.target.group == group]
        passed = (sum(state.answered is True for state in states), sum(state.up is True for state in states))
        return dict(zip(SCRAPE_STEPS, passed, strict=True))


class Agent:
    """Runs discovery, scraping and delivery. Used on the event loop's thread only."""

    def __init__(
        self,
        config: AgentConfig,
        queues: Path,
        clock: Clock,
        discovery: Discovery,
        memory: PageMemoryBudget | None = None,
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._clock = clock
        self._receivers = Receivers(config.receivers, queues, clock)
        self._pool = ScrapePool(self._receivers.accept, clock, memory, self._receivers.metadata)
        self._configured = clock.unix()
        self.error = ""

    def start(self) -> None:
        """Start on the running event loop. Raises GpuledgerError if a queue cannot be opened."""
        self._receivers.start()
        self._discovery.set_selections(self._config.selections)
        self._discovery.start(self._scrape)

    async def apply_config(self, config: AgentConfig) -> None:
        """Apply a changed configuration. Raises GpuledgerError and keeps the old one then."""
        if config.receivers != self._config.receivers:
            await self._receivers.apply(config.receivers)
        self._config = config
        self._discovery.set_selections(config.selections)
        self._configured = self._clock.unix()
        self.error = ""

    async def stop(self, drain_seconds: float) -> None:
        """Stop scraping and deliver queued samples for at most `drain_seconds`; the rest is kept on disk.

        A sharded agent scrapes until the other shards can have taken over.
        """
        try:
            await self._discovery.wait_for_handover()
        finally:
            self._discovery.stop()
        await self._pool.stop()
        await self._receivers.stop(drain_seconds)

    def _scrape(self) -> None:
        """Set the scrape pool's targets to this shard's static and discovered targets."""
        discovery = self._discovery
        if discovery.assignment.shard is None:
            return
        own, others = discovery.split_targets(self._config.targets)
        self._pool.set_targets(
            [*own, *discovery.targets],
            self._config.routing,
            {target.key for target in (*others, *discovery.other_shards)},
        )

    def view(self) -> AgentView:
        """Return a snapshot of the agent."""
        return AgentView(
            self._clock.unix(),
            self._pool.loops,
            self._pool.totals,
            self._receivers.state(),
            self._config.dropped + self._discovery.dropped,
            self.error,
            self._configured,
            self._discovery,
        )
