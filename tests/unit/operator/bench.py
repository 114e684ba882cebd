"""A reconciler with a server in memory, for tests of reconciliations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.object_client import ApiRequest, ObjectClient
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.judged_spec import RenderObjects
from gpuledger.operator.kinds import KINDS, owner_reference_of
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Monitors
from gpuledger.operator.object_lists import list_managed_objects
from gpuledger.operator.reconcile import DelayQueue, Reconciler
from gpuledger.operator.render.objects import render_objects
from gpuledger.operator.render_context import RenderContext
from operator_api import MemoryApi
from unit.operator.support import Json, gpu_monitor

PATH = "/apis/gpuledger.dev/v1alpha1/gpumonitors/gpus"
EXPORTER = "/apis/apps/v1/namespaces/n/daemonsets/gpumonitor-gpus-exporter"
OLDER = PATH.replace("gpus", "older")
ALONE: Json = {"agent": {"enabled": False}}


def context_of(body: Json) -> RenderContext:
    return RenderContext(owner_reference_of(body), "n", default_remote_write=({"url": "http://store/"},))


class Bench:
    """A reconciler and its server; changed numbers in a status are written once an hour."""

    def __init__(self, server: MemoryApi | None = None) -> None:
        self.server = server or MemoryApi()
        self.counts = counts = OperatorCounts()
        self.api = api = ObjectClient(self.server)
        clock = SystemClock()
        self.owned = ManagedObjects()
        self.render: RenderObjects = lambda body, monitor: render_objects(monitor, context_of(body))
        self.monitors = Monitors(lambda body, monitor: self.render(body, monitor), 600.0, lambda _: None)
        applier = Applier(api, self.owned, ["n"], counts)
        events = EventRecorder(api, "me", clock, counts)
        self.reconciler = Reconciler(
            api, self.monitors, self.owned, applier, events, DelayQueue(), clock, counts, 3600.0
        )

    def change(self, **content: Any) -> None:
        """Write the resource as a user."""
        there = self.server.objects.get(PATH) or gpu_monitor(ALONE)
        metadata = {**there["metadata"], **content.pop("metadata", {})}
        generation = there["metadata"].get("generation", 0) + (
            "spec" in content or "generation" not in metadata
        )
        self.server.put_object(PATH, {**there, **content, "metadata": {**metadata, "generation": generation}})
        self.monitors.record_monitor(self.server.objects[PATH])

    async def reconcile(self) -> float | None:
        (monitor,) = self.monitors
        return await self.reconciler.reconcile(monitor)

    async def list_objects(self) -> None:
        """List the existing objects, as at the start of a term."""
        for kind in KINDS:
            self.owned.apply_listing(kind.kind, *await list_managed_objects(self.api, kind, ["n"]))

    def writes(self) -> list[str]:
        found = [one for one in self.server.writes if "/events" not in one]
        self.server.requests.clear()
        return found

    def exporters(self, ready: int, created: int = 8) -> None:
        """Write the status of the DaemonSet, as its controller does."""
        numbers = {
            **dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled"), 8),
            "currentNumberScheduled": created,
        }
        there = self.server.objects[EXPORTER]
        status = {"observedGeneration": 1, "numberReady": ready, **numbers}
        self.server.put_object(EXPORTER, {**there, "status": status})
        self.owned.record_object(self.server.objects[EXPORTER])


class Statuses(MemoryApi):
    """A server that stores writes of the subresource `status` in the resource."""

    def _patch(self, request: ApiRequest, body: Json) -> tuple[int, Json]:
        if not request.path.endswith("/status"):
            return super()._patch(request, body)
        path = request.path.removesuffix("/status")
        return super()._patch(
            ApiRequest("PATCH", path, request.query, request.body, request.content_type), body
        )


def run(work: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        await work(Bench(Statuses()))

    asyncio.run(within())


def status_of(bench: Bench) -> Json:
    found: Json = bench.server.objects[PATH].get("status") or {}
    return found
