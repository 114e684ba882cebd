"""Kubernetes discovery: watches the cluster, updates the targets of all selections and shards them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from gpuledger.agent.discovery.meta_labels import ANNOTATIONS, NODE, POD
from gpuledger.agent.discovery.selection import POD_MONITOR, Selection, SelectionReport
from gpuledger.agent.discovery.sharding import Shard, ShardAssignment
from gpuledger.agent.discovery.target_finder import ClusterObjects, TargetFinder
from gpuledger.agent.scrape.settings import Target
from gpuledger.host.owner_index import is_tried
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_watch import KubernetesObject, ObjectWatch, WatchScope
from gpuledger.kubernetes.objects import LabeledObject, LabelSelector, StatefulSetObject
from gpuledger.model.node_state import IndexHealth
from gpuledger.model.source import Clock

log = logging.getLogger("gpuledger.agent")

_CLUSTER_SCOPED: Final = ("nodes", "namespaces")
# Delay that coalesces bursts of changes.
_COALESCE_SECONDS: Final = 0.25
# Time for a cluster change to reach all watches.
_ARRIVAL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StatefulSetMember:
    """This agent's StatefulSet (each replica is a shard) and its ordinal."""

    namespace: str
    name: str
    ordinal: int


class Discovery:
    """Discovers targets. `targets` are this shard's; `other_shards` are the targets of the other shards.

    `assignment` is this agent's shard and its former shards.

    Without `access` nothing is discovered and only static targets are sharded. With `scale`, the number of
    shards is that of the StatefulSet's replicas; nothing is scraped until it is known, because another shard
    may scrape it. `arrival_seconds`: time given to other shards to take over when this agent stops.
    """

    def __init__(
        self,
        access: ApiServerAccess | None,
        clock: Clock,
        *,
        scale: StatefulSetMember | None = None,
        shard: Shard | None = None,
        watch_seconds: float = 300.0,
        arrival_seconds: float = _ARRIVAL_SECONDS,
    ) -> None:
        self._access = access
        self._clock = clock
        self._watch_seconds = watch_seconds
        self._scale = scale
        self.assignment = ShardAssignment(shard or (None if scale else Shard()))
        self._arrival_seconds = arrival_seconds
        self._finders: list[TargetFinder] = []
        self._watches: dict[WatchScope, ObjectWatch] = {}
        # By selection and resource, as at the last refresh.
        self._scopes: dict[tuple[str, str], list[WatchScope]] = {}
        self._last: dict[str, list[Target]] = {}
        self.reports: tuple[SelectionReport, ...] = ()
        self.targets: tuple[Target, ...] = ()
        self.other_shards: tuple[Target, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._discovered = False
        self._changed: Callable[[], None] = lambda: None

    def start(self, changed: Callable[[], None]) -> None:
        """Start on the running event loop. `changed` is called there whenever `targets` may have changed."""
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._refresh()

    def stop(self) -> None:
        """Stop all watches."""
        self._cancel_timer()
        loop, self._loop = self._loop, None
        for watch in self._watches.values():
            watch.stop(patience=0.0 if loop else 2.0)
        self._watches.clear()

    async def wait_for_handover(self) -> None:
        """Wait until other shards can have taken over: a StatefulSet that shrinks stops its pod at once."""
        shard = self.assignment.shard
        if self._scale is not None and shard is not None and (shard.count > 1 or shard.index):
            await asyncio.sleep(self._arrival_seconds)

    def set_selections(self, selections: Sequence[Selection]) -> None:
        """Replace the selections."""
        if self._access is None:
            selections = ()
        kept = {finder.selection.name: finder for finder in self._finders}
        self._finders = [
            old
            if (old := kept.get(selection.name)) is not None and old.selection == selection
            else TargetFinder(selection)
            for selection in selections
        ]
        names = {selection.name for selection in selections}
        self._last = {name: found for name, found in self._last.items() if name in names}
        if self._loop is not None:
            self._refresh()

    def split_targets(self, targets: Iterable[Target]) -> tuple[list[Target], list[Target]]:
        """Split targets into those of this shard and those of others.

        `changed` is called again when the next of them changes its shard.
        """
        return self.assignment.split_targets(targets, self._clock.elapsed())

    @property
    def health(self) -> tuple[IndexHealth, ...]:
        """Health of each watch."""
        return tuple(watch.health for watch in self._watches.values())

    @property
    def waiting_reason(self) -> str:
        """Why nothing is scraped yet; empty when the shard is known."""
        if self._scale is None or self.assignment.shard is not None:
            return ""
        name = f"{self._scale.namespace}/{self._scale.name}"
        return f"the number of shards is unknown: the StatefulSet {name} was not found or cannot be read"

    @property
    def unready_reason(self) -> str:
        """What discovery has not tried yet; empty after the first discovery."""
        return self.waiting_reason or ("" if self._discovered else "the cluster is not listed yet")

    @property
    def dropped(self) -> int:
        """Number of addresses that relabeling drops."""
        return sum(report.passed["port"] - report.passed["relabelling"] for report in self.reports)

    def _on_watch_change(self) -> None:
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._schedule_refresh)
            except RuntimeError:
                log.debug("the event loop is closed")

    def _schedule_refresh(self, seconds: float = _COALESCE_SECONDS) -> None:
        """Refresh in `seconds`, unless a refresh is due before."""
        if self._loop is None:
            return
        if self._timer is None or self._timer.when() > self._loop.time() + seconds:
            self._cancel_timer()
            self._timer = self._loop.call_later(seconds, self._refresh)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refresh(self) -> None:
        self._cancel_timer()
        self._keep_watches()
        self._count_shards()
        self._discovered = all(is_tried(watch.health) for watch in self._watches.values())
        self.assignment.next_handover = inf
        reports: list[SelectionReport] = []
        own: list[Target] = []
        others: list[Target] = []
        for finder in self._finders:
            found, report = self._find(finder)
            mine, foreign = self.split_targets(found)
            report.passed["scraped"] = len(mine)
            own += mine
            others += foreign
            reports.append(report)
        self.reports = tuple(reports)
        self.targets, self.other_shards = tuple(own), tuple(others)
        self._changed()
        handover = self.assignment.next_handover
        if handover == inf:
            self.assignment.drop_expired()
        else:
            self._schedule_refresh(max(0.0, handover - self._clock.elapsed()))

    def _find(self, finder: TargetFinder) -> tuple[list[Target], SelectionReport]:
        selection = finder.selection
        cluster, error = self._cluster(selection)
        if cluster is not None:
            try:
                found, report = finder.find_targets(cluster)
            except Exception:
                # A defect in one selection must not affect the others.
                log.exception("discovery of the targets of %s failed", selection.name)
                error = "internal error; see the log of gpuledger agent"
            else:
                report.error = error
                self._last[selection.name] = found
                return found, report
        # Keep the last targets while the cluster cannot be read.
        report = SelectionReport(selection.name, selection.kind, error=error)
        return self._last.get(selection.name, []), report

    def _cluster(self, selection: Selection) -> tuple[ClusterObjects | None, str]:
        """Return the objects that the selection needs (None while some are unknown), and an error."""
        lists: dict[str, list[KubernetesObject]] = {}
        error = ""
        resources = _resources(selection)
        for resource in resources:
            watches = [self._watches[scope] for scope in self._scopes[selection.name, resource]]
            error = error or next((watch.health.error for watch in watches if watch.health.error), "")
            known = [watch.objects for watch in watches if watch.objects is not None]
            if len(known) == len(watches):
                lists[resource] = [one for objects in known for one in objects.values()]
        if len(lists) < len(resources):
            return None, error or "the cluster is not listed yet"
        plain = {
            resource: {one.meta.name: one for one in lists[resource] if isinstance(one, LabeledObject)}
            for resource in _CLUSTER_SCOPED
            if resource in lists
        }
        cluster = ClusterObjects(
            lists.get("pods", ()),
            lists.get("services", ()),
            lists.get("endpointslices", ()),
            plain.get("nodes", {}),
            plain.get("namespaces"),
        )
        return cluster, error

    def _scopes_for(self, resource: str, selection: Selection) -> list[WatchScope]:
        """Return the scopes of the watches that serve a selection."""
        base = self._base(resource)
        names = selection.namespaces.names
        if resource in _CLUSTER_SCOPED or names is None:
            return [base]
        watch = self._watches.get(base)
        everywhere = any(user.namespaces.names is None for user in self._users(resource))
        if everywhere and (watch is None or not watch.forbidden):
            return [base]
        return [replace(base, namespace=name) for name in sorted(names)]

    def _base(self, resource: str) -> WatchScope:
        users = self._users(resource)
        prefixes = ANNOTATIONS.get(resource, ())
        selectors: frozenset[LabelSelector] | None = None
        whole = resource == "services" or all(selection.kind == POD_MONITOR for selection in users)
        if resource in ("pods", "services") and whole:
            selectors = frozenset(selection.selector for selection in users)
        annotated = any(selection.mentions(prefix) for selection in users for prefix in prefixes)
        return WatchScope(resource, selectors=selectors, annotations=annotated)

    def _users(self, resource: str) -> list[Selection]:
        """Return the selections that need a kind of object."""
        return [finder.selection for finder in self._finders if resource in _resources(finder.selection)]

    def _keep_watches(self) -> None:
        """Start missing watches and stop unneeded ones."""
        self._scopes = {
            (finder.selection.name, resource): self._scopes_for(resource, finder.selection)
            for finder in self._finders
            for resource in _resources(finder.selection)
        }
        needed = {scope for scopes in self._scopes.values() for scope in scopes}
        if self._scale is not None:
            needed.add(WatchScope("statefulsets", self._scale.namespace, self._scale.name))
        for scope in needed - set(self._watches):
            if self._access is not None:
                watch = ObjectWatch(
                    self._access,
                    scope,
                    self._on_watch_change,
                    clock=self._clock,
                    watch_seconds=self._watch_seconds,
                )
                self._watches[scope] = watch
                watch.start()
        for scope in set(self._watches) - needed:
            self._watches.pop(scope).stop(patience=0.0)

    def _count_shards(self) -> None:
        if self._scale is None:
            return
        watch = self._watches[WatchScope("statefulsets", self._scale.namespace, self._scale.name)]
        for found in (watch.objects or {}).values():
            if isinstance(found, StatefulSetObject):
                shard = Shard(self._scale.ordinal, max(1, found.replicas))
                if shard != self.assignment.shard:
                    log.info("this is shard %s", shard)
                self.assignment.assign(shard, settled=found.settled, now=self._clock.elapsed())


def _resources(selection: Selection) -> list[str]:
    found = ["pods"] if selection.kind == POD_MONITOR else ["services", "endpointslices"]
    if selection.kind != POD_MONITOR and selection.mentions(POD):
        found.append("pods")
    if any(endpoint.add_node_label for endpoint in selection.endpoints) and selection.mentions(NODE):
        found.append("nodes")
    if selection.namespaces.selector:
        found.append("namespaces")
    return found
