"""The time in which one operator acts: what it knows, and the tasks that keep it known and act on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gpuledger.kubernetes.writing import Api, Json
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import Counts
from gpuledger.operator.events import Events, Teller
from gpuledger.operator.facts import Place
from gpuledger.operator.kinds import KINDS, Kind
from gpuledger.operator.monitors import Monitors, Render
from gpuledger.operator.objects_listing import list_all, list_made
from gpuledger.operator.owned import Owned
from gpuledger.operator.reconcile import Due, Reconciler
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.targets import Fetch, TargetCounter, agents_of
from gpuledger.operator.watching import Watch, Watched

log = logging.getLogger("gpuledger.operator")

# Seconds: changes come in bursts, and so long after the first of them is looked.
_BURST: Final = 0.2


class Term:
    """Begins with nothing known, and ends with nothing kept: all that counts is in the API server."""

    def __init__(
        self,
        api: Api,
        place: Place,
        kinds: Sequence[Kind],
        namespaces: Sequence[str],
        render: Render,
        settings: OperatorSettings,
        clock: Clock,
        counts: Counts,
    ) -> None:
        self._api = api
        self._kinds = kinds
        self._namespaces = namespaces
        self._settings = settings
        self._counts = counts
        self._due = Due()
        self.owned = Owned(self._wake)
        self.monitors = Monitors(render, settings.progress_deadline, self._wake)
        self._applier = Applier(api, self.owned, namespaces, counts)
        events = Events(api, place.identity, clock, counts)
        teller = Teller(api, self.monitors, self.owned, events, clock, counts, settings.status_interval)
        self._reconciler = Reconciler(
            api, self.monitors, self.owned, self._applier, events, teller, self._due, counts
        )
        self._watch = Watch(place.access, Watched(kinds, namespaces), self._take_resource, self._take_made)

    async def run(
        self,
        stop: asyncio.Event,
        keep: Callable[[], Awaitable[None]],
        fetch: Fetch,
        begun: Callable[[], None],
    ) -> None:
        """Act until `stop`, or until `keep` (which keeps the Lease) returns. Raises what ended a part."""
        work = [
            asyncio.create_task(one, name=name)
            for name, one in (
                ("stop", _wait(stop)),
                ("lease", _wait_for(keep)),
                ("work", self._work()),
                ("targets", self._count_targets(fetch)),
                ("watch", self._watch.run(begun)),
            )
        ]
        *ours, watching = work
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Who acts no more must not write any more: before kopf, which takes its time.
            for task in ours:
                task.cancel()
            await asyncio.gather(*ours, return_exceptions=True)
            self._watch.stop()
            await asyncio.gather(watching, return_exceptions=True)
            begun()
        # What kopf met says more than what its end did to the others.
        for task in (watching, *done):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if any(task.cancelled() for task in done):
            raise GpuledgerError("the watches of the API server were given up")

    async def _work(self) -> None:
        """All is listed before anything is done, and now and then, for a watch may have missed a deletion."""
        await self._list()
        reconciling = asyncio.create_task(self._reconciler.run())
        try:
            while True:
                await asyncio.wait((reconciling,), timeout=self._settings.resync_interval)
                if reconciling.done():
                    reconciling.result()
                try:
                    await self._list()
                except GpuledgerError as error:
                    log.warning("what was made could not be listed: %s", error)
        finally:
            reconciling.cancel()
            await asyncio.gather(reconciling, return_exceptions=True)

    async def _list(self) -> None:
        self._applier.look_again()
        for kind in KINDS:
            made = await list_made(self._api, kind, self._namespaces)
            self.owned.settle(kind.kind, made.bodies, made.version)
        for kind in self._kinds:
            found = await list_all(self._api, kind)
            self.monitors.settle(kind.kind, found.bodies, found.version)

    async def _count_targets(self, fetch: Fetch) -> None:
        counter = TargetCounter(self._api, fetch)
        while True:
            await asyncio.sleep(self._settings.agent_interval)
            for monitor in self.monitors:
                made = self.owned.of(monitor.uid)
                agents = [agents_of(body) for key, body in made if key.kind == "StatefulSet"]
                targets = await counter.count(agents)
                if targets != monitor.targets:
                    monitor.targets = targets
                    self._wake(monitor.uid)

    def _take_resource(self, body: Json, deleted: bool) -> None:
        self._counts.watched += 1
        (self.monitors.forget if deleted else self.monitors.take)(body)

    def _take_made(self, body: Json, deleted: bool) -> None:
        self._counts.watched += 1
        (self.owned.forget if deleted else self.owned.take)(body)

    def _wake(self, uid: str) -> None:
        self._due.wake(uid, _BURST)


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


async def _wait_for(keep: Callable[[], Awaitable[None]]) -> None:
    await keep()
