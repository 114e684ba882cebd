"""Events about a resource (`kubectl describe` shows them): few, and never the same one twice in an hour."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final

from gpuledger.kubernetes.access import MANAGER
from gpuledger.kubernetes.writing import Api, Json, Refused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.counts import Counts
from gpuledger.operator.kinds import EVENT, resource_path
from gpuledger.operator.monitors import Monitor, Monitors
from gpuledger.operator.owned import Owned, digest
from gpuledger.operator.rollout import rollout_of
from gpuledger.operator.status import Standing, changes, is_urgent, status_of

log = logging.getLogger("gpuledger.operator")

# Those of cluster-scoped resources live here.
_NAMESPACE = "default"


class Events:
    """Posts events, each under a name made of what it says.

    An event that says the same again is refused by the API server while the first is kept (an hour), so that
    a restart, or a resource that stays ill, repeats nothing. That one cannot be posted is no failure.
    """

    def __init__(self, api: Api, identity: str, clock: Clock, counts: Counts) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._counts = counts
        self._last: dict[tuple[str, str], str] = {}

    async def post(self, about: Json, kind: str, reason: str, message: str) -> None:
        """`kind` is Normal or Warning. What was said last of a resource by this reason is not said again."""
        metadata = about["metadata"]
        if self._last.get((metadata["uid"], reason)) == message:
            return
        self._last[metadata["uid"], reason] = message
        now = datetime.fromtimestamp(self._clock.unix(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = digest([metadata["uid"], metadata.get("generation"), reason, message])[:16]
        body = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": f"{metadata['name']}.{name}", "namespace": _NAMESPACE},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion"),
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": MANAGER, "host": self._identity},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._api.create(EVENT.path(_NAMESPACE), body)
        except Refused as error:
            if error.status != 409:
                log.warning("%s", error)
        except GpuledgerError as error:
            log.debug("%s", error)
        else:
            self._counts.events += 1

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._last = {key: message for key, message in self._last.items() if key[0] != uid}


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

    async def families(self, monitor: Monitor) -> float | None:
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
