"""The reconcile loop: applies one resource at a time and writes its status.

Reconciliation is level-triggered: it compares the whole resource with the state in the API server and ignores
which event occurred. So a restarted operator or a new leader continues where the previous one stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.apply import Applier, ApplyOutcome, ObjectRejected
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.kinds import ObjectKey, is_being_deleted, resource_path
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Monitor, Monitors
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.status import ReconcileProblem, join_messages
from gpuledger.operator.status_writer import StatusWriter


class DelayQueue:
    """A queue of keys, each with the earliest time at which it is due, by the event loop's clock."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._changed = asyncio.Event()

    def schedule(self, key: str, after: float = 0.0) -> None:
        """Make the key due in `after` seconds, unless it is due earlier."""
        at = asyncio.get_running_loop().time() + after
        if at < self._times.get(key, float("inf")):
            self._times[key] = at
            self._changed.set()

    async def next_key(self) -> str:
        """Wait until a key is due, remove it and return it."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            soonest = min(self._times, key=self._times.__getitem__, default=None)
            left = None if soonest is None else self._times[soonest] - loop.time()
            if soonest is not None and left is not None and left <= 0:
                del self._times[soonest]
                return soonest
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue


log = logging.getLogger("gpuledger.operator")

FINALIZER: Final = "gpuledger.dev/operator"
# Seconds between retries.
_MAX_PAUSE: Final = 60.0
_STATUS_PAUSE: Final = 6.0
# Repairs per minute without delay; further ones are delayed exponentially.
_FREE_REPAIRS: Final = 5
_MINUTE: Final = 60.0
# Consecutive transient failures that the status does not report.
_FREE_FAILURES: Final = 2


class Reconciler:
    """Reconciles one resource after the other."""

    def __init__(
        self,
        api: ObjectClient,
        monitors: Monitors,
        owned: ManagedObjects,
        applier: Applier,
        events: EventRecorder,
        status_writer: StatusWriter,
        due: DelayQueue,
        counts: OperatorCounts,
    ) -> None:
        self._api = api
        self._monitors = monitors
        self._owned = owned
        self._applier = applier
        self._events = events
        self._status_writer = status_writer
        self._due = due
        self._counts = counts

    async def run(self) -> None:
        """Reconcile the resources that are due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            uid = await self._due.next_key()
            began = loop.time()
            monitor = self._monitors.get(uid)
            if monitor is None:
                continue
            after = await self.reconcile(monitor)
            self._counts.reconcile_seconds += loop.time() - began
            if after is not None:
                self._due.schedule(uid, after)

    async def reconcile(self, monitor: Monitor) -> float | None:
        """Apply a resource and write its status; returns the seconds to the next reconciliation, if any."""
        try:
            after = await self._reconcile_objects(monitor)
            self._counts.reconciles["refused" if monitor.problem else "success"] += 1
        except GpuledgerError as error:
            log.warning("%s: %s", monitor.name, error)
            self._counts.reconciles["error"] += 1
            after = self._record_failure(monitor, ReconcileProblem("ApplyFailed", (str(error),)))
            if _is_transient(error) and monitor.failures <= _FREE_FAILURES:
                return after
        except Exception as error:
            self._counts.reconciles["error"] += 1
            after = self._record_failure(
                monitor, ReconcileProblem("InternalError", (f"{type(error).__name__}: {error}",))
            )
            log.exception("%s: internal error", monitor.name)
        if self._is_gone(monitor) or is_being_deleted(monitor.body):
            return after
        try:
            status_after = await self._status_writer.write_status(monitor)
        except GpuledgerError as error:
            log.warning("%s: could not write the status: %s", monitor.name, error)
            status_after = _STATUS_PAUSE
        return min((seconds for seconds in (after, status_after) if seconds is not None), default=None)

    async def _reconcile_objects(self, monitor: Monitor) -> float | None:
        if not is_being_deleted(monitor.body):
            await self._monitors.prepare(monitor)
        if self._is_gone(monitor):
            return None
        if is_being_deleted(monitor.body):
            await self._finalize(monitor)
            return None
        decision = self._monitors.decide(monitor)
        if decision.desired is None or decision.desired.rendered is None:
            monitor.problem, monitor.failures = decision.problem, 0
            return await self._keep_applied(monitor, decision.displaced)
        await self._add_finalizer(monitor)
        if self._is_gone(monitor):
            return None
        try:
            pause = await self._converge(monitor, decision.desired.rendered)
        except ObjectRejected as error:
            after = self._record_failure(monitor, ReconcileProblem("Rejected", (str(error),)))
            keep_after = await self._keep_applied(monitor, decision.displaced)
            return after if keep_after is None else min(after, keep_after)
        if pause is None:
            monitor.problem, monitor.failures = None, 0
            self._monitors.record_applied(monitor, decision.desired)
        return pause

    def _is_gone(self, monitor: Monitor) -> bool:
        return self._monitors.get(monitor.uid) is None

    async def _keep_applied(self, monitor: Monitor, displaced: bool) -> float | None:
        """Keep the objects of the last applied spec, and restore them after changes by other clients."""
        rendered = None if monitor.applied_spec is None else monitor.applied_spec.rendered
        if rendered is None or rendered.problems:
            return None
        try:
            return await self._converge(monitor, rendered.without_exporters() if displaced else rendered)
        except ObjectRejected as error:
            log.warning("%s: could not restore the last applied spec: %s", monitor.name, error)
            return _MAX_PAUSE

    async def _converge(self, monitor: Monitor, rendered: Rendered) -> float | None:
        """Apply these objects; None, or the seconds to wait because another client keeps changing them."""
        desired = [dict(body) for body in rendered.objects]
        if (pause := self._repair_pause(monitor, desired)) > 0:
            return pause
        outcome = await self._applier.converge(monitor.uid, desired, [dict(body) for body in rendered.seeds])
        await self._post_events(monitor, outcome)
        return None

    async def _add_finalizer(self, monitor: Monitor) -> None:
        """Add the finalizer before the first object is created, so that deletion leaves nothing behind."""
        finalizers = monitor.body["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            await self._set_finalizers(monitor, [*finalizers, FINALIZER])

    async def _finalize(self, monitor: Monitor) -> None:
        finalizers = monitor.body["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        deleted = await self._applier.delete_all_of(monitor.body)
        log.info("%s was deleted, together with %d objects", monitor.name, deleted)
        await self._set_finalizers(monitor, [name for name in finalizers if name != FINALIZER])
        self._events.forget_monitor(monitor.uid)

    async def _set_finalizers(self, monitor: Monitor, finalizers: list[str]) -> None:
        version = monitor.body["metadata"]["resourceVersion"]
        patch: Json = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        try:
            self._monitors.record_monitor(await self._api.merge(resource_path(monitor.body), patch))
        except WriteRefused as error:
            if error.status != 404:
                raise
            # The resource is already deleted.
            self._monitors.remove_monitor(monitor.body)

    async def _post_events(self, monitor: Monitor, outcome: ApplyOutcome) -> None:
        now = asyncio.get_running_loop().time()
        monitor.repairs.extend(now for _ in outcome.repaired)
        if outcome.changed or outcome.pruned:
            changed = _object_list_message("created or changed", outcome.changed)
            message = f"{changed}{_object_list_message('deleted', outcome.pruned)}"
            await self._events.post_event(monitor.body, "Normal", "Applied", message.strip())
        if outcome.repaired:
            message = f"restored after changes by another client: {join_messages(map(str, outcome.repaired))}"
            await self._events.post_event(monitor.body, "Normal", "Repaired", message)

    def _repair_pause(self, monitor: Monitor, desired: Iterable[Json]) -> float:
        """Seconds to wait before the next repair, because another client keeps changing the objects."""
        now = asyncio.get_running_loop().time()
        while monitor.repairs and monitor.repairs[0] < now - _MINUTE:
            monitor.repairs.popleft()
        excess = len(monitor.repairs) - _FREE_REPAIRS
        if excess < 0 or any(self._owned.is_new_content(body) for body in desired):
            return 0.0
        return monitor.repairs[-1] + min(_MAX_PAUSE, 2.0**excess) - now

    def _record_failure(self, monitor: Monitor, problem: ReconcileProblem) -> float:
        """Record a failure; returns the seconds until the next try."""
        monitor.problem = problem
        monitor.failures += 1
        return min(2.0 ** (monitor.failures - 1), _MAX_PAUSE)


def _object_list_message(action: str, keys: list[ObjectKey]) -> str:
    return f"{action}: {join_messages(map(str, keys))}. " if keys else ""


def _is_transient(error: GpuledgerError) -> bool:
    """Whether a retry may succeed: the server is unavailable, or another client wrote concurrently."""
    return not isinstance(error, WriteRefused) or error.status in (409, 429) or error.status >= 500
