"""The operator as a whole: it waits for its turn, acts for as long as it is, and waits again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from gpuledger.kubernetes.writing import Api, HttpTransport, Json, Refused
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.operator.counts import Counts
from gpuledger.operator.crd_definitions import foreign
from gpuledger.operator.facts import Facts, Place
from gpuledger.operator.families import View
from gpuledger.operator.kinds import DEFINITION, GPU_MONITORS, WHATAP_AGENTS, Kind, as_owner
from gpuledger.operator.leader import Leader
from gpuledger.operator.render.objects import Rendered, render
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.targets import Fetch, fetch_page
from gpuledger.operator.term import Term

log = logging.getLogger("gpuledger.operator")

_SHORTEST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class Operator:
    """Holds the Lease or waits for it; with it, makes of the cluster what the resources ask for.

    `fetch` gets the pages of agents.
    """

    def __init__(
        self,
        place: Place,
        facts: Facts,
        settings: OperatorSettings,
        clock: Clock,
        fetch: Fetch = fetch_page,
    ) -> None:
        self.counts = Counts()
        self._place = place
        self._facts = facts
        self._settings = settings
        self._clock = clock
        self._fetch = fetch
        self._api = Api(HttpTransport(place.access), self.counts.requested)
        self._leader = Leader(
            self._api, place.namespace, settings.lease_name, place.identity, settings.lease_duration, clock
        )
        self._served: dict[str, bool] = {}
        self._term: Term | None = None

    async def run(self, stop: asyncio.Event, begun: Callable[[], None] = lambda: None) -> None:
        """Go on until `stop`. `begun` is called whenever something else may have taken the signals."""
        failures = 0
        try:
            while not stop.is_set():
                if not await _until(stop, self._leader.acquire()):
                    break
                try:
                    await self._act(stop, begun)
                    failures = 0
                except GpuledgerError as error:
                    failures += 1
                    log.error("%s", error)
                except Exception:
                    # kopf ends with whatever it met; another try is worth more than a restart of the pod.
                    failures += 1
                    log.exception("the operator was interrupted")
                await self._leader.release()
                if failures and not stop.is_set():
                    pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** (failures - 1))
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), pause)
        finally:
            await self._leader.release()
            await self._api.close()

    def view(self) -> View:
        """For the metrics."""
        term = self._term
        conditions: dict[tuple[str, str, str], str] = {}
        for monitor in term.monitors if term else ():
            for one in (monitor.body.get("status") or {}).get("conditions") or ():
                labels = (
                    str(monitor.body["kind"]),
                    str(monitor.body["metadata"]["name"]),
                    str(one.get("type")),
                )
                conditions[labels] = str(one.get("status"))
        objects = Counter(key.kind for key in term.owned) if term else Counter()
        return View(
            self.counts, self._leader.leads and term is not None, self._served, conditions, dict(objects)
        )

    async def _act(self, stop: asyncio.Event, begun: Callable[[], None]) -> None:
        """One term: until the Lease is lost, or `stop`."""
        kinds = await self._kinds()
        namespaces = [self._facts.namespace]
        if WHATAP_AGENTS in kinds:
            namespaces.append(self._facts.whatap_namespace)
        term = Term(
            self._api, self._place, kinds, namespaces, self._render, self._settings, self._clock, self.counts
        )
        self._term = term
        try:
            await term.run(stop, self._leader.keep, self._fetch, begun)
        finally:
            self._term = None

    def _render(self, body: Json, monitor: GpuMonitor) -> Rendered:
        return render(monitor, self._facts.of(as_owner(body)))

    async def _kinds(self) -> list[Kind]:
        """The kinds of resources that are ours to serve. Raises GpuledgerError when there is none."""
        wanted = [GPU_MONITORS, *([WHATAP_AGENTS] if self._settings.whatap_compat else [])]
        self._served = {kind.kind: await self._is_ours(kind) for kind in wanted}
        served = [kind for kind in wanted if self._served[kind.kind]]
        if not served:
            raise GpuledgerError(
                "there is no definition of GpuMonitor in this cluster; install the chart anew"
            )
        return served

    async def _is_ours(self, kind: Kind) -> bool:
        name = f"{kind.plural}.{kind.group}"
        try:
            found = await self._api.get(DEFINITION.path(name=name))
        except Refused as error:
            if error.status != 404:
                raise
            log.warning("there is no definition %s: no %s is served", name, kind.kind)
            return False
        if why := foreign(found):
            log.warning("%s", why)
        return not why


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work came to its end before it was to stop."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done() and not stop.is_set()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
