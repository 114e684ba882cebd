"""How far controllers have come with the pods of DaemonSets and StatefulSets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.kubernetes.writing import Json


@dataclass(frozen=True, slots=True)
class Rollout:
    """Pods that controllers are to have: how many, how many of the newest template, how many ready.

    `settled` is False while a controller has not seen its newest spec, `seen` while it has seen none: then
    the numbers say nothing.
    """

    wanted: int
    current: int
    ready: int
    settled: bool = True
    seen: bool = True

    @property
    def complete(self) -> bool:
        """Whether all are there, and of the newest template."""
        return self.seen and self.settled and self.current >= self.wanted and self.ready >= self.wanted

    def __add__(self, other: Rollout) -> Rollout:
        return Rollout(
            self.wanted + other.wanted,
            self.current + other.current,
            self.ready + other.ready,
            self.settled and other.settled,
            self.seen and other.seen,
        )


def rollout_of(bodies: Iterable[Json]) -> Rollout | None:
    """Of DaemonSets and StatefulSets together; None where there are none."""
    total: Rollout | None = None
    for body in bodies:
        one = _daemon_set(body) if body["kind"] == "DaemonSet" else _stateful_set(body)
        total = one if total is None else total + one
    return total


def _daemon_set(body: Json) -> Rollout:
    status = body.get("status") or {}
    wanted = int(status.get("desiredNumberScheduled") or 0)
    # Whoever exchanges pods by hand may take their time: nobody waits for it.
    by_hand = (body["spec"].get("updateStrategy") or {}).get("type") == "OnDelete"
    return Rollout(
        wanted,
        wanted if by_hand else int(status.get("updatedNumberScheduled") or 0),
        int(status.get("numberReady") or 0),
        *_seen(body),
    )


def _stateful_set(body: Json) -> Rollout:
    status = body.get("status") or {}
    return Rollout(
        int(body["spec"].get("replicas", 1)),
        int(status.get("updatedReplicas") or 0),
        int(status.get("readyReplicas") or 0),
        *_seen(body),
    )


def _seen(body: Json) -> tuple[bool, bool]:
    seen = int((body.get("status") or {}).get("observedGeneration") or 0)
    return seen >= int(body["metadata"].get("generation") or 0), seen > 0


@dataclass(slots=True)
class Deadline:
    """Whether pods that are missing become fewer: what has not changed for `seconds` has stalled."""

    seconds: float
    _last: object = None
    _since: float = 0.0

    def look(self, pods: Iterable[Rollout | None], generation: int, now: float) -> float | None:
        """Seconds until it counts as stalled (0 when it does), None while nothing is missing."""
        every = tuple(pods)
        state = (generation, every)
        if state != self._last:
            self._last, self._since = state, now
        if all(one is None or one.complete for one in every):
            return None
        return max(0.0, self._since + self.seconds - now)
