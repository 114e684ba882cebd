"""The operator: waits until it is the leader, reconciles for one term, and waits again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.kubernetes.fields import mappings_at
from gpuledger.kubernetes.object_client import HttpApiTransport, Json, ObjectClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.crd_definitions import foreign_definition
from gpuledger.operator.families import OperatorView
from gpuledger.operator.job_nodes import JobNodes
from gpuledger.operator.kinds import (
    CRD_KIND,
    GPU_MONITOR_KIND,
    WHATAP_AGENT_KIND,
    ObjectKind,
    managed_kinds,
    owner_reference_of,
)
from gpuledger.operator.leader_election import LeaderElection
from gpuledger.operator.leader_term import LeaderTerm, run_until_first_ends
from gpuledger.operator.object_lists import find_cron_job_version, get_if_exists
from gpuledger.operator.render.objects import Rendered, render_objects
from gpuledger.operator.render_context import OperatorIdentity, RenderContext
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.targets import FetchPage, fetch_page

log = logging.getLogger("gpuledger.operator")

_MIN_PAUSE: Final = 1.0
_MAX_PAUSE: Final = 30.0


@dataclass(eq=False)
class GpuMonitorOperator:
    """Acquires the Lease and, as the leader, reconciles the resources. `fetch` reads pages of agents."""

    identity: OperatorIdentity
    context: RenderContext
    settings: OperatorSettings
    clock: Clock
    fetch: FetchPage = fetch_page

    def __post_init__(self) -> None:
        self.counts = OperatorCounts()
        self._api = ObjectClient(HttpApiTransport(self.identity.access), self.counts.count_request)
        self._leader = LeaderElection(
            self._api,
            self.identity.namespace,
            self.settings.lease_name,
            self.identity.holder_identity,
            self.settings.lease_duration,
            self.clock,
        )
        self._served: dict[str, bool] = {}
        self._term: LeaderTerm | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        failures = 0
        try:
            while not stop.is_set():
                await run_until_first_ends(stop.wait(), self._leader.acquire())
                if stop.is_set():
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
                        async with asyncio.timeout(pause):
                            await stop.wait()
        finally:
            await self._leader.release()
            await self._api.close()

    def view(self) -> OperatorView:
        """A snapshot for the metrics."""
        term = self._term
        conditions: dict[tuple[str, ...], str] = {}
        for monitor in term.monitors if term else ():
            kind, name = str(monitor.body["kind"]), str(monitor.body["metadata"]["name"])
            for condition in mappings_at(monitor.body.get("status"), "conditions"):
                conditions[kind, name, str(condition.get("type"))] = str(condition.get("status"))
        objects = Counter(key.kind for key in term.owned) if term else Counter()
        refused = term.watch.refused_kinds if term else set()
        served = {kind: found and kind not in refused for kind, found in self._served.items()}
        return OperatorView(
            self.counts, self._leader.is_leader and term is not None, served, conditions, dict(objects)
        )

    async def _run_term(self, stop: asyncio.Event) -> None:
        """Reconcile until the Lease is lost or `stop` is set."""
        kinds = await self._served_kinds()
        namespaces = [self.context.namespace]
        if WHATAP_AGENT_KIND in kinds:
            namespaces.append(self.context.whatap_namespace)
        version, nodes = await find_cron_job_version(self._api), JobNodes(self._api)
        context = replace(self.context, cron_job_version=version)

        def render(body: Json, monitor: GpuMonitor) -> Rendered:
            owner, names = owner_reference_of(body), nodes.names(monitor.exporter)
            return render_objects(monitor, replace(context, owner=owner, gpu_nodes=names))

        term = LeaderTerm(
            self._api,
            self.identity,
            kinds,
            namespaces,
            render,
            self.settings,
            self.clock,
            self.counts,
            nodes,
            managed_kinds(version),
        )
        self._term = term
        try:
            await term.run(stop, self._leader.keep_renewing, self.fetch)
        finally:
            self._term = None

    async def _served_kinds(self) -> list[ObjectKind]:
        """The kinds of resources with our CRD. Raises GpuledgerError if there is none."""
        kinds = [GPU_MONITOR_KIND, *([WHATAP_AGENT_KIND] if self.settings.whatap_compat else [])]
        self._served = {kind.kind: await self._is_own_crd(kind) for kind in kinds}
        served = [kind for kind in kinds if self._served[kind.kind]]
        if not served:
            raise GpuledgerError("the CRD of GpuMonitor is not installed; reinstall the chart")
        return served

    async def _is_own_crd(self, kind: ObjectKind) -> bool:
        name = f"{kind.plural}.{kind.group}"
        found = await get_if_exists(self._api, CRD_KIND.path(name=name))
        if found is None:
            log.warning("the CRD %s is not installed; %s resources are not reconciled", name, kind.kind)
            return False
        if why := foreign_definition(found):
            log.warning("%s", why)
        return not why
