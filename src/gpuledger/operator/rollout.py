"""The progress of rollouts of DaemonSets and StatefulSets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.kubernetes.object_client import Json


@dataclass(frozen=True, slots=True)
class Rollout:
    """Numbers of pods: desired, updated to the newest template, and ready.

    `observed_latest` is False while a controller has not observed the newest spec. `observed` is False while
    it has observed none; then the numbers are meaningless.
    """

    desired: int
    updated: int
    ready: int
    observed_latest: bool = True
    observed: bool = True

    @property
    def complete(self) -> bool:
        """Whether all pods have the newest template and are ready."""
        return (
            self.observed
            and self.observed_latest
            and self.updated >= self.desired
            and self.ready >= self.desired
        )

    def __add__(self, other: Rollout) -> Rollout:
        return Rollout(
            self.desired + other.desired,
            self.updated + other.updated,
            self.ready + other.ready,
            self.observed_latest and other.observed_latest,
            self.observed and other.observed,
        )


def rollout_of(bodies: Iterable[Json]) -> Rollout | None:
    """The sum over DaemonSets and StatefulSets; None if there are none."""
    total: Rollout | None = None
    for body in bodies:
        rollout = _daemon_set(body) if body["kind"] == "DaemonSet" else _stateful_set(body)
        total = rollout if total is None else total + rollout
    return total


def _daemon_set(body: Json) -> Rollout:
    status = body.get("status") or {}
    desired = int(status.get("desiredNumberScheduled") or 0)
    # With OnDelete, users replace the pods; the rollout is complete without it.
    on_delete = (body["spec"].get("updateStrategy") or {}).get("type") == "OnDelete"
    return Rollout(
        desired,
        desired if on_delete else int(status.get("updatedNumberScheduled") or 0),
        int(status.get("numberReady") or 0),
        *_observation(body),
    )


def _stateful_set(body: Json) -> Rollout:
    status = body.get("status") or {}
    return Rollout(
        int(body["spec"].get("replicas", 1)),
        int(status.get("updatedReplicas") or 0),
        int(status.get("readyReplicas") or 0),
        *_observation(body),
    )


def _observation(body: Json) -> tuple[bool, bool]:
    """`observed_latest` and `observed`."""
    observed = int((body.get("status") or {}).get("observedGeneration") or 0)
    return observed >= int(body["metadata"].get("generation") or 0), observed > 0


@dataclass(slots=True)
class ProgressDeadline:
    """Detects a stalled rollout: pods are missing, and nothing has changed for `seconds`."""

    seconds: float
    _last: object = None
    _since: float = 0.0

    def seconds_left(self, rollouts: Iterable[Rollout | None], generation: int, now: float) -> float | None:
        """Seconds until the rollouts count as stalled (0 if they do now), None if all are complete."""
        current = tuple(rollouts)
        state = (generation, current)
        if state != self._last:
            self._last, self._since = state, now
        if all(rollout is None or rollout.complete for rollout in current):
            return None
        return max(0.0, self._since + self.seconds - now)
