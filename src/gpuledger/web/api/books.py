"""The books as the API reads them: beside the tick that writes them, never in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from gpuledger.http.routes import Later, Response
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.answers import INTERNAL, Refused

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History


@dataclass(frozen=True, slots=True)
class BooksAsRead:
    """Which books there are: `opens` reads them anew and raises GpuledgerError; None where they are in memory
    alone. `made_up` ones have a time of their own.
    """

    clock: Clock
    opens: Callable[[], History] | None = None
    made_up: bool = False

    @contextmanager
    def reading(self) -> Iterator[History]:
        """The books for as long as they are read. Raises Refused when there are none, or none that can be
        read.
        """
        from sqlite3 import Error

        if self.opens is None:
            raise Refused(
                503,
                "no_books",
                "the books are kept in memory alone; start gpuledger with --state-dir DIR to have them",
            )
        try:
            history = self.opens()
            try:
                yield history
            finally:
                history.close()
        except GpuledgerError as error:
            raise Refused(503, "no_books", str(error)) from None
        except (Error, ValueError, TypeError, OverflowError) as error:
            message = f"the books cannot be read ({type(error).__name__}: {error}); see the log and /health"
            raise Refused(503, "no_books", message, retry=60) from None

    def now(self, page: NodeState, history: History | None = None) -> float:
        """Unix seconds of now; in made-up books, whose time may go faster or be long ago, when they end."""
        if not self.made_up:
            return self.clock.unix()
        return page.unix if history is None else history.last


_LOG = logging.getLogger(__name__)

_Job = tuple[Callable[[], Response], Later, asyncio.AbstractEventLoop]

_BUSY = Refused(503, "busy", "too many others are waiting for such an answer; ask again in a moment", retry=2)


class Worker:
    """Computes one answer after the other. Its thread begins with the first one, and does not keep the
    program from ending. Used in the event loop.
    """

    def __init__(self, name: str, waiting: int = 16) -> None:
        self._name = name
        self._most = waiting
        self._running: dict[Hashable, Later] = {}
        self._jobs: SimpleQueue[_Job] | None = None

    def ask(self, what: Hashable, compute: Callable[[], Response]) -> Response | Later:
        """The answer later, the same one for all who ask for the same until it is there; 503 when too many
        others wait already.
        """
        running = self._running.get(what)
        if running is not None and running.get_loop() is asyncio.get_running_loop():
            return running
        if len(self._running) >= self._most:
            return _BUSY.response
        loop = asyncio.get_running_loop()
        answer: Later = loop.create_future()
        self._running[what] = answer
        answer.add_done_callback(lambda _: self._running.pop(what, None))
        if self._jobs is None:
            self._jobs = SimpleQueue()
            Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
        self._jobs.put((compute, answer, loop))
        return answer


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        compute, answer, loop = jobs.get()
        try:
            result = compute()
        except Refused as refusal:
            result = refusal.response
        except Exception:  # noqa: BLE001  (the next one needs this thread)
            _LOG.exception("an answer of the API failed")
            result = INTERNAL.response
        # When the loop has ended, nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, answer, result)
        # Not kept until the next job comes.
        del compute, answer, result


def _settle(answer: Later, result: Response) -> None:
    if not answer.done():
        answer.set_result(result)
