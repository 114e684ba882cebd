"""`/api/v1/health`: the node's Health, and the findings of `gpuledger doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from gpuledger.http.routes import PendingResponse, Request, Response
from gpuledger.model.checks import Finding
from gpuledger.model.node_state import NodeState
from gpuledger.model.source import Clock
from gpuledger.web.api.json_values import VERSION, JsonObject, finite
from gpuledger.web.api.ledger_access import QueryWorker
from gpuledger.web.api.responses import json_response
from gpuledger.web.api.snapshot import status_fields

# Seconds. A diagnosis queries the API server, the kubelet and others: too expensive for every request.
DIAGNOSIS_INTERVAL = 300.0


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    findings: tuple[Finding, ...]
    unix: float
    elapsed: float


class HealthHandler:
    """Responds with the newest NodeState and the last diagnosis.

    The diagnosis runs with the first request and at most every five minutes. Used in the event loop;
    `diagnose` runs in the worker's thread.
    """

    def __init__(
        self, diagnose: Callable[[], Iterable[Finding]] | None, clock: Clock, worker: QueryWorker
    ) -> None:
        self._diagnose = diagnose
        self._clock = clock
        self._worker = worker
        self._last: _Diagnosis | None = None
        self._running: PendingResponse | None = None

    def respond(self, state: Callable[[], NodeState], request: Request) -> Response | PendingResponse:
        """Respond immediately with a recent diagnosis, else after a new one."""
        diagnose, last = self._diagnose, self._last
        if diagnose is None or (
            last is not None and self._clock.elapsed() - last.elapsed < DIAGNOSIS_INTERVAL
        ):
            return json_response(build_health(state(), last), request)

        if self._running is None or self._running.done():

            def run_diagnosis() -> Response:
                # Read the clock last: the age counts from the end of the diagnosis, which may take long.
                found = tuple(diagnose())
                self._last = _Diagnosis(found, self._clock.unix(), self._clock.elapsed())
                return Response()

            submitted = self._worker.submit(self, run_diagnosis)
            if isinstance(submitted, Response):
                return submitted
            self._running = submitted
        return asyncio.ensure_future(self._respond_after(self._running, state, request))

    async def _respond_after(
        self, running: PendingResponse, state: Callable[[], NodeState], request: Request
    ) -> Response:
        # Other requests wait for the same diagnosis: a client that closes must not cancel it.
        diagnosed = await asyncio.shield(running)
        if diagnosed.status != 200:
            return diagnosed
        return json_response(build_health(state(), self._last), request)


def build_health(state: NodeState, diagnosis: _Diagnosis | None) -> JsonObject:
    """The JSON of the node's health and the last diagnosis."""
    health = state.health
    return {
        "version": VERSION,
        "status": status_fields(health, readings=state.snapshot is not None),
        "started": health.started,
        "ticks": health.ticks,
        "interval_seconds": health.interval,
        "asked_interval_seconds": health.configured_interval,
        "collectors": [asdict(one) | {"seconds": finite(one.seconds)} for one in health.collectors],
        "maps": [asdict(one) for one in health.owner_indexes],
        "reload": None if health.reload is None else asdict(health.reload),
        "findings": [] if diagnosis is None else [_finding(one) for one in diagnosis.findings],
        "findings_unix": None if diagnosis is None else diagnosis.unix,
    }


def _finding(one: Finding) -> JsonObject:
    return {
        "check": one.check,
        "level": one.verdict.value,
        "summary": f"{one.what}: {one.why}",
        "remedy": one.remedy,
    }
