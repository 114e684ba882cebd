"""The status of a resource, written where it is otherwise than it was."""

from __future__ import annotations

import asyncio
from typing import Final

from gpuledger.model.source import Clock
from gpuledger.operator.api import Api
from gpuledger.operator.counts import Counts
from gpuledger.operator.events import Events
from gpuledger.operator.kinds import resource_path
from gpuledger.operator.monitors import Monitor, Monitors
from gpuledger.operator.owned import Owned
from gpuledger.operator.rollout import rollout_of
from gpuledger.operator.status import Standing, changes, is_urgent, status_of

# Seconds: so that rounding does not make a deadline look not yet over.
_MOMENT: Final = 0.2


class Teller:
    """Writes statuses: conditions that turn at once, mere numbers every `interval` seconds at most."""

    def __init__(
        self,
        api: Api,
        monitors: Monitors,
        owned: Owned,
        events: Events,
        clock: Clock,
        counts: Counts,
        interval: float,
    ) -> None:
        self._api = api
        self._monitors = monitors
        self._owned = owned
        self._events = events
        self._clock = clock
        self._counts = counts
        self._interval = interval

    async def tell(self, monitor: Monitor) -> float | None:
        """Write the status if it is not so already; seconds until it may be, or has to be looked at again.

        Raises as Api.merge does.
        """
        now = asyncio.get_running_loop().time()
        standing, stalls = self._standing(monitor, now)
        before = monitor.body.get("status") or {}
        status = status_of(standing, before, self._clock.unix())
        if not (changed := changes(status, before)):
            return stalls
        if not is_urgent(status, before) and (left := monitor.written + self._interval - now) > 0:
            return left if stalls is None else min(left, stalls)
        monitor.written = now
        self._monitors.take(
            await self._api.merge(f"{resource_path(monitor.body)}/status", {"status": changed})
        )
        self._counts.status_writes += 1
        if standing.trouble is not None:
            await self._events.post(monitor.body, "Warning", standing.trouble.reason, str(standing.trouble))
        return stalls

    def _standing(self, monitor: Monitor, now: float) -> tuple[Standing, float | None]:
        """How it stands, and seconds until missing pods count as stalled."""
        made = dict(self._owned.of(monitor.uid))
        exporters, agents = (
            rollout_of(body for key, body in made.items() if key.kind == kind)
            for kind in ("DaemonSet", "StatefulSet")
        )
        left = monitor.deadline.look((exporters, agents), monitor.generation, now)
        rendered = monitor.rendered_now
        standing = Standing(
            monitor.generation,
            monitor.trouble,
            tuple(map(str, monitor.reading.ignored)),
            rendered.receiver_missing if rendered is not None else None,
            exporters,
            agents,
            monitor.targets if agents is not None else None,
            stalled=left == 0.0,
            applied=monitor.good.kept if monitor.good is not None else None,
        )
        return standing, left + _MOMENT if left else None
