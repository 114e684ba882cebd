"""One term as the leader: the observed state of the cluster, and the tasks that watch and reconcile it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuledger.kubernetes.object_client import Json, ObjectClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.exporter_nodes import NodeObserver
from gpuledger.operator.job_nodes import JobNodes
from gpuledger.operator.judged_spec import RenderObjects
from gpuledger.operator.kinds import KINDS, ObjectKind
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Monitors
from gpuledger.operator.object_lists import list_managed_objects, list_objects
from gpuledger.operator.reconcile import DelayQueue, Reconciler
from gpuledger.operator.render_context import OperatorIdentity
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.targets import FetchPage, TargetCounter, agent_pods
from gpuledger.operator.watches import ClusterWatch

log = logging.getLogger("gpuledger.operator")

# Seconds from the first change of a resource to its reconciliation: changes come in bursts.
_BURST_DELAY: Final = 0.2


@dataclass(eq=False)
class LeaderTerm:
    """Starts with empty state and keeps none afterwards: all persistent state is in the API server."""

    api: ObjectClient
    identity: OperatorIdentity
    kinds: Sequence[ObjectKind]
    namespaces: Sequence[str]
    render: RenderObjects
    settings: OperatorSettings
    clock: Clock
    counts: OperatorCounts
    # The nodes that `render` puts into CronJobs.
    nodes: JobNodes
    managed: Sequence[ObjectKind] = KINDS

    def __post_init__(self) -> None:
        self._due = DelayQueue()
        self.owned = ManagedObjects(self._wake)
        self.monitors = Monitors(self.render, self.settings.progress_deadline, self._wake, self.nodes.look_up)
        self._applier = Applier(self.api, self.owned, self.namespaces, self.counts, self.managed)
        events = EventRecorder(self.api, self.identity.holder_identity, self.clock, self.counts)
        self._reconciler = Reconciler(
            self.api,
            self.monitors,
            self.owned,
            self._applier,
            events,
            self._due,
            self.clock,
            self.counts,
            self.settings.status_interval,
        )
        self.watch = ClusterWatch(
            self.identity.access,
            self.kinds,
            self.namespaces,
            self._on_monitor_change,
            self._on_object_change,
            self.clock,
            self.managed,
        )

    async def run(
        self, stop: asyncio.Event, keep_lease: Callable[[], Coroutine[Any, Any, None]], fetch: FetchPage
    ) -> None:
        """Reconcile until `stop` is set or `keep_lease` returns. Raises the error of the task that failed."""
        await run_until_first_ends(
            stop.wait(),
            keep_lease(),
            self._reconcile_all(),
            self._count_targets(fetch),
            self._observe_nodes(fetch),
            self._refresh_job_nodes(),
            self.watch.run(),
        )

    async def _reconcile_all(self) -> None:
        """List everything before the first reconciliation, then at intervals: watches can miss deletions."""
        await self._list_all()
        await run_until_first_ends(self._reconciler.run(), self._keep_listing())

    async def _keep_listing(self) -> None:
        while True:
            await asyncio.sleep(self.settings.resync_interval)
            try:
                await self._list_all()
            except GpuledgerError as error:
                log.warning("could not list objects and resources: %s", error)

    async def _list_all(self) -> None:
        self._applier.forget_foreign_seeds()
        for kind in self.managed:
            listed = await list_managed_objects(self.api, kind, self.namespaces)
            self.owned.apply_listing(kind.kind, *listed)
        for kind in self.kinds:
            self.monitors.apply_listing(kind.kind, *await list_objects(self.api, kind))

    async def _count_targets(self, fetch: FetchPage) -> None:
        counter = TargetCounter(self.api, fetch)
        while True:
            await asyncio.sleep(self.settings.agent_interval)
            for monitor in self.monitors:
                objects = self.owned.objects_of(monitor.uid)
                agents = [agent_pods(body) for key, body in objects if key.kind == "StatefulSet"]
                targets = await counter.count_targets(agents)
                if (targets, counter.silence) != (monitor.targets, monitor.silence):
                    monitor.targets, monitor.silence = targets, counter.silence
                    self._wake(monitor.uid)

    async def _observe_nodes(self, fetch: FetchPage) -> None:
        observers: dict[str, NodeObserver] = {}
        while True:
            await asyncio.sleep(self.settings.agent_interval)
            observers = {
                one.uid: observers.get(one.uid) or NodeObserver(self.api, fetch) for one in self.monitors
            }
            for monitor in self.monitors:
                objects = self.owned.objects_of(monitor.uid)
                # A CronJob beside a DaemonSet is suspended.
                kinds = {key.kind: body for key, body in objects}
                nodes = await observers[monitor.uid].observe(kinds.get("DaemonSet") or kinds.get("CronJob"))
                if nodes != monitor.nodes:
                    monitor.nodes = nodes
                    self._wake(monitor.uid)

    async def _refresh_job_nodes(self) -> None:
        while True:
            await asyncio.sleep(self.settings.nodes_interval)
            if await self.nodes.refresh(self.monitors.exporters()):
                self.monitors.render_again()

    def _on_monitor_change(self, body: Json, deleted: bool) -> None:
        self.counts.watched += 1
        (self.monitors.remove_monitor if deleted else self.monitors.record_monitor)(body)

    def _on_object_change(self, body: Json, deleted: bool) -> None:
        self.counts.watched += 1
        (self.owned.remove_object if deleted else self.owned.record_object)(body)

    def _wake(self, uid: str) -> None:
        self._due.schedule(uid, _BURST_DELAY)


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends, then cancel the others. Raises its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
