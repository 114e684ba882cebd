"""The progress of rollouts of DaemonSets and StatefulSets, and of the Jobs of CronJobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from gpuledger.kubernetes.object_client import Json


@dataclass(frozen=True, slots=True)
class Rollout:
    """Numbers of pods: desired, updated to the newest template, ready, and missing: not even created.

    `observed_latest` is False while a controller has not observed the newest spec. `observed` is False while
    it has observed none; then the numbers are meaningless.
    """

    desired: int
    updated: int
    ready: int
    observed_latest: bool = True
    observed: bool = True
    missing: int = 0

    @property
    def complete(self) -> bool:
        """Whether all pods have the newest template and are ready."""
        return self.observed and self.observed_latest and min(self.updated, self.ready) >= self.desired

    def __add__(self, other: Rollout) -> Rollout:
        return Rollout(
            self.desired + other.desired,
            self.updated + other.updated,
            self.ready + other.ready,
            self.observed_latest and other.observed_latest,
            self.observed and other.observed,
            self.missing + other.missing,
        )


def rollout_of(bodies: Iterable[Json]) -> Rollout | None:
    """The sum over DaemonSets and StatefulSets; None if there are none."""
    rollouts = [_rollout(body) for body in bodies]
    return reduce(add, rollouts) if rollouts else None


def _rollout(body: Json) -> Rollout:
    spec, status = body["spec"], body.get("status") or {}
    observed = int(status.get("observedGeneration") or 0)
    created = status.get("currentNumberScheduled" if body["kind"] == "DaemonSet" else "replicas")
    if body["kind"] == "DaemonSet":
        desired = int(status.get("desiredNumberScheduled") or 0)
        updated, ready = status.get("updatedNumberScheduled"), status.get("numberReady")
        if (spec.get("updateStrategy") or {}).get("type") == "OnDelete":
            # Users replace the pods; the rollout is complete without it.
            updated = desired
    else:
        desired = int(spec.get("replicas", 1))
        updated, ready = status.get("updatedReplicas"), status.get("readyReplicas")
    is_latest = observed >= int(body["metadata"].get("generation") or 0)
    missing = max(0, desired - int(created)) if observed and created is not None else 0
    return Rollout(desired, int(updated or 0), int(ready or 0), is_latest, observed > 0, missing)


def is_suspended(cron_job: Json) -> bool:
    """Whether a CronJob starts no Jobs."""
    return bool(cron_job["spec"].get("suspend"))


def job_rollout(cron_job: Json, succeeded: int | None) -> Rollout:
    """The Jobs of a CronJob as a rollout: a pod is ready if it ended with success.

    `succeeded` is the number of nodes on which the newest pod did; None if no pod is known, as when they have
    been deleted. Before Kubernetes 1.21, a CronJob does not say when its last Job succeeded.
    """
    status, pods = cron_job.get("status") or {}, int(cron_job["spec"]["jobTemplate"]["spec"]["completions"])
    started = str(status.get("lastScheduleTime") or "")
    if started and str(status.get("lastSuccessfulTime") or "") >= started:
        return Rollout(pods, pods, pods)
    known = bool(started) and succeeded is not None
    return Rollout(pods, pods, min(pods, succeeded or 0), observed=known)


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
