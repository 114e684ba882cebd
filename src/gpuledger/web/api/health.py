"""How the node is, in the words of its Page and of `gpuledger doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuledger.http.routes import Later, Request, Response
from gpuledger.model.checks import Finding
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.answers import answer
from gpuledger.web.api.books import Worker
from gpuledger.web.api.snapshot import status_of
from gpuledger.web.api.values import VERSION, Words, finite

# A diagnosis asks the API server, the kubelet and others: not at every look at a page.
EVERY = 300.0


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    findings: tuple[Finding, ...]
    unix: float
    elapsed: float


class HealthAnswers:
    """Answers with the newest Page; the diagnosis with it is made at the first ask, and at most every five
    minutes. Used in the event loop; `diagnose` runs in the worker's thread.
    """

    def __init__(
        self, diagnose: Callable[[], Iterable[Finding]] | None, clock: Clock, worker: Worker
    ) -> None:
        self._diagnose = diagnose
        self._clock = clock
        self._worker = worker
        self._last: _Diagnosis | None = None
        self._running: Later | None = None

    def respond(self, page: Callable[[], NodeState], request: Request) -> Response | Later:
        """At once while there is a young diagnosis."""
        diagnose, last = self._diagnose, self._last
        if diagnose is None or (last is not None and self._clock.elapsed() - last.elapsed < EVERY):
            return answer(health_of(page(), last), request)

        if self._running is None or self._running.done():

            def look() -> Response:
                # In this order: what is young is measured from the end of a look, which may take long.
                found = tuple(diagnose())
                self._last = _Diagnosis(found, self._clock.unix(), self._clock.elapsed())
                return Response()

            asked = self._worker.ask(self, look)
            if isinstance(asked, Response):
                return asked
            self._running = asked
        return self._after(self._running, page, request)

    def _after(self, running: Later, page: Callable[[], NodeState], request: Request) -> Later:
        mine: Later = asyncio.get_running_loop().create_future()

        def done(looked: Later) -> None:
            failed = looked.cancelled() or looked.result().status != 200
            told = looked.result() if failed else answer(health_of(page(), self._last), request)
            if not mine.done():
                mine.set_result(told)

        running.add_done_callback(done)
        return mine


def health_of(page: NodeState, diagnosis: _Diagnosis | None) -> Words:
    """Everything that is known of the node's condition."""
    health = page.health
    reload = health.reload
    return {
        "version": VERSION,
        "status": status_of(health, readings=page.snapshot is not None),
        "started": health.started,
        "ticks": health.ticks,
        "interval_seconds": health.interval,
        "asked_interval_seconds": health.asked_interval,
        "collectors": [
            {
                "name": one.name,
                "success": one.success,
                "seconds": finite(one.seconds),
                "last_success": one.last_success,
                "error": one.error,
                "failures": one.failures,
            }
            for one in health.collectors
        ],
        "maps": [
            {
                "name": one.name,
                "success": one.success,
                "last_success": one.last_success,
                "entries": one.entries,
                "error": one.error,
            }
            for one in health.maps
        ],
        "reload": None
        if reload is None
        else {
            "success": reload.success,
            "last_success": reload.last_success,
            "error": reload.error,
            "pending": list(reload.pending),
        },
        "findings": [] if diagnosis is None else [_finding(one) for one in diagnosis.findings],
        "findings_unix": None if diagnosis is None else diagnosis.unix,
    }


def _finding(one: Finding) -> Words:
    return {
        "check": one.check,
        "level": one.verdict.value,
        "summary": f"{one.what}: {one.why}",
        "remedy": one.remedy,
    }
