"""The API of a node: fed with each Page, and what its answers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuledger.http.limits import Limits
from gpuledger.ledger.report.settings import Prices
from gpuledger.model.checks import Finding
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.books import BooksAsRead, Worker
from gpuledger.web.api.events import Events
from gpuledger.web.api.recent import STEP, Recent


@dataclass(frozen=True, slots=True)
class Terms:
    """What settings say about answers: the name of the machine, prices, how a diagnosis is made (None: not at
    all), and of `limits` how many streams there may be. `diagnose` is called in a thread of its own.
    """

    node: str = ""
    prices: Prices = field(default_factory=Prices)
    diagnose: Callable[[], Iterable[Finding]] | None = None
    limits: Limits = field(default_factory=Limits)


class Api:
    """Lives as long as the node does. `publish` is called by whoever publishes Pages, all else in the event
    loop. `step` is how many seconds a point of the last hour is the mean of.
    """

    def __init__(self, page: NodeState, books: BooksAsRead, clock: Clock, step: int = STEP) -> None:
        self.books = books
        self.clock = clock
        self.recent = Recent(step)
        self.events = Events(clock)
        # Each has a thread: a report over a year must not keep a list of sessions waiting.
        self.workers = {name: Worker(f"api {name}") for name in ("energy", "sessions", "health")}
        # Tells the states of this run from those of the one before, which had the same numbers.
        self.run = f"{int(clock.unix() * 1000):x}"
        self._current = (0, page)

    @property
    def current(self) -> tuple[int, NodeState]:
        """The newest Page and its number."""
        return self._current

    def publish(self, page: NodeState) -> None:
        """There is a new Page."""
        self._current = (self._current[0] + 1, page)
        self.recent.add(page)
        self.events.publish(page)
