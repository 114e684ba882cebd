"""The loop: whatever happened, one resource at a time is brought to what it asks for, and told how it stands.

Nothing here depends on which event came: a resource is looked at as a whole, so that an operator that was
killed anywhere, and one that takes over, goes on from what the API server has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from gpuledger.kubernetes.writing import Api, Json, Refused
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.apply import Applier, Outcome, Rejected
from gpuledger.operator.counts import Counts
from gpuledger.operator.events import Events, Teller
from gpuledger.operator.kinds import Key, is_ending, resource_path
from gpuledger.operator.monitors import Monitor, Monitors
from gpuledger.operator.owned import Owned
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.status import Trouble, joined


class Due:
    """Keys with the time at which each is due, by the running loop's clock."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._changed = asyncio.Event()

    def wake(self, key: str, after: float = 0.0) -> None:
        """In so many seconds, or when it was due already if that is sooner."""
        at = asyncio.get_running_loop().time() + after
        if at < self._times.get(key, float("inf")):
            self._times[key] = at
            self._changed.set()

    async def next(self) -> str:
        """The next key, once it is due."""
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
# Seconds between tries.
_LONGEST_PAUSE: Final = 60.0
_STATUS_PAUSE: Final = 6.0
# So many repairs a minute are made at once; who goes on changing our fields waits for longer and longer.
_FREE_REPAIRS: Final = 5
_MINUTE: Final = 60.0
# What may pass by itself is told only when it has not, so many times in a row.
_FREE_FAILURES: Final = 2


class Reconciler:
    """Works on one resource after the other, for as long as `run` runs."""

    def __init__(
        self,
        api: Api,
        monitors: Monitors,
        owned: Owned,
        applier: Applier,
        events: Events,
        teller: Teller,
        due: Due,
        counts: Counts,
    ) -> None:
        self._api = api
        self._monitors = monitors
        self._owned = owned
        self._applier = applier
        self._events = events
        self._teller = teller
        self._due = due
        self._counts = counts

    async def run(self) -> None:
        """Look at what is due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            uid = await self._due.next()
            began = loop.time()
            monitor = self._monitors.get(uid)
            if monitor is None:
                continue
            after = await self.look(monitor)
            self._counts.reconcile_seconds += loop.time() - began
            if after is not None:
                self._due.wake(uid, after)

    async def look(self, monitor: Monitor) -> float | None:
        """Bring it on, and say how it stands; seconds after which to look again."""
        try:
            after = await self._bring(monitor)
            self._counts.reconciles["refused" if monitor.trouble else "success"] += 1
        except GpuledgerError as error:
            log.warning("%s: %s", monitor.name, error)
            self._counts.reconciles["error"] += 1
            after = self._failed(monitor, Trouble("ApplyFailed", (str(error),)))
            if _may_pass(error) and monitor.failures <= _FREE_FAILURES:
                return after
        except Exception as error:
            self._counts.reconciles["error"] += 1
            after = self._failed(monitor, Trouble("InternalError", (f"{type(error).__name__}: {error}",)))
            log.exception("%s could not be worked on", monitor.name)
        if self._is_gone(monitor) or is_ending(monitor.body):
            return after
        try:
            told = await self._teller.families(monitor)
        except GpuledgerError as error:
            log.warning("%s: its status could not be written: %s", monitor.name, error)
            told = _STATUS_PAUSE
        return min((one for one in (after, told) if one is not None), default=None)

    async def _bring(self, monitor: Monitor) -> float | None:
        if not is_ending(monitor.body):
            await self._monitors.prepare(monitor)
        if self._is_gone(monitor):
            return None
        if is_ending(monitor.body):
            await self._end(monitor)
            return None
        judged = self._monitors.judge(monitor)
        if judged.wanted is None or judged.wanted.rendered is None:
            monitor.trouble, monitor.failures = judged.trouble, 0
            return await self._keep(monitor, judged.ousted)
        await self._hold(monitor)
        if self._is_gone(monitor):
            return None
        try:
            pause = await self._converge(monitor, judged.wanted.rendered)
        except Rejected as error:
            after = self._failed(monitor, Trouble("Rejected", (str(error),)))
            kept = await self._keep(monitor, judged.ousted)
            return after if kept is None else min(after, kept)
        if pause is None:
            monitor.trouble, monitor.failures = None, 0
            self._monitors.applied(monitor, judged.wanted)
        return pause

    def _is_gone(self, monitor: Monitor) -> bool:
        return self._monitors.get(monitor.uid) is None

    async def _keep(self, monitor: Monitor, ousted: bool) -> float | None:
        """What was made of the last good spec stays as it is: what somebody changes in it is set right."""
        kept = None if monitor.good is None else monitor.good.rendered
        if kept is None or kept.problems:
            return None
        try:
            return await self._converge(monitor, kept.without_exporters() if ousted else kept)
        except Rejected as error:
            log.warning("%s: what was applied last cannot be kept so: %s", monitor.name, error)
            return _LONGEST_PAUSE

    async def _converge(self, monitor: Monitor, rendered: Rendered) -> float | None:
        """Have these objects. Seconds to wait first, where somebody goes on changing them, or None."""
        wanted = [dict(body) for body in rendered.objects]
        if (pause := self._repair_pause(monitor, wanted)) > 0:
            return pause
        outcome = await self._applier.converge(monitor.uid, wanted, [dict(body) for body in rendered.seeds])
        await self._report(monitor, outcome)
        return None

    async def _hold(self, monitor: Monitor) -> None:
        """Have the finalizer before anything is made: then nothing is left when the resource goes."""
        finalizers = monitor.body["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            await self._set_finalizers(monitor, [*finalizers, FINALIZER])

    async def _end(self, monitor: Monitor) -> None:
        finalizers = monitor.body["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        deleted = await self._applier.clean(monitor.body)
        log.info("%s is deleted, and with it %d objects that were made for it", monitor.name, deleted)
        await self._set_finalizers(monitor, [one for one in finalizers if one != FINALIZER])
        self._events.forget(monitor.uid)

    async def _set_finalizers(self, monitor: Monitor, finalizers: list[str]) -> None:
        version = monitor.body["metadata"]["resourceVersion"]
        patch: Json = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        try:
            self._monitors.take(await self._api.merge(resource_path(monitor.body), patch))
        except Refused as error:
            if error.status != 404:
                raise
            # Nothing holds it, and nothing has to.
            self._monitors.forget(monitor.body)

    async def _report(self, monitor: Monitor, outcome: Outcome) -> None:
        now = asyncio.get_running_loop().time()
        monitor.repairs.extend(now for _ in outcome.repaired)
        if outcome.changed or outcome.pruned:
            message = f"{_listed('made or changed', outcome.changed)}{_listed('deleted', outcome.pruned)}"
            await self._events.post(monitor.body, "Normal", "Applied", message.strip())
        if outcome.repaired:
            message = f"changed by somebody else and set right: {joined(map(str, outcome.repaired))}"
            await self._events.post(monitor.body, "Normal", "Repaired", message)

    def _repair_pause(self, monitor: Monitor, wanted: Iterable[Json]) -> float:
        """How long to leave objects alone that somebody else goes on changing."""
        now = asyncio.get_running_loop().time()
        while monitor.repairs and monitor.repairs[0] < now - _MINUTE:
            monitor.repairs.popleft()
        many = len(monitor.repairs) - _FREE_REPAIRS
        if many < 0 or any(self._owned.is_new(body) for body in wanted):
            return 0.0
        return monitor.repairs[-1] + min(_LONGEST_PAUSE, 2.0**many) - now

    def _failed(self, monitor: Monitor, trouble: Trouble) -> float:
        """Seconds after which to try again."""
        monitor.trouble = trouble
        monitor.failures += 1
        return min(2.0 ** (monitor.failures - 1), _LONGEST_PAUSE)


def _listed(what: str, keys: list[Key]) -> str:
    return f"{what}: {joined(map(str, keys))}. " if keys else ""


def _may_pass(error: GpuledgerError) -> bool:
    """Whether it may well go the next time: the server is away, or somebody wrote at the same time."""
    return not isinstance(error, Refused) or error.status in (409, 429) or error.status >= 500
