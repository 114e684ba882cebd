"""What takes time is computed in a thread of its own; who asked gets it later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from gpuledger.outputs.routes import Later, Response
from gpuledger.web.api.answers import INTERNAL, Refused

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
