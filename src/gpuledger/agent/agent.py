"""The agent as a whole: the targets of its configuration, and the receivers of what they tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.config.file import AgentConfig
from gpuledger.agent.deliver.receivers import Receivers
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.agent.discovery.discovery import Discovery
from gpuledger.agent.discovery.selection import SCRAPE_STEPS, SelectionReport
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.scrape.loop import TargetLoop
from gpuledger.agent.scrape.pool import Pool
from gpuledger.agent.scrape.state import GroupTotals, PageMemory
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock


@dataclass(frozen=True, slots=True)
class AgentView:
    """One moment of the agent, for its page and its metrics. `now` is unix seconds; `error` is why the
    configuration, as it stands now, could not be taken, and `configured` when the one in force was.
    `reports` and `watches` tell of what is looked for in a cluster; `shard` is None where the agent is
    alone, or cannot know its share yet, which `waiting` says. `former` are shares that it goes on with until
    others have taken them over. `unready` says what was not tried yet.
    """

    now: float
    loops: tuple[TargetLoop, ...]
    totals: dict[str, GroupTotals]
    receivers: tuple[ReceiverState, ...]
    dropped: int
    error: str
    configured: float
    reports: tuple[SelectionReport, ...] = ()
    watches: tuple[IndexHealth, ...] = ()
    shard: Shard | None = None
    waiting: str = ""
    former: tuple[Shard, ...] = ()
    unready: str = ""

    def went_on(self, group: str) -> dict[str, int]:
        """How many targets of a group came past the steps that only a scrape can tell of, by step."""
        states = [loop.state for loop in self.loops if loop.target.group == group]
        passed = (sum(state.answered is True for state in states), sum(state.up is True for state in states))
        return dict(zip(SCRAPE_STEPS, passed, strict=True))


class Agent:
    """Used by the event loop's thread alone."""

    def __init__(
        self,
        config: AgentConfig,
        queues: Path,
        clock: Clock,
        discovery: Discovery | None = None,
        memory: PageMemory | None = None,
    ) -> None:
        self._config = config
        self._discovery = discovery
        self._clock = clock
        self._receivers = Receivers(config.receivers, queues, clock)
        self._pool = Pool(self._receivers.accept, clock, memory)
        self._configured = clock.unix()
        self.error = ""

    def start(self) -> None:
        """Scrape and deliver, in the running loop. Raises GpuledgerError when the queues cannot be had."""
        self._receivers.start()
        self._scrape()
        if self._discovery is not None:
            self._discovery.become(self._config.selections)
            self._discovery.start(self._scrape)

    async def become(self, config: AgentConfig) -> None:
        """Go on with another configuration. Raises GpuledgerError, and then goes on with the old one."""
        if config.receivers != self._config.receivers:
            await self._receivers.apply(config.receivers)
        self._config = config
        if self._discovery is not None:
            self._discovery.become(config.selections)
        self._scrape()
        self._configured = self._clock.unix()
        self.error = ""

    async def stop(self, drain_seconds: float) -> None:
        """Scrape no more, and deliver what is queued for so long at most; the rest waits on disk.

        One of several agents scrapes on until others can have heard of it.
        """
        if self._discovery is not None:
            await self._discovery.leave()
            self._discovery.stop()
        await self._pool.stop()
        await self._receivers.stop(drain_seconds)

    def _scrape(self) -> None:
        """Go on with the targets that there are now, as far as they are this shard's."""
        found, static = self._discovery, self._config.targets
        if found is None:
            self._pool.become(static, self._config.deliveries)
            return
        if found.shard is None:
            return
        shared = found.split(static)
        self._pool.become(
            [*shared.mine, *found.targets],
            self._config.deliveries,
            {target.key for target in (*shared.others, *found.others)},
        )

    def view(self) -> AgentView:
        """The agent as it is now."""
        found = self._discovery
        return AgentView(
            self._clock.unix(),
            self._pool.loops,
            self._pool.totals,
            self._receivers.state(),
            self._config.dropped + (found.dropped if found else 0),
            self.error,
            self._configured,
            found.reports if found else (),
            found.health if found else (),
            found.shard if found and found.shard != Shard() else None,
            found.waiting if found else "",
            found.former if found else (),
            found.unready if found else "",
        )
