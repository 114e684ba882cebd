"""One term as the leader: the observed state of the cluster, and the tasks that watch and reconcile it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gpuledger.kubernetes.object_client import Json, ObjectClient
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.kinds import KINDS, ObjectKind
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Monitors, RenderObjects
from gpuledger.operator.object_lists import list_managed_objects, list_objects
from gpuledger.operator.reconcile import DelayQueue, Reconciler
from gpuledger.operator.render_context import OperatorIdentity
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.status_writer import StatusWriter
from gpuledger.operator.targets import FetchPage, TargetCounter, agent_pods
from gpuledger.operator.watches import ClusterWatch, WatchedKinds

log = logging.getLogger("gpuledger.operator")

# Seconds from the first change of a resource to its reconciliation: changes come in bursts.
_BURST_DELAY: Final = 0.2


class LeaderTerm:
    """Starts with empty state and keeps none afterwards: all persistent state is in the API server."""

    def __init__(
        self,
        api: ObjectClient,
        identity: OperatorIdentity,
        kinds: Sequence[ObjectKind],
        namespaces: Sequence[str],
        render: RenderObjects,
        settings: OperatorSettings,
        clock: Clock,
        counts: OperatorCounts,
    ) -> None:
        self._api = api
        self._kinds = kinds
        self._namespaces = namespaces
        self._settings = settings
        self._counts = counts
        self._due = DelayQueue()
        self.owned = ManagedObjects(self._wake)
        self.monitors = Monitors(render, settings.progress_deadline, self._wake)
        self._applier = Applier(api, self.owned, namespaces, counts)
        events = EventRecorder(api, identity.holder_identity, clock, counts)
        status_writer = StatusWriter(
            api, self.monitors, self.owned, events, clock, counts, settings.status_interval
        )
        self._reconciler = Reconciler(
            api, self.monitors, self.owned, self._applier, events, status_writer, self._due, counts
        )
        self._watch = ClusterWatch(
            identity.access,
            WatchedKinds(kinds, namespaces),
            self._on_monitor_change,
            self._on_object_change,
            clock,
        )

    async def run(
        self, stop: asyncio.Event, keep_lease: Callable[[], Awaitable[None]], fetch: FetchPage
    ) -> None:
        """Reconcile until `stop` is set or `keep_lease` returns. Raises the error of the task that failed."""
        tasks = [
            asyncio.create_task(coroutine, name=name)
            for name, coroutine in (
                ("stop", _wait_for_stop(stop)),
                ("lease", _wait_until_lost(keep_lease)),
                ("work", self._reconcile_all()),
                ("targets", self._count_targets(fetch)),
                ("watch", self._watch.run()),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _reconcile_all(self) -> None:
        """List everything before the first reconciliation, then at intervals: watches can miss deletions."""
        await self._list_all()
        reconciling = asyncio.create_task(self._reconciler.run())
        try:
            while True:
                await asyncio.wait((reconciling,), timeout=self._settings.resync_interval)
                if reconciling.done():
                    reconciling.result()
                try:
                    await self._list_all()
                except GpuledgerError as error:
                    log.warning("could not list objects and resources: %s", error)
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)

    async def _list_all(self) -> None:
        self._applier.forget_foreign_seeds()
        for kind in KINDS:
            objects = await list_managed_objects(self._api, kind, self._namespaces)
            self.owned.apply_listing(kind.kind, objects.bodies, objects.version)
        for kind in self._kinds:
            resources = await list_objects(self._api, kind)
            self.monitors.apply_listing(kind.kind, resources.bodies, resources.version)

    async def _count_targets(self, fetch: FetchPage) -> None:
        counter = TargetCounter(self._api, fetch)
        while True:
            await asyncio.sleep(self._settings.agent_interval)
            for monitor in self.monitors:
                objects = self.owned.objects_of(monitor.uid)
                agents = [agent_pods(body) for key, body in objects if key.kind == "StatefulSet"]
                targets = await counter.count_targets(agents)
                if targets != monitor.targets:
                    monitor.targets = targets
                    self._wake(monitor.uid)

    def _on_monitor_change(self, body: Json, deleted: bool) -> None:
        self._counts.watched += 1
        (self.monitors.remove_monitor if deleted else self.monitors.record_monitor)(body)

    def _on_object_change(self, body: Json, deleted: bool) -> None:
        self._counts.watched += 1
        (self.owned.remove_object if deleted else self.owned.record_object)(body)

    def _wake(self, uid: str) -> None:
        self._due.schedule(uid, _BURST_DELAY)


async def _wait_for_stop(stop: asyncio.Event) -> None:
    await stop.wait()


async def _wait_until_lost(keep_lease: Callable[[], Awaitable[None]]) -> None:
    await keep_lease()
