"""What a resource's status tells: conditions and numbers, from what is known of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gpuledger.kubernetes.writing import Json
from gpuledger.model.text import clean_name
from gpuledger.operator.rollout import Rollout

Status = Literal["True", "False", "Unknown"]
# A message may have 32 KiB; nobody reads so many.
_LONGEST: Final = 1000
_MOST: Final = 10


@dataclass(frozen=True, slots=True)
class Condition:
    """One statement about a resource; `reason` is one word for programs, `message` is for people."""

    type: str
    status: Status
    reason: str
    message: str = ""


def joined(lines: Iterable[str]) -> str:
    """Several messages as one, the first of very many."""
    every = list(lines)
    more = f"; and {len(every) - _MOST} more" if len(every) > _MOST else ""
    return clean_name("; ".join(every[:_MOST]) + more, _LONGEST)


def condition_list(
    conditions: Sequence[Condition], generation: int, before: object, unix: float
) -> list[Json]:
    """The conditions as they are written, of a spec's `generation`.

    One whose status was the same `before` (the resource's own list) keeps its time of transition.
    """
    turned = _turned(before)
    now = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            # Kubernetes 1.20 compiled with Go 1.18 or newer takes empty texts of custom resources for null.
            **({"message": one.message} if one.message else {}),
            "observedGeneration": generation,
            "lastTransitionTime": turned.get((one.type, one.status), now),
        }
        for one in conditions
    ]


def _turned(before: object) -> dict[tuple[object, object], str]:
    found = {}
    for one in before if isinstance(before, list) else ():
        if isinstance(one, dict) and isinstance(one.get("lastTransitionTime"), str):
            found[one.get("type"), one.get("status")] = one["lastTransitionTime"]
    return found


@dataclass(frozen=True, slots=True)
class Targets:
    """What agents say of their targets. `error` is the last failure that one of them, or its pod, tells."""

    found: int
    up: int
    down: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why what the resource asks for is not done: `reason` is one word, `lines` say what to change."""

    reason: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return joined(self.lines)


@dataclass(frozen=True, slots=True)
class Standing:
    """All that is known of one monitor at one moment; None is what is not known or does not apply."""

    generation: int
    trouble: Trouble | None = None
    ignored: tuple[str, ...] = ()
    receiver_missing: bool | None = None
    exporters: Rollout | None = None
    agents: Rollout | None = None
    targets: Targets | None = None
    # Pods are missing, and nothing has become better for the whole deadline.
    stalled: bool = False
    # The specification that was applied last, all of it, as a text.
    applied: str | None = None


def status_of(standing: Standing, before: Mapping[str, object], unix: float) -> Json:
    """The status as it is to be; what is absent in it is None."""
    exporters, targets = standing.exporters, standing.targets
    error = str(standing.trouble) if standing.trouble else joined((targets.error,)) if targets else ""
    conditions = list(_conditions(standing))
    return {
        "observedGeneration": standing.generation,
        "conditions": condition_list(conditions, standing.generation, before.get("conditions"), unix),
        "gpuNodes": exporters.wanted if exporters and exporters.seen else None,
        "exportersReady": exporters.ready if exporters and exporters.seen else None,
        "targetsFound": targets.found if targets else None,
        "targetsUp": targets.up if targets else None,
        "lastError": error or None,
        "appliedSpec": standing.applied,
    }


def changes(status: Json, before: Mapping[str, object]) -> Json:
    """What of it has to be written, as a merge patch of the status before; empty when nothing has."""
    return {key: value for key, value in status.items() if before.get(key) != value}


def is_urgent(status: Json, before: Mapping[str, object]) -> bool:
    """Whether more than numbers and wording changed: users and programs wait for it."""
    return _turns(status) != _turns(before)


def _turns(status: Mapping[str, object]) -> object:
    conditions = status.get("conditions")
    listed = conditions if isinstance(conditions, list) else []
    turns = [
        (one.get("type"), one.get("status"), one.get("reason")) for one in listed if isinstance(one, dict)
    ]
    return status.get("observedGeneration"), turns


def _conditions(standing: Standing) -> Iterator[Condition]:
    yield _available(standing)
    yield _progressing(standing)
    yield _degraded(standing)
    if standing.receiver_missing is None:
        yield Condition(
            "ReceiverMissing", "Unknown", "SpecRefused", "what is asked for cannot be read: see Degraded"
        )
    elif standing.receiver_missing:
        yield Condition(
            "ReceiverMissing",
            "True",
            "NoRemoteWrite",
            "nothing is delivered: name a remote_write receiver in the resource, or in the chart's "
            "operator.defaultRemoteWrite",
        )
    else:
        yield Condition("ReceiverMissing", "False", "ReceiverNamed")
    if standing.ignored:
        yield Condition("FieldsIgnored", "True", "NotServed", joined(standing.ignored))
    else:
        yield Condition("FieldsIgnored", "False", "AllServed")


def _available(standing: Standing) -> Condition:
    exporters, agents = standing.exporters, standing.agents
    if not _pods(standing):
        return Condition("Available", "False", "NothingMade", "neither exporters nor agents were made")
    if not all(pods.seen for pods in _pods(standing)):
        return Condition("Available", "False", "Starting", "no controller has begun with it yet")
    if exporters and exporters.wanted and not exporters.ready:
        return Condition("Available", "False", "NoExporterReady", _progress(standing))
    if agents and agents.wanted and not agents.ready:
        return Condition("Available", "False", "NoAgentReady", _progress(standing))
    return Condition("Available", "True", "Running", _progress(standing))


def _progressing(standing: Standing) -> Condition:
    if standing.trouble:
        goes_on = "what ran before goes on" if _pods(standing) else "nothing runs"
        return Condition("Progressing", "False", "Halted", goes_on)
    if all(pods.complete for pods in _pods(standing)):
        return Condition("Progressing", "False", "Complete", _progress(standing))
    if standing.stalled:
        return Condition("Progressing", "False", "DeadlineExceeded", _progress(standing))
    return Condition("Progressing", "True", "RollingOut", _progress(standing))


def _degraded(standing: Standing) -> Condition:
    targets = standing.targets
    if standing.trouble:
        return Condition("Degraded", "True", standing.trouble.reason, str(standing.trouble))
    if standing.stalled:
        return Condition("Degraded", "True", "PodsNotReady", _progress(standing))
    if targets and targets.down:
        why = f": {targets.error}" if targets.error else ""
        return Condition(
            "Degraded", "True", "TargetsDown", f"{targets.down} of {targets.found} targets are down{why}"
        )
    return Condition("Degraded", "False", "AsWanted")


def _pods(standing: Standing) -> list[Rollout]:
    """Of what there is, of this spec or of one before."""
    return [pods for pods in (standing.exporters, standing.agents) if pods is not None]


def _progress(standing: Standing) -> str:
    parts = []
    if standing.exporters and standing.exporters.seen:
        parts.append(f"{standing.exporters.ready} of {standing.exporters.wanted} exporters are ready")
    if standing.agents and standing.agents.seen:
        parts.append(f"{standing.agents.ready} of {standing.agents.wanted} agents are ready")
    return ", ".join(parts)
