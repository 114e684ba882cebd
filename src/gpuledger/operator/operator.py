"""The operator: waits until it is the leader, reconciles for one term, and waits again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from gpuledger.kubernetes.object_client import HttpApiTransport, Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.crd_definitions import foreign_definition
from gpuledger.operator.families import OperatorView
from gpuledger.operator.kinds import (
    CRD_KIND,
    GPU_MONITOR_KIND,
    WHATAP_AGENT_KIND,
    ObjectKind,
    owner_reference_of,
)
from gpuledger.operator.leader_election import LeaderElection
from gpuledger.operator.leader_term import LeaderTerm
from gpuledger.operator.render.objects import Rendered, render_objects
from gpuledger.operator.render_context import OperatorIdentity, RenderContext
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.targets import FetchPage, fetch_page

log = logging.getLogger("gpuledger.operator")

_MIN_PAUSE: Final = 1.0
_MAX_PAUSE: Final = 30.0


class GpuMonitorOperator:
    """Acquires the Lease and, as the leader, reconciles the resources. `fetch` reads pages of agents."""

    def __init__(
        self,
        identity: OperatorIdentity,
        context: RenderContext,
        settings: OperatorSettings,
        clock: Clock,
        fetch: FetchPage = fetch_page,
    ) -> None:
        self.counts = OperatorCounts()
        self._identity = identity
        self._context = context
        self._settings = settings
        self._clock = clock
        self._fetch = fetch
        self._api = ObjectClient(HttpApiTransport(identity.access), self.counts.count_request)
        self._leader = LeaderElection(
            self._api,
            identity.namespace,
            settings.lease_name,
            identity.holder_identity,
            settings.lease_duration,
            clock,
        )
        self._served: dict[str, bool] = {}
        self._term: LeaderTerm | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        failures = 0
        try:
            while not stop.is_set():
                if not await _finish_before_stop(stop, self._leader.acquire()):
                    break
                try:
                    await self._run_term(stop)
                    failures = 0
                except GpuledgerError as error:
                    failures += 1
                    log.error("%s", error)
                except Exception:
                    # A retry costs less than a restart of the pod.
                    failures += 1
                    log.exception("the operator failed; retrying")
                await self._leader.release()
                if failures and not stop.is_set():
                    pause = min(_MAX_PAUSE, _MIN_PAUSE * 2.0 ** (failures - 1))
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), pause)
        finally:
            await self._leader.release()
            await self._api.close()

    def view(self) -> OperatorView:
        """A snapshot for the metrics."""
        term = self._term
        conditions: dict[tuple[str, str, str], str] = {}
        for monitor in term.monitors if term else ():
            for condition in (monitor.body.get("status") or {}).get("conditions") or ():
                labels = (
                    str(monitor.body["kind"]),
                    str(monitor.body["metadata"]["name"]),
                    str(condition.get("type")),
                )
                conditions[labels] = str(condition.get("status"))
        objects = Counter(key.kind for key in term.owned) if term else Counter()
        return OperatorView(
            self.counts, self._leader.is_leader and term is not None, self._served, conditions, dict(objects)
        )

    async def _run_term(self, stop: asyncio.Event) -> None:
        """Reconcile until the Lease is lost or `stop` is set."""
        kinds = await self._served_kinds()
        namespaces = [self._context.namespace]
        if WHATAP_AGENT_KIND in kinds:
            namespaces.append(self._context.whatap_namespace)
        term = LeaderTerm(
            self._api,
            self._identity,
            kinds,
            namespaces,
            self._render,
            self._settings,
            self._clock,
            self.counts,
        )
        self._term = term
        try:
            await term.run(stop, self._leader.keep_renewing, self._fetch)
        finally:
            self._term = None

    def _render(self, body: Json, monitor: GpuMonitor) -> Rendered:
        return render_objects(monitor, self._context.for_owner(owner_reference_of(body)))

    async def _served_kinds(self) -> list[ObjectKind]:
        """The kinds of resources with our CRD. Raises GpuledgerError if there is none."""
        kinds = [GPU_MONITOR_KIND, *([WHATAP_AGENT_KIND] if self._settings.whatap_compat else [])]
        self._served = {kind.kind: await self._is_own_crd(kind) for kind in kinds}
        served = [kind for kind in kinds if self._served[kind.kind]]
        if not served:
            raise GpuledgerError("the CRD of GpuMonitor is not installed; reinstall the chart")
        return served

    async def _is_own_crd(self, kind: ObjectKind) -> bool:
        name = f"{kind.plural}.{kind.group}"
        try:
            found = await self._api.get(CRD_KIND.path(name=name))
        except WriteRefused as error:
            if error.status != 404:
                raise
            log.warning("the CRD %s is not installed; %s resources are not reconciled", name, kind.kind)
            return False
        if why := foreign_definition(found):
            log.warning("%s", why)
        return not why


async def _finish_before_stop(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it ends or `stop` is set; returns whether it ended first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done() and not stop.is_set()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
