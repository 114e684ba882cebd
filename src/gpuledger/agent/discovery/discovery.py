"""Keeps the targets of all selections up to date, and this agent's share of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuledger.agent.discovery.finder import Cluster, Finder
from gpuledger.agent.discovery.meta import ANNOTATIONS, NODE, POD
from gpuledger.agent.discovery.selection import POD_MONITOR, Selection, SelectionReport
from gpuledger.agent.discovery.sharding import Shard, Share, Split
from gpuledger.agent.scrape.settings import Target
from gpuledger.host.background import is_tried
from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.object_watch import Object, ObjectWatch, Wanted, all_of
from gpuledger.kubernetes.objects import PlainObject, ScaleObject, Selector
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.agent")

# Changes come in bursts, and a second is soon enough.
_GATHER_SECONDS: Final = 0.25
# In which a change in the cluster arrives everywhere.
_ARRIVAL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Scale:
    """A StatefulSet whose replicas share the work, and which of them this is."""

    namespace: str
    name: str
    ordinal: int


class Discovery:
    """`changed` is called in the event loop whenever `targets` may be other ones; `others` are the other
    shards'. Without `access` nothing is found, and there is only the sharing out.

    With a `scale` the number of shards is that of its replicas; until that is known nothing is scraped,
    since another may be scraping it. `arrival_seconds` are given to the others to hear that this agent ends.
    """

    def __init__(
        self,
        access: Access | None,
        clock: Clock,
        *,
        scale: Scale | None = None,
        shard: Shard | None = None,
        watch_seconds: float = 300.0,
        arrival_seconds: float = _ARRIVAL_SECONDS,
    ) -> None:
        self._access = access
        self._clock = clock
        self._watch_seconds = watch_seconds
        self._scale = scale
        self._share = Share(shard or (None if scale else Shard()))
        self._arrival_seconds = arrival_seconds
        self._finders: list[Finder] = []
        self._watches: dict[Wanted, ObjectWatch] = {}
        self._last: dict[str, list[Target]] = {}
        self.reports: tuple[SelectionReport, ...] = ()
        self.targets: tuple[Target, ...] = ()
        self.others: tuple[Target, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gathering: asyncio.TimerHandle | None = None
        self._handing_over: asyncio.TimerHandle | None = None
        self._until: float | None = None
        self._looked = False
        self._changed: Callable[[], None] = lambda: None

    def start(self, changed: Callable[[], None]) -> None:
        """Begin, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._look()

    def stop(self) -> None:
        """End all watches."""
        for timer in (self._gathering, self._handing_over):
            if timer is not None:
                timer.cancel()
        loop, self._loop = self._loop, None
        for watch in self._watches.values():
            watch.stop(patience=0.0 if loop else 2.0)
        self._watches.clear()

    async def leave(self) -> None:
        """Go on while whoever takes the targets over may not have heard of it: a StatefulSet that shrinks
        ends a pod at once.
        """
        shard = self._share.shard
        if self._scale is not None and shard is not None and (shard.count > 1 or shard.index):
            await asyncio.sleep(self._arrival_seconds)

    def become(self, selections: Sequence[Selection]) -> None:
        """Look for these from now on."""
        kept = {finder.selection.name: finder for finder in self._finders}
        self._finders = [
            old if (old := kept.get(one.name)) is not None and old.selection == one else Finder(one)
            for one in selections
        ]
        names = {one.name for one in selections}
        self._last = {name: found for name, found in self._last.items() if name in names}
        if self._loop is not None:
            self._keep_watches()
            self._look()

    @property
    def shard(self) -> Shard | None:
        """This agent's share; None while it is not known."""
        return self._share.shard

    @property
    def former(self) -> tuple[Shard, ...]:
        """Shares that it goes on with until others have taken them over."""
        return self._share.former

    def split(self, targets: Iterable[Target]) -> Split:
        """Whose each target is now. `changed` is called when one of them goes over to another."""
        found = self._share.split(targets, self._clock.elapsed())
        if found.until is not None:
            self._until = found.until if self._until is None else min(self._until, found.until)
        return found

    @property
    def health(self) -> tuple[IndexHealth, ...]:
        """How each watch stands."""
        return tuple(watch.health for watch in self._watches.values())

    @property
    def waiting(self) -> str:
        """Why nothing is scraped yet; empty once the shard is known."""
        if self._scale is None or self.shard is not None:
            return ""
        name = f"{self._scale.namespace}/{self._scale.name}"
        return f"how many share the work is not known: the StatefulSet {name} was not found or cannot be read"

    @property
    def unready(self) -> str:
        """What was not tried yet; empty once every target that can be known is scraped."""
        return self.waiting or ("" if self._looked else "the cluster was not listed yet")

    @property
    def dropped(self) -> int:
        """How many addresses relabelling drops."""
        return sum(report.passed["port"] - report.passed["relabelling"] for report in self.reports)

    def _told(self) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._gather)
            except RuntimeError:
                log.debug("the loop is closed")

    def _gather(self) -> None:
        if self._gathering is None and self._loop is not None:
            self._gathering = self._loop.call_later(_GATHER_SECONDS, self._look)

    def _look(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._keep_watches()
        self._count_shards()
        self._looked = all(is_tried(watch.health) for watch in self._watches.values())
        self._until = None
        reports: list[SelectionReport] = []
        mine: list[Target] = []
        others: list[Target] = []
        for finder in self._finders if self._access is not None else ():
            found, report = self._find(finder)
            shared = self.split(found)
            report.count("scraped", len(shared.mine))
            mine += shared.mine
            others += shared.others
            reports.append(report)
        self.reports = tuple(reports)
        self.targets, self.others = tuple(mine), tuple(others)
        self._changed()
        self._hand_over_later()

    def _hand_over_later(self) -> None:
        """Look again when the first target goes over that is kept for a moment only."""
        if self._handing_over is not None:
            self._handing_over.cancel()
            self._handing_over = None
        if self._until is None:
            self._share.forget()
        elif self._loop is not None:
            left = max(0.0, self._until - self._clock.elapsed())
            self._handing_over = self._loop.call_later(left, self._look)

    def _find(self, finder: Finder) -> tuple[list[Target], SelectionReport]:
        selection = finder.selection
        cluster, trouble = self._cluster(selection)
        if cluster is None:
            # What cannot be asked anew stays as it was.
            report = SelectionReport(selection.name, selection.kind, trouble=trouble)
            return self._last.get(selection.name, []), report
        try:
            found, report = finder.find(cluster)
        except Exception:
            # A defect met on one object must not keep other selections from what they find.
            log.exception("the targets of %s could not be found", selection.name)
            internal = "internal error; the log of gpuledger agent has the reason"
            report = SelectionReport(selection.name, selection.kind, trouble=internal)
            return self._last.get(selection.name, []), report
        report.trouble = trouble
        self._last[selection.name] = found
        return found, report

    def _cluster(self, selection: Selection) -> tuple[Cluster | None, str]:
        """What the selection looks at, None while something of it is not known; and what is wrong."""
        lists: dict[str, list[Object]] = {}
        trouble = ""
        missing = False
        for resource in _resources(selection):
            watches = [self._watches[one] for one in self._wanted_for(resource, selection)]
            found = all_of(watches)
            trouble = trouble or next((watch.health.error for watch in watches if watch.health.error), "")
            if found is None:
                missing = True
            else:
                lists[resource] = found
        if missing:
            return None, trouble or "the cluster was not listed yet"
        plain = {
            resource: {one.meta.name: one for one in lists[resource] if isinstance(one, PlainObject)}
            for resource in ("nodes", "namespaces")
            if resource in lists
        }
        cluster = Cluster(
            lists.get("pods", ()),
            lists.get("services", ()),
            lists.get("endpointslices", ()),
            plain.get("nodes", {}),
            plain.get("namespaces"),
        )
        return cluster, trouble

    def _wanted_for(self, resource: str, selection: Selection) -> list[Wanted]:
        """Of what there is, the watches that serve a selection."""
        base = self._base(resource)
        if resource in ("nodes", "namespaces"):
            return [base]
        everywhere = replace(base, namespace="")
        names = selection.namespaces.names
        if names is None or (everywhere in self._watches and not self._watches[everywhere].forbidden):
            return [everywhere]
        return [replace(base, namespace=name) for name in sorted(names)]

    def _base(self, resource: str) -> Wanted:
        users = [one for one in self._selections if resource in _resources(one)]
        prefixes = ANNOTATIONS.get(resource, ())
        selectors: frozenset[Selector] | None = None
        whole = resource == "services" or all(one.kind == POD_MONITOR for one in users)
        if resource in ("pods", "services") and whole:
            selectors = frozenset(one.selector for one in users)
        annotated = any(one.mentions(prefix) for one in users for prefix in prefixes)
        return Wanted(resource, selectors=selectors, annotations=annotated)

    @property
    def _selections(self) -> Iterable[Selection]:
        return [] if self._access is None else [finder.selection for finder in self._finders]

    def _keep_watches(self) -> None:
        """Begin the watches that are needed, end the others."""
        needed: set[Wanted] = set()
        for resource in ("pods", "services", "endpointslices", "nodes", "namespaces"):
            users = [one for one in self._selections if resource in _resources(one)]
            if not users:
                continue
            base = self._base(resource)
            if resource in ("nodes", "namespaces"):
                needed.add(base)
                continue
            named = {name for one in users for name in one.namespaces.names or ()}
            if any(one.namespaces.names is None for one in users):
                needed.add(base)
                watch = self._watches.get(base)
                if watch is None or not watch.forbidden:
                    continue
            needed |= {replace(base, namespace=name) for name in named}
        if self._scale is not None:
            needed.add(Wanted("statefulsets", self._scale.namespace, self._scale.name))
        for wanted in needed - set(self._watches):
            if self._access is not None:
                self._begin(self._access, wanted)
        for wanted in set(self._watches) - needed:
            self._watches.pop(wanted).stop(patience=0.0)

    def _begin(self, access: Access, wanted: Wanted) -> None:
        watch = ObjectWatch(access, wanted, self._told, clock=self._clock, watch_seconds=self._watch_seconds)
        self._watches[wanted] = watch
        watch.start()

    def _count_shards(self) -> None:
        if self._scale is None:
            return
        watch = self._watches[Wanted("statefulsets", self._scale.namespace, self._scale.name)]
        for found in (watch.objects or {}).values():
            if isinstance(found, ScaleObject):
                shard = Shard(self._scale.ordinal, max(1, found.replicas))
                if shard != self.shard:
                    log.info("this is shard %s", shard)
                self._share.become(shard, settled=found.settled, now=self._clock.elapsed())


def _resources(selection: Selection) -> list[str]:
    found = ["pods"] if selection.kind == POD_MONITOR else ["services", "endpointslices"]
    if selection.kind != POD_MONITOR and selection.mentions(POD):
        found.append("pods")
    if _wants_node(selection) and selection.mentions(NODE):
        found.append("nodes")
    if selection.namespaces.selector:
        found.append("namespaces")
    return found


def _wants_node(selection: Selection) -> bool:
    return any(endpoint.add_node_label for endpoint in selection.endpoints)
