"""The state of a node's API: takes each NodeState, and holds what the responses are built from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuledger.http.limits import HttpLimits
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices
from gpuledger.model.access import Reader
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.events import EventHub
from gpuledger.web.api.ledger_access import LedgerAccess, QueryWorker
from gpuledger.web.api.recent import STEP_SECONDS, RecentHistory

if TYPE_CHECKING:
    from gpuledger.ledger.report.teams import Team
    from gpuledger.model.checks import Finding


# Returns the output of a command, with parameters by name, for a reader. Raises GpuledgerError.
RunCommand = Callable[[str, Mapping[str, str], Reader], Mapping[str, Any]]


@dataclass(frozen=True)
class ApiOptions:
    """Options of the API: the name of the machine, prices, the checks to run (None: none), the limits of
    streams, the teams and the time zone (empty: the machine's) of reports, and the thresholds of advice.
    `diagnose` is called in a separate thread, and so is `run_command` (None: no commands).
    """

    node: str = ""
    prices: Prices = field(default_factory=Prices)
    diagnose: Callable[[], Iterable[Finding]] | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)
    teams: tuple[Team, ...] = ()
    timezone: str = ""
    advice: AdviceSettings = field(default_factory=AdviceSettings)
    run_command: RunCommand | None = None


class Api:
    """The API of a node, for the node's lifetime. `publish` is called by the thread that publishes states,
    everything else in the event loop. Each point of the last hour is a mean over `step` seconds.
    """

    def __init__(
        self, state: NodeState, ledger_access: LedgerAccess, clock: Clock, step: int = STEP_SECONDS
    ) -> None:
        self.ledger_access = ledger_access
        self.clock = clock
        self.recent = RecentHistory(step)
        self.events = EventHub(clock)
        # One thread each: a report over a year must not delay a list of sessions.
        self.workers = {
            name: QueryWorker(f"api {name}") for name in ("energy", "sessions", "health", "books")
        }
        # Distinguishes this run's states from those of an earlier run with the same numbers.
        self.run = f"{int(clock.unix() * 1000):x}"
        # The newest NodeState and its number.
        self.current = (0, state)

    def publish(self, state: NodeState) -> None:
        """Take a new NodeState."""
        self.current = (self.current[0] + 1, state)
        self.recent.add(state)
        self.events.publish(state)
