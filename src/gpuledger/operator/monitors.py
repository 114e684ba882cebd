"""The known state of all resources, and the decision what to apply for each."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuledger.kubernetes.object_client import Json
from gpuledger.operator.kinds import is_being_deleted, resource_version, uid_of
from gpuledger.operator.monitor_parser import ParsedMonitor, parse_monitor
from gpuledger.operator.node_overlap import NodeClaim, find_overlaps
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.rollout import ProgressDeadline
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.status import ReconcileProblem, TargetCounts

# The API server limits the whole resource to 1.5 MiB.
_MAX_STATUS_SPEC_BYTES: Final = 256 << 10


@dataclass(slots=True)
class AppliedSpec:
    """A specification as text, as a monitor and as objects (None until they are rendered)."""

    text: str
    monitor: GpuMonitor
    rendered: Rendered | None = None

    @property
    def status_text(self) -> str | None:
        """The text for `status.appliedSpec`; None if it is too long."""
        return self.text if len(self.text.encode()) <= _MAX_STATUS_SPEC_BYTES else None


def spec_text(body: Json) -> str:
    """The specification as canonical JSON."""
    return json.dumps(body.get("spec") or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def last_applied_spec(body: Json) -> AppliedSpec | None:
    """The applied specification in the resource's status; None if it is absent or no longer valid."""
    text = str((body.get("status") or {}).get("appliedSpec") or "")
    try:
        found = parse_monitor({**body, "spec": json.loads(text)})
    except ValueError:
        return None
    return None if found.monitor is None else AppliedSpec(text, found.monitor)


# Renders the objects of a resource, which is given as received and as parsed.
RenderObjects = Callable[[Json, GpuMonitor], Rendered]

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
    # The last rendering, with the generation of the spec. Rendering is pure.
    rendered: tuple[int, Rendered] | None = None
    # Why the newest spec is not applied.
    problem: ReconcileProblem | None = None
    targets: TargetCounts | None = None
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
    def current_rendering(self) -> Rendered | None:
        """The rendering of the newest spec; None if it is not rendered yet or invalid."""
        if self.rendered is None or self.rendered[0] != self.generation:
            return None
        return self.rendered[1]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The known problems of the newest spec. If it is not refused, only their targets are left out."""
        rendered = self.current_rendering
        return (*self.parsed.problems, *(rendered.problems if rendered is not None else ()))

    @property
    def claim(self) -> NodeClaim:
        """The nodes of the newest spec, unless it is refused, and those of the last applied spec."""
        rendered = self.current_rendering
        possible = rendered is None or not rendered.refused
        return NodeClaim(
            self.parsed.monitor if possible else None,
            self.applied_spec.monitor if self.applied_spec is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do for a resource: apply `desired`, or keep the running objects because of `problem`.

    `displaced`: the running exporters overlap with those of an older resource and must be deleted.
    """

    desired: AppliedSpec | None
    problem: ReconcileProblem | None
    displaced: bool


@dataclass(eq=False, slots=True)
class Monitors:
    """All resources by uid. `wake` is called with the uid of each resource that must be reconciled."""

    render: RenderObjects
    progress_deadline: float
    wake: Callable[[str], None]
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

        Thousands of targets take seconds, in which the event loop must renew the Lease.
        """
        while True:
            requested, applied = monitor.parsed.monitor, monitor.applied_spec
            if requested is not None and monitor.current_rendering is None:
                generation = monitor.generation
                rendered = await asyncio.to_thread(self.render, monitor.body, requested)
                monitor.rendered = (generation, rendered)
                if rendered.refused:
                    # An invalid spec claims no nodes.
                    self._wake_all()
            elif applied is not None and applied.rendered is None:
                same = applied.text == spec_text(monitor.body)
                applied.rendered = (monitor.current_rendering if same else None) or await asyncio.to_thread(
                    self.render, monitor.body, applied.monitor
                )
            else:
                # Nothing was awaited since the last check, so both are current.
                return

    def decide(self, monitor: Monitor) -> Decision:
        """Decide what to do for a resource that was prepared."""
        overlaps = find_overlaps(other.claim for other in self)
        displaced = monitor.key in overlaps.displaced
        requested, rendered = monitor.parsed.monitor, monitor.current_rendering
        notes = (_DISPLACED,) if displaced else ()
        if requested is None or rendered is None or rendered.refused:
            lines = (*map(str, monitor.problems), *notes)
            return Decision(None, ReconcileProblem("InvalidSpec", lines), displaced)
        if (message := overlaps.rejected.get(monitor.key)) is not None:
            return Decision(None, ReconcileProblem("Overlap", (message, *notes)), displaced)
        return Decision(AppliedSpec(spec_text(monitor.body), requested, rendered), None, displaced)

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
