"""Writes the status of resources."""

from __future__ import annotations

import asyncio
from typing import Final

from gpuledger.kubernetes.object_client import ObjectClient
from gpuledger.model.source import Clock
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.kinds import resource_path
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Monitor, Monitors
from gpuledger.operator.rollout import rollout_of
from gpuledger.operator.status import MonitorConditions, build_status, is_urgent, status_patch

# Seconds added to a deadline, so that rounding does not schedule the check before it.
_ROUNDING_MARGIN: Final = 0.2


class StatusWriter:
    """Writes statuses: changed conditions at once, changed numbers at most every `interval` seconds."""

    def __init__(
        self,
        api: ObjectClient,
        monitors: Monitors,
        owned: ManagedObjects,
        events: EventRecorder,
        clock: Clock,
        counts: OperatorCounts,
        interval: float,
    ) -> None:
        self._api = api
        self._monitors = monitors
        self._owned = owned
        self._events = events
        self._clock = clock
        self._counts = counts
        self._interval = interval

    async def write_status(self, monitor: Monitor) -> float | None:
        """Write the status if it changed; returns the seconds until the next call is needed, None if none is.

        Raises what ObjectClient.merge raises.
        """
        now = asyncio.get_running_loop().time()
        conditions, stalled_in = self._conditions(monitor, now)
        before = monitor.body.get("status") or {}
        status = build_status(conditions, before, self._clock.unix())
        if not (changed := status_patch(status, before)):
            return stalled_in
        if not is_urgent(status, before) and (left := monitor.status_written_at + self._interval - now) > 0:
            return left if stalled_in is None else min(left, stalled_in)
        monitor.status_written_at = now
        self._monitors.record_monitor(
            await self._api.merge(f"{resource_path(monitor.body)}/status", {"status": changed})
        )
        self._counts.status_writes += 1
        if conditions.problem is not None:
            await self._events.post_event(
                monitor.body, "Warning", conditions.problem.reason, str(conditions.problem)
            )
        return stalled_in

    def _conditions(self, monitor: Monitor, now: float) -> tuple[MonitorConditions, float | None]:
        """The state that the conditions describe, and the seconds until missing pods count as stalled."""
        objects = dict(self._owned.objects_of(monitor.uid))
        exporters, agents = (
            rollout_of(body for key, body in objects.items() if key.kind == kind)
            for kind in ("DaemonSet", "StatefulSet")
        )
        left = monitor.deadline.seconds_left((exporters, agents), monitor.generation, now)
        rendered = monitor.current_rendering
        conditions = MonitorConditions(
            monitor.generation,
            monitor.problem,
            tuple(map(str, monitor.parsed.ignored)),
            rendered.receiver_missing if rendered is not None else None,
            exporters,
            agents,
            monitor.targets if agents is not None else None,
            stalled=left == 0.0,
            applied_spec=monitor.applied_spec.status_text if monitor.applied_spec is not None else None,
        )
        return conditions, left + _ROUNDING_MARGIN if left else None
