"""Read access of the API to the ledger, in worker threads: never in the tick thread or the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from gpuledger.http.routes import PendingResponse, Response
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.responses import INTERNAL_ERROR, ApiError

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History


@dataclass(frozen=True)
class LedgerAccess:
    """Opens the ledger's history for reading.

    `open_history` raises GpuledgerError; None when the ledger is kept only in memory. A `simulated` ledger
    has its own time.
    """

    clock: Clock
    open_history: Callable[[], History] | None = None
    simulated: bool = False

    @contextmanager
    def open(self, reader: Reader = EVERYTHING) -> Iterator[History]:
        """A context with the open history, with the rows that `reader` may read.

        Raises ApiError when there is none or it cannot be read.
        """
        from sqlite3 import Error

        if self.open_history is None:
            raise ApiError(
                503,
                "no_books",
                "the ledger is kept only in memory; start gpuledger with --state-dir DIR to keep a history",
            )
        try:
            with closing(self.open_history()) as history:
                history.restrict(reader)
                yield history
        except GpuledgerError as error:
            raise ApiError(503, "no_books", str(error)) from None
        except (Error, ValueError, TypeError, OverflowError) as error:
            message = f"the ledger cannot be read ({type(error).__name__}: {error}); see the log and /health"
            raise ApiError(503, "no_books", message, retry=60) from None

    def now(self, state: NodeState, history: History | None = None) -> float:
        """The current time in unix seconds; in a simulated ledger the end of its history."""
        if not self.simulated:
            return self.clock.unix()
        # A ledger without readings has no end.
        return (history is not None and history.last) or state.unix


_LOG = logging.getLogger(__name__)

_Job = tuple[Callable[[], Response], PendingResponse, asyncio.AbstractEventLoop]

_BUSY = ApiError(
    503, "busy", "too many requests are waiting for this kind of response; retry in a moment", retry=2
)


class QueryWorker:
    """Computes responses one at a time in a daemon thread, which starts with the first one.

    Used in the event loop.
    """

    def __init__(self, name: str, waiting: int = 16) -> None:
        self._name = name
        self._max_waiting = waiting
        self._running: dict[Hashable, PendingResponse] = {}
        self._jobs: SimpleQueue[_Job] | None = None

    def submit(self, key: Hashable, compute: Callable[[], Response]) -> Response | PendingResponse:
        """Compute a response; pending requests with an equal key share it. 503 when too many are pending."""
        running = self._running.get(key)
        if running is not None and running.get_loop() is asyncio.get_running_loop():
            return running
        if len(self._running) >= self._max_waiting:
            return _BUSY.response
        if self._jobs is None:
            jobs: SimpleQueue[_Job] = SimpleQueue()
            # May raise, for lack of memory: then this request fails, and the next one tries again.
            Thread(target=_work, args=(jobs,), name=self._name, daemon=True).start()
            self._jobs = jobs
        loop = asyncio.get_running_loop()
        answer: PendingResponse = loop.create_future()
        self._jobs.put((compute, answer, loop))
        self._running[key] = answer
        answer.add_done_callback(lambda _: self._running.pop(key, None))
        return answer


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        compute, answer, loop = jobs.get()
        try:
            result = compute()
        except ApiError as refusal:
            result = refusal.response
        except Exception:  # noqa: BLE001  (the next job needs this thread)
            result = INTERNAL_ERROR.response
            with suppress(MemoryError):
                _LOG.exception("a response of the API failed")
        # Raised when the loop has ended: then no client waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, answer, result)
        # Released before waiting for the next job.
        del compute, answer, result


def _settle(answer: PendingResponse, result: Response) -> None:
    if not answer.done():
        answer.set_result(result)
