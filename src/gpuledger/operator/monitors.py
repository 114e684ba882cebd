"""The known state of all resources, and the decision what to apply for each."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.kubernetes.object_client import Json
from gpuledger.operator.judged_spec import (
    AppliedSpec,
    JudgedSpec,
    RenderObjects,
    judge_spec,
    last_applied_spec,
)
from gpuledger.operator.kinds import is_being_deleted, resource_version, uid_of
from gpuledger.operator.monitor_parser import ParsedMonitor, parse_monitor
from gpuledger.operator.node_overlap import NodeClaim, find_overlaps
from gpuledger.operator.render_context import DEFAULT_RECEIVERS
from gpuledger.operator.rollout import ProgressDeadline
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import ExporterSpec
from gpuledger.operator.status import ExporterNode, ReconcileProblem, TargetCounts

log = logging.getLogger("gpuledger.operator")

_DAY = 86_400.0
_DISPLACED = "its exporters were deleted, because an older resource now runs exporters on the same nodes"


@dataclass(slots=True)
class Monitor:
    """One resource; `body` is its newest known state."""

    body: Json
    parsed: ParsedMonitor
    deadline: ProgressDeadline
    # The last spec that was completely applied, by this process or an earlier one.
    applied_spec: AppliedSpec | None
    # The last judgement, with the generation of the spec.
    judgement: tuple[int, JudgedSpec] | None = None
    # Why the newest spec is not applied.
    problem: ReconcileProblem | None = None
    targets: TargetCounts | None = None
    # Why no agent answers.
    silence: str = ""
    nodes: tuple[ExporterNode, ...] | None = None
    # What the API server warned about when it stored the objects.
    warnings: tuple[str, ...] = ()
    # Why Kubernetes does not create pods; empty if it does, or if the reason is not known.
    creation_failure: str = ""
    # When the status was last written, by the event loop's clock.
    status_written_at: float = -_DAY
    failures: int = 0
    # Times of repairs within the last minute, by the event loop's clock.
    repairs: deque[float] = field(default_factory=deque)

    @property
    def uid(self) -> str:
        """The uid; it differs from that of an earlier resource of the same name."""
        return uid_of(self.body)

    @property
    def name(self) -> str:
        """Kind and name, for messages."""
        return f"{self.body['kind']} {self.body['metadata']['name']}"

    @property
    def key(self) -> str:
        """Kind and name, as in GpuMonitor.key."""
        return f"{self.body['kind']}/{self.body['metadata']['name']}"

    @property
    def generation(self) -> int:
        """The generation: Kubernetes increments it with every change of the spec."""
        return _generation(self.body)

    @property
    def judged(self) -> JudgedSpec | None:
        """The judgement of the newest spec; None if it is not judged yet."""
        if self.judgement is None or self.judgement[0] != self.generation:
            return None
        return self.judgement[1]

    @property
    def claim(self) -> NodeClaim:
        """The nodes of what can be applied of the newest spec, and those of the last applied spec."""
        spec = self.parsed if self.judged is None else self.judged.spec
        return NodeClaim(
            spec.monitor if spec is not None else None,
            self.applied_spec.monitor if self.applied_spec is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for a resource: apply `desired`, or keep the running objects because of `problem`.

    With both, `desired` lacks the sections that have problems.

    `displaced`: the running exporters overlap with those of an older resource and must be deleted.
    """

    desired: AppliedSpec | None
    problem: ReconcileProblem | None
    displaced: bool


async def _nothing_missing() -> bool:
    return False


@dataclass(eq=False, slots=True)
class Monitors:
    """All resources by uid. `wake` is called with the uid of each resource that must be reconciled."""

    render: RenderObjects
    progress_deadline: float
    wake: Callable[[str], None]
    # Looks up what was missing while a resource was rendered; False if nothing was.
    look_up: Callable[[], Awaitable[bool]] = _nothing_missing
    # Incremented when rendering the same resource again gives another result.
    _revision: int = field(default=0, init=False)
    _known: dict[str, Monitor] = field(default_factory=dict, init=False)
    # Responses can arrive after the watch has reported the deletion.
    _deleted: set[str] = field(default_factory=set, init=False)

    def __iter__(self) -> Iterator[Monitor]:
        return iter(tuple(self._known.values()))

    def get(self, uid: str) -> Monitor | None:
        """The resource, None when it is gone."""
        return self._known.get(uid)

    def record_monitor(self, body: Json) -> None:
        """Record a current or past state of a resource."""
        uid = uid_of(body)
        known = self._known.get(uid)
        if uid in self._deleted:
            return
        if known is None:
            self._known[uid] = Monitor(
                body, parse_monitor(body), ProgressDeadline(self.progress_deadline), last_applied_spec(body)
            )
        elif resource_version(body) > resource_version(known.body):
            same = known.generation == _generation(body)
            known.body = body
            if not same:
                known.parsed = parse_monitor(body)
            elif not is_being_deleted(body):
                self.wake(uid)
                return
        else:
            return
        # Overlaps depend on all resources.
        self._wake_all()

    def remove_monitor(self, body: Json) -> None:
        """Record that a resource was deleted."""
        uid = uid_of(body)
        self._deleted.add(uid)
        if self._known.pop(uid, None) is not None:
            self._wake_all()

    def apply_listing(self, kind: str, listed: Sequence[Json], version: int) -> None:
        """Record all resources of a kind as of a version; older known ones that are not listed are gone."""
        uids = {uid_of(body) for body in listed}
        for monitor in self:
            is_older = resource_version(monitor.body) <= version
            if monitor.body["kind"] == kind and monitor.uid not in uids and is_older:
                self.remove_monitor(monitor.body)
        for body in listed:
            self.record_monitor(body)

    async def prepare(self, monitor: Monitor) -> None:
        """Render the newest spec and the last applied one, in a thread.

        Thousands of targets take seconds, in which the event loop must renew the Lease. Raises what `look_up`
        raises.
        """
        while True:
            applied, judged, revision = monitor.applied_spec, monitor.judged, self._revision
            if judged is None:
                generation, body = monitor.generation, monitor.body
                judged = await asyncio.to_thread(judge_spec, body, monitor.parsed, applied, self.render)
                if await self.look_up() or revision != self._revision:
                    continue
                monitor.judgement = (generation, judged)
                for problem in judged.problems:
                    if problem.path.startswith(DEFAULT_RECEIVERS):
                        # Another person than the author of the resource must correct it.
                        log.warning("%s: %s", monitor.name, problem)
                if judged.spec is None or judged.kept:
                    # It claims other nodes than it specifies.
                    self._wake_all()
            elif applied is not None and applied.rendered is None:
                same = judged.spec is not None and applied.text == judged.spec.text
                rendered = (judged.spec.rendered if same and judged.spec else None) or (
                    await asyncio.to_thread(self.render, monitor.body, applied.monitor)
                )
                if await self.look_up() or revision != self._revision:
                    continue
                applied.rendered = rendered
            else:
                # Nothing was awaited since the last check, so both are current.
                return

    async def judge_refused(self, monitor: Monitor, refused: Sequence[Problem]) -> JudgedSpec:
        """Judge the newest spec again, without the sections that the API server refuses.

        Nothing of it can be applied if it changes meanwhile. Raises what `look_up` raises.
        """
        while True:
            generation, body, revision = monitor.generation, monitor.body, self._revision
            judged = await asyncio.to_thread(
                judge_spec, body, monitor.parsed, monitor.applied_spec, self.render, refused
            )
            missing = await self.look_up()
            if generation != monitor.generation:
                return JudgedSpec(tuple(refused), None)
            if not missing and revision == self._revision:
                return judged

    def exporters(self) -> Iterator[ExporterSpec]:
        """The exporters of the newest and of the applied specifications."""
        for monitor in self:
            for spec in (monitor.parsed.monitor, monitor.claim.requested, monitor.claim.running):
                if spec is not None:
                    yield spec.exporter

    def render_again(self) -> None:
        """Judge and render all resources again: what they are rendered with has changed."""
        self._revision += 1
        for monitor in self:
            monitor.judgement = None
            if monitor.applied_spec is not None:
                monitor.applied_spec.rendered = None
        self._wake_all()

    def decide(self, monitor: Monitor) -> Decision:
        """Decide what to do for a resource that was prepared."""
        overlaps = find_overlaps(other.claim for other in self)
        displaced = monitor.key in overlaps.displaced
        judged = monitor.judged
        notes = (_DISPLACED,) if displaced else ()
        if judged is None or judged.spec is None:
            lines = tuple(map(str, (monitor.parsed if judged is None else judged).problems))
            return Decision(None, ReconcileProblem("InvalidSpec", (*lines, *notes)), displaced)
        if (message := overlaps.rejected.get(monitor.key)) is not None:
            return Decision(None, ReconcileProblem("Overlap", (message, *notes)), displaced)
        if not judged.kept:
            return Decision(judged.spec, None, displaced)
        lines = (*map(str, judged.problems), *judged.kept)
        return Decision(judged.spec, ReconcileProblem("InvalidSpec", lines, halts=False), displaced)

    def record_applied(self, monitor: Monitor, applied: AppliedSpec) -> None:
        """Record that a spec was completely applied."""
        before, monitor.applied_spec = monitor.applied_spec, applied
        if before is None or before.text != applied.text:
            # Nodes may have become free for other resources.
            self._wake_all()

    def _wake_all(self) -> None:
        for uid in self._known:
            self.wake(uid)


def _generation(body: Json) -> int:
    return int(body["metadata"].get("generation") or 0)
