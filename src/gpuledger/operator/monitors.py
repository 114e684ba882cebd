"""What is known of every resource, and what each asks for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuledger.operator.api import Json
from gpuledger.operator.kinds import version_of
from gpuledger.operator.overlap import overlaps
from gpuledger.operator.pods import Deadline
from gpuledger.operator.reading import Read, read
from gpuledger.operator.render.objects import Rendered
from gpuledger.operator.spec import GpuMonitor
from gpuledger.operator.status import Targets, Trouble

# From a resource and what was read from it to the objects that it asks for.
Render = Callable[[Json, GpuMonitor], Rendered]

_DAY = 86_400.0


@dataclass(slots=True)
class Monitor:
    """One resource: `body` is the newest known state of it."""

    body: Json
    reading: Read
    deadline: Deadline
    # By the generation that it was made of; rendering is pure.
    rendered: tuple[int, Rendered] | None = None
    # What was applied last, all of it, by this process; None while a part may be otherwise.
    good: Rendered | None = None
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
        return str(self.body["metadata"]["uid"])

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.body['kind']} {self.body['metadata']['name']}"

    @property
    def generation(self) -> int:
        """Counts the changes of the spec."""
        return int(self.body["metadata"].get("generation") or 0)


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
        uid = str(body["metadata"]["uid"])
        known = self._known.get(uid)
        if uid in self._gone:
            return
        if known is None:
            self._known[uid] = Monitor(body, read(body), Deadline(self._deadline))
        elif version_of(body) > version_of(known.body):
            same = known.generation == int(body["metadata"].get("generation") or 0)
            known.body = body
            if not same:
                known.reading = read(body)
            elif known.body["metadata"].get("deletionTimestamp") is None:
                self._woken(uid)
                return
        else:
            return
        # Whose nodes are whose depends on all of them.
        self._wake_all()

    def forget(self, body: Json) -> None:
        """It is gone."""
        uid = str(body["metadata"]["uid"])
        self._gone.add(uid)
        if self._known.pop(uid, None) is not None:
            self._wake_all()

    def settle(self, kind: str, listed: Sequence[Json], version: int) -> None:
        """These were all resources of a kind as of a version: others that are older are gone."""
        uids = {str(body["metadata"]["uid"]) for body in listed}
        for one in self:
            if one.body["kind"] == kind and one.uid not in uids and version_of(one.body) <= version:
                self.forget(one.body)
        for body in listed:
            self.take(body)

    async def prepare(self, monitor: Monitor) -> None:
        """Render what is asked for now, beside the loop: thousands of targets take seconds, and the Lease has
        to be renewed meanwhile.
        """
        while (asked := monitor.reading.monitor) is not None and not monitor.reading.problems:
            if monitor.rendered is not None and monitor.rendered[0] == monitor.generation:
                return
            generation = monitor.generation
            monitor.rendered = (generation, await asyncio.to_thread(self._render, monitor.body, asked))

    def judge(self, monitor: Monitor) -> tuple[Trouble | None, Rendered | None]:
        """Why what the resource asks for cannot be had, and what it is, where that can be said."""
        asked, problems = monitor.reading.monitor, monitor.reading.problems
        if asked is None or problems:
            return Trouble("InvalidSpec", tuple(map(str, problems))), None
        if monitor.rendered is None or monitor.rendered[0] != monitor.generation:
            monitor.rendered = (monitor.generation, self._render(monitor.body, asked))
        rendered = monitor.rendered[1]
        if rendered.problems:
            return Trouble("InvalidSpec", tuple(map(str, rendered.problems))), rendered
        if (message := overlaps(self._asked()).get(asked.key)) is not None:
            return Trouble("Overlap", (message,)), rendered
        return None, rendered

    def _asked(self) -> list[GpuMonitor]:
        return [one.reading.monitor for one in self if one.reading.monitor is not None]

    def _wake_all(self) -> None:
        for uid in self._known:
            self._woken(uid)
