"""The reconcile loop: applies one resource at a time and writes its status.

Reconciliation is level-triggered: it compares the whole resource with the state in the API server and ignores
which event occurred. So a restarted operator or a new leader continues where the previous one stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.apply import Applier, ApplyOutcome, ObjectRejected
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder, find_creation_failure
from gpuledger.operator.judged_spec import AppliedSpec
from gpuledger.operator.kinds import is_being_deleted, object_key, object_path
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Decision, Monitor, Monitors
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.rollout import is_suspended, job_rollout, rollout_of
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.status import (
    MonitorConditions,
    ReconcileProblem,
    build_status,
    is_urgent,
    join_messages,
    status_patch,
)


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
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()


log = logging.getLogger("gpuledger.operator")

FINALIZER: Final = "gpuledger.dev/operator"
# Seconds between retries.
_MAX_PAUSE: Final = 60.0
_STATUS_PAUSE: Final = 6.0
# Added to a deadline, so that rounding does not schedule the check before it.
_ROUNDING_MARGIN: Final = 0.2
# Repairs per minute without delay; further ones are delayed exponentially.
_FREE_REPAIRS: Final = 5
_MINUTE: Final = 60.0
# While pods are missing, the reason is looked up so often: no watch reports it.
_CREATION_PAUSE: Final = 10.0
# Consecutive transient failures that the status does not report.
_FREE_FAILURES: Final = 2


@dataclass(eq=False, slots=True)
class Reconciler:
    """Reconciles one resource after the other.

    Changed conditions are written into the status at once, changed numbers at most every `status_interval`
    seconds.
    """

    api: ObjectClient
    monitors: Monitors
    owned: ManagedObjects
    applier: Applier
    events: EventRecorder
    due: DelayQueue
    clock: Clock
    counts: OperatorCounts
    status_interval: float

    async def run(self) -> None:
        """Reconcile the resources that are due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            uid = await self.due.next_key()
            began = loop.time()
            monitor = self.monitors.get(uid)
            if monitor is None:
                continue
            after = await self.reconcile(monitor)
            self.counts.reconcile_seconds += loop.time() - began
            if after is not None:
                self.due.schedule(uid, after)

    async def reconcile(self, monitor: Monitor) -> float | None:
        """Apply a resource and write its status; returns the seconds to the next reconciliation, if any."""
        try:
            after = await self._reconcile_objects(monitor)
            self.counts.reconciles["refused" if monitor.problem else "success"] += 1
        except GpuledgerError as error:
            log.warning("%s: %s", monitor.name, error)
            self.counts.reconciles["error"] += 1
            after = self._record_failure(monitor, "ApplyFailed", str(error))
            if _is_transient(error) and monitor.failures <= _FREE_FAILURES:
                return after
        except Exception as error:
            self.counts.reconciles["error"] += 1
            after = self._record_failure(monitor, "InternalError", f"{type(error).__name__}: {error}")
            log.exception("%s: internal error", monitor.name)
        if self._is_gone(monitor) or is_being_deleted(monitor.body):
            return after
        creation_after = await self._look_up_creation_failure(monitor)
        try:
            status_after = await self._write_status(monitor)
        except GpuledgerError as error:
            log.warning("%s: could not write the status: %s", monitor.name, error)
            status_after = _STATUS_PAUSE
        times = (after, status_after, creation_after)
        return min((seconds for seconds in times if seconds is not None), default=None)

    async def _look_up_creation_failure(self, monitor: Monitor) -> float | None:
        """Look up why pods are missing; returns the seconds until the next call is needed, if any."""
        sets = []
        for key, body in self.owned.objects_of(monitor.uid):
            if key.kind in ("DaemonSet", "StatefulSet"):
                sets += [body] if (found := rollout_of([body])) and found.missing else []
            elif key.kind == "CronJob" and not job_rollout(body, _succeeded(monitor)).complete:
                active = (body.get("status") or {}).get("active") or ()
                sets += [{"kind": "Job", "metadata": dict(job)} for job in active]
        monitor.creation_failure = await find_creation_failure(self.api, sets)
        return _CREATION_PAUSE if sets else None

    async def _reconcile_objects(self, monitor: Monitor) -> float | None:
        if not is_being_deleted(monitor.body):
            await self.monitors.prepare(monitor)
        if self._is_gone(monitor):
            return None
        if is_being_deleted(monitor.body):
            await self._finalize(monitor)
            return None
        decision = self.monitors.decide(monitor)
        desired = decision.desired
        if desired is None or desired.rendered is None:
            monitor.problem, monitor.failures = decision.problem, 0
            return await self._keep_applied(monitor, decision.displaced)
        await self._add_finalizer(monitor)
        if self._is_gone(monitor):
            return None
        try:
            pause = await self._converge(monitor, desired.rendered)
        except ObjectRejected as error:
            return await self._apply_accepted_section(monitor, decision, _refused_section(desired, error))
        if pause is None:
            monitor.problem, monitor.failures = decision.problem, 0
            self.monitors.record_applied(monitor, desired)
        return pause

    async def _apply_accepted_section(self, monitor: Monitor, decision: Decision, problem: Problem) -> float:
        """Apply the section without a refused object, else keep what was applied last.

        Returns the seconds until the whole spec is tried again.
        """
        refused, untouched = [problem], set[str]()
        # Displaced exporters must not be kept.
        while not decision.displaced:
            judged = await self.monitors.judge_refused(monitor, refused)
            if judged.spec is None or judged.spec.rendered is None:
                break
            try:
                pause = await self._converge(monitor, judged.spec.rendered.without_changes_of(untouched))
            except ObjectRejected as another:
                problem = _refused_section(judged.spec, another)
                if problem.path in {one.path for one in refused}:
                    if another.component in untouched:
                        break
                    # As it was applied last, the section is refused, too: by a new policy or server.
                    untouched.add(another.component)
                else:
                    refused.append(problem)
                continue
            # Without another problem of the spec, targets that are left out are reported separately.
            problems = refused if decision.problem is None else judged.problems
            after = self._record_failure(monitor, "Rejected", *map(str, problems), *judged.kept, halts=False)
            if pause is not None:
                return min(after, pause)
            self.monitors.record_applied(monitor, judged.spec)
            return after
        lines = decision.problem.lines if decision.problem is not None else ()
        after = self._record_failure(monitor, "Rejected", *map(str, refused), *lines)
        keep_after = await self._keep_applied(monitor, decision.displaced)
        return after if keep_after is None else min(after, keep_after)

    def _is_gone(self, monitor: Monitor) -> bool:
        return self.monitors.get(monitor.uid) is None

    async def _keep_applied(self, monitor: Monitor, displaced: bool) -> float | None:
        """Keep the objects of the last applied spec, and restore them after changes by other clients."""
        rendered = None if monitor.applied_spec is None else monitor.applied_spec.rendered
        if rendered is None or rendered.refused:
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
        outcome = await self.applier.converge(
            monitor.uid,
            desired,
            [dict(body) for body in rendered.seeds],
            [dict(body) for body in rendered.kept],
        )
        monitor.warnings = tuple(
            f"{object_key(body)}: {text}"
            for body in desired
            for text in self.api.warnings.get(object_path(body), ())
        )
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
        deleted = await self.applier.delete_all_of(monitor.body)
        log.info("%s was deleted, together with %d objects", monitor.name, deleted)
        await self._set_finalizers(monitor, [name for name in finalizers if name != FINALIZER])
        self.events.forget_monitor(monitor.uid)

    async def _set_finalizers(self, monitor: Monitor, finalizers: list[str]) -> None:
        version = monitor.body["metadata"]["resourceVersion"]
        patch: Json = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        try:
            self.monitors.record_monitor(await self.api.merge(object_path(monitor.body), patch))
        except WriteRefused as error:
            if error.status != 404:
                raise
            # The resource is already deleted.
            self.monitors.remove_monitor(monitor.body)

    async def _post_events(self, monitor: Monitor, outcome: ApplyOutcome) -> None:
        now = asyncio.get_running_loop().time()
        monitor.repairs.extend(now for _ in outcome.repaired)
        actions = {"created or changed": outcome.changed, "deleted": outcome.pruned}
        messages = [f"{action}: {join_messages(map(str, keys))}." for action, keys in actions.items() if keys]
        if messages:
            await self.events.post_event(monitor.body, "Normal", "Applied", " ".join(messages))
        if outcome.repaired:
            message = f"restored after changes by another client: {join_messages(map(str, outcome.repaired))}"
            await self.events.post_event(monitor.body, "Normal", "Repaired", message)

    def _repair_pause(self, monitor: Monitor, desired: Iterable[Json]) -> float:
        """Seconds to wait before the next repair, because another client keeps changing the objects."""
        now = asyncio.get_running_loop().time()
        while monitor.repairs and monitor.repairs[0] < now - _MINUTE:
            monitor.repairs.popleft()
        excess = len(monitor.repairs) - _FREE_REPAIRS
        if excess < 0 or any(self.owned.is_new_content(body) for body in desired):
            return 0.0
        return monitor.repairs[-1] + min(_MAX_PAUSE, 2.0**excess) - now

    def _record_failure(self, monitor: Monitor, reason: str, *lines: str, halts: bool = True) -> float:
        """Record a failure; returns the seconds until the next try."""
        monitor.problem = ReconcileProblem(reason, lines, halts)
        monitor.failures += 1
        return min(2.0 ** (monitor.failures - 1), _MAX_PAUSE)

    async def _write_status(self, monitor: Monitor) -> float | None:
        """Write the status if it changed; returns the seconds until the next call is needed, None if none is.

        Raises what ObjectClient.merge raises.
        """
        now = asyncio.get_running_loop().time()
        conditions, stalled_in = self._conditions(monitor, now)
        before = monitor.body.get("status") or {}
        status = build_status(conditions, before, self.clock.unix())
        if not (changed := status_patch(status, before)):
            return stalled_in
        left = monitor.status_written_at + self.status_interval - now
        if left > 0 and not is_urgent(status, before):
            return left if stalled_in is None else min(left, stalled_in)
        monitor.status_written_at = now
        self.monitors.record_monitor(
            await self.api.merge(f"{object_path(monitor.body)}/status", {"status": changed})
        )
        self.counts.status_writes += 1
        for problem in conditions.problems:
            await self.events.post_event(monitor.body, "Warning", problem.reason, str(problem))
        return stalled_in

    def _conditions(self, monitor: Monitor, now: float) -> tuple[MonitorConditions, float | None]:
        """The state that the conditions describe, and the seconds until missing pods count as stalled."""
        objects = dict(self.owned.objects_of(monitor.uid))
        exporters, agents = (
            rollout_of(body for key, body in objects.items() if key.kind == kind)
            for kind in ("DaemonSet", "StatefulSet")
        )
        jobs = next((body for key, body in objects.items() if key.kind == "CronJob"), None)
        expected = exporters
        if jobs is not None and not is_suspended(jobs):
            exporters = job_rollout(jobs, _succeeded(monitor))
            # The first Job may start much later.
            expected = exporters if exporters.observed else None
        left = monitor.deadline.seconds_left((expected, agents), monitor.generation, now)
        judged = monitor.judged
        rendered = judged.spec.rendered if judged is not None and judged.spec is not None else None
        conditions = MonitorConditions(
            monitor.generation,
            monitor.problem,
            tuple(map(str, monitor.parsed.ignored)),
            # Those of a spec that is not applied as a whole are lines of its problem.
            () if judged is None or rendered is None or judged.kept else tuple(map(str, judged.problems)),
            rendered.receiver_missing if rendered is not None else None,
            exporters,
            agents,
            monitor.targets if agents is not None else None,
            creation_failure=monitor.creation_failure,
            silence=monitor.silence if agents is not None else "",
            warnings=monitor.warnings,
            nodes=monitor.nodes,
            stalled=left == 0.0,
            schedule=str(jobs["spec"]["schedule"]) if jobs is not None else "",
            suspended=jobs is not None and exporters is None,
            note=rendered.note if rendered is not None else "",
            applied_spec=monitor.applied_spec.status_text if monitor.applied_spec is not None else None,
        )
        return conditions, left + _ROUNDING_MARGIN if left else None


def _refused_section(spec: AppliedSpec, error: ObjectRejected) -> Problem:
    """The problem with the path of the section from which the refused object was rendered."""
    monitor = spec.monitor
    path = monitor.exporter_path if error.component == "exporter" else monitor.agent_path
    return Problem(path, str(error))


def _succeeded(monitor: Monitor) -> int | None:
    """The number of nodes on which the newest pod of a Job ended with success; None if no pod is known."""
    return sum(node.ready for node in monitor.nodes) if monitor.nodes else None


def _is_transient(error: GpuledgerError) -> bool:
    """Whether a retry may succeed: the server is unavailable, or another client wrote concurrently."""
    return not isinstance(error, WriteRefused) or error.status in (409, 429) or error.status >= 500
