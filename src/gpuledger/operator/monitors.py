"""What is known of every resource, and what each asks for."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuledger.kubernetes.writing import Json
from gpuledger.operator.kinds import is_ending, uid_of, version_of
from gpuledger.operator.overlap import Claim, overlaps
from gpuledger.operator.reading import Read, read
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.rollout import Deadline
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.status import Targets, Trouble

# In bytes, of one and a half megabytes that the API server takes for all of a resource.
_LONGEST: Final = 256 << 10


@dataclass(slots=True)
class Good:
    """A specification, its text, and its objects: None while they were not rendered."""

    text: str
    asked: GpuMonitor
    rendered: Rendered | None = None

    @property
    def kept(self) -> str | None:
        """The text as a status has it; None for one that is too long to stand there twice."""
        return self.text if len(self.text.encode()) <= _LONGEST else None


def text_of(body: Json) -> str:
    """A resource's specification: the same text for the same content."""
    return json.dumps(body.get("spec") or {}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def recalled(body: Json) -> Good | None:
    """What a resource's status says; None where it says nothing that this operator would still take."""
    text = str((body.get("status") or {}).get("appliedSpec") or "")
    try:
        found = read({**body, "spec": json.loads(text)})
    except ValueError:
        return None
    return None if found.monitor is None else Good(text, found.monitor)


# From a resource and what was read from it to the objects that it asks for.
Render = Callable[[Json, GpuMonitor], Rendered]

_DAY = 86_400.0
_OUSTED = "its exporters were taken away meanwhile, as an older resource has them on the same nodes now"


@dataclass(slots=True)
class Monitor:
    """One resource: `body` is the newest known state of it."""

    body: Json
    reading: Read
    deadline: Deadline
    # What was applied last, all of it, by this process or the one before it.
    good: Good | None
    # By the generation that it was made of; rendering is pure.
    rendered: tuple[int, Rendered] | None = None
    # Why what it asks for was not done, when that is not in the spec alone.
    trouble: Trouble | None = None
    targets: Targets | None = None
    # Time of the last status that was written, by the loop's clock.
    written: float = -_DAY
    failures: int = 0
    # When objects were repaired lately.
    repairs: deque[float] = field(default_factory=deque)

    @property
    def uid(self) -> str:
        """What it is told by from others, of the same name before it too."""
        return uid_of(self.body)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.body['kind']} {self.body['metadata']['name']}"

    @property
    def key(self) -> str:
        """As GpuMonitor.key."""
        return f"{self.body['kind']}/{self.body['metadata']['name']}"

    @property
    def generation(self) -> int:
        """Counts the changes of the spec."""
        return _generation(self.body)

    @property
    def rendered_now(self) -> Rendered | None:
        """What was made of the newest spec; None while nothing was, or when it cannot be."""
        if self.rendered is None or self.rendered[0] != self.generation:
            return None
        return self.rendered[1]

    @property
    def claim(self) -> Claim:
        """Whose nodes it is about: of what it asks for, if that can be, and of what may still run."""
        rendered = self.rendered_now
        possible = rendered is None or not rendered.problems
        return Claim(
            self.reading.monitor if possible else None, self.good.asked if self.good is not None else None
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be done for a resource: have `wanted`, or, for its `trouble`, keep what runs.

    `ousted`: exporters of what runs would be on nodes of an older resource, so they are not to be kept.
    """

    wanted: Good | None
    trouble: Trouble | None
    ousted: bool


class Monitors:
    """All resources by uid. `woken` is told the uid of those that have to be looked at."""

    def __init__(self, render: Render, progress_deadline: float, woken: Callable[[str], None]) -> None:
        self._render = render
        self._deadline = progress_deadline
        self._woken = woken
        self._known: dict[str, Monitor] = {}
        # An answer may come after the watch has told that the resource is gone.
        self._gone: set[str] = set()

    def __iter__(self) -> Iterator[Monitor]:
        return iter(tuple(self._known.values()))

    def get(self, uid: str) -> Monitor | None:
        """The resource, None when it is gone."""
        return self._known.get(uid)

    def take(self, body: Json) -> None:
        """This is how a resource is, or was a while ago."""
        uid = uid_of(body)
        known = self._known.get(uid)
        if uid in self._gone:
            return
        if known is None:
            self._known[uid] = Monitor(body, read(body), Deadline(self._deadline), recalled(body))
        elif version_of(body) > version_of(known.body):
            same = known.generation == _generation(body)
            known.body = body
            if not same:
                known.reading = read(body)
            elif not is_ending(body):
                self._woken(uid)
                return
        else:
            return
        # Whose nodes are whose depends on all of them.
        self._wake_all()

    def forget(self, body: Json) -> None:
        """It is gone."""
        uid = uid_of(body)
        self._gone.add(uid)
        if self._known.pop(uid, None) is not None:
            self._wake_all()

    def settle(self, kind: str, listed: Sequence[Json], version: int) -> None:
        """These were all resources of a kind as of a version: others that are older are gone."""
        uids = {uid_of(body) for body in listed}
        for one in self:
            if one.body["kind"] == kind and one.uid not in uids and version_of(one.body) <= version:
                self.forget(one.body)
        for body in listed:
            self.take(body)

    async def prepare(self, monitor: Monitor) -> None:
        """Render what is asked for now, and what was applied last.

        Beside the loop: thousands of targets take seconds, and the Lease has to be renewed meanwhile.
        """
        while True:
            asked, good = monitor.reading.monitor, monitor.good
            if asked is not None and monitor.rendered_now is None:
                generation = monitor.generation
                made = await asyncio.to_thread(self._render, monitor.body, asked)
                monitor.rendered = (generation, made)
                if made.problems:
                    # What it asks for cannot be: it takes no nodes.
                    self._wake_all()
            elif good is not None and good.rendered is None:
                same = good.text == text_of(monitor.body)
                good.rendered = (monitor.rendered_now if same else None) or await asyncio.to_thread(
                    self._render, monitor.body, good.asked
                )
            else:
                # Nothing was waited for since this was seen.
                return

    def judge(self, monitor: Monitor) -> Judgement:
        """What is to be done for a resource that was prepared."""
        both = overlaps(one.claim for one in self)
        ousted = monitor.key in both.ousted
        asked, rendered = monitor.reading.monitor, monitor.rendered_now
        problems = monitor.reading.problems if rendered is None else rendered.problems
        gone = (_OUSTED,) if ousted else ()
        if asked is None or rendered is None or problems:
            return Judgement(None, Trouble("InvalidSpec", (*map(str, problems), *gone)), ousted)
        if (message := both.refused.get(monitor.key)) is not None:
            return Judgement(None, Trouble("Overlap", (message, *gone)), ousted)
        return Judgement(Good(text_of(monitor.body), asked, rendered), None, ousted)

    def applied(self, monitor: Monitor, good: Good) -> None:
        """All of it is so now."""
        before, monitor.good = monitor.good, good
        if before is None or before.text != good.text:
            # Nodes that it had may be another's now.
            self._wake_all()

    def _wake_all(self) -> None:
        for uid in self._known:
            self._woken(uid)


def _generation(body: Json) -> int:
    return int(body["metadata"].get("generation") or 0)
