"""Builds the status of a resource, conditions and numbers, from its known state. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gpuledger.kubernetes.fields import mappings_at
from gpuledger.kubernetes.object_client import Json
from gpuledger.model.text import clean_name, list_some
from gpuledger.operator.render_context import DEFAULT_RECEIVERS
from gpuledger.operator.rollout import Rollout

Status = Literal["True", "False", "Unknown"]
# The API allows 32 KiB for a message; shorter ones remain readable.
_MAX_MESSAGE_LENGTH: Final = 1000
_MAX_LINES: Final = 10
# Entries of the status: with these, a fleet of any size has a status of at most 40 KB for its nodes.
_MOST_NODES: Final = 100
_MAX_NODE_ERROR: Final = 250
_MOST_FIELDS: Final = 200
_NO_NODE: Final = (
    "no exporter runs, because no node matches the exporter's nodeSelector and affinity. By default, a node "
    "needs a label of GPU nodes, which GPU feature discovery or the cloud sets, such as "
    "nvidia.com/gpu.present=true"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a resource; `reason` is one word for programs, `message` is for people."""

    type: str
    status: Status
    reason: str
    message: str = ""


def join_messages(lines: Iterable[str], most: int = _MAX_LINES, length: int = _MAX_MESSAGE_LENGTH) -> str:
    """The messages as one text, limited in number and length."""
    return clean_name(list_some(lines, most, "; "), length)


def build_conditions(
    conditions: Iterable[Condition], generation: int, before: Mapping[str, object], unix: float
) -> list[Json]:
    """The conditions as JSON, for the spec of this generation.

    A condition with the same status as in `before`, the resource's status, keeps its transition time.
    """
    transition_times = {
        (condition.get("type"), condition.get("status")): condition["lastTransitionTime"]
        for condition in mappings_at(before, "conditions")
        if isinstance(condition.get("lastTransitionTime"), str)
    }
    now = datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            # Kubernetes 1.20 compiled with Go 1.18 or newer treats empty strings in custom resources as null.
            **({"message": condition.message} if condition.message else {}),
            "observedGeneration": generation,
            "lastTransitionTime": transition_times.get((condition.type, condition.status), now),
        }
        for condition in conditions
    ]


@dataclass(frozen=True, slots=True)
class TargetCounts:
    """Numbers of targets of the agents. `error` is the last error of a target or of an agent's pod."""

    found: int
    up: int
    down: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class ExporterNode:
    """The exporter of one node. `gpus` is None and `driver` empty while they are not known."""

    name: str
    ready: bool
    gpus: int | None = None
    driver: str = ""
    error: str = ""

    def as_json(self) -> Json:
        """The entry in the status."""
        found = {"name": self.name, "ready": self.ready, "gpus": self.gpus, "driver": self.driver}
        stated = {key: value for key, value in found.items() if value not in (None, "")}
        return {**stated, **({"error": clean_name(self.error, _MAX_NODE_ERROR)} if self.error else {})}


@dataclass(frozen=True, slots=True)
class ReconcileProblem:
    """Why the spec, or a part of it, is not applied: `reason` is one word, `lines` say what to change."""

    reason: str
    lines: tuple[str, ...]
    # False: the rest of the spec is applied.
    halts: bool = True

    def __str__(self) -> str:
        return join_messages(self.lines)


@dataclass(frozen=True, slots=True)
class MonitorConditions:
    """The known state of one monitor; None for values that are unknown or do not apply."""

    generation: int
    problem: ReconcileProblem | None = None
    ignored: tuple[str, ...] = ()
    # A line for each problem of a target, an endpoint or a receiver of the operator, which is left out.
    left_out: tuple[str, ...] = ()
    receiver_missing: bool | None = None
    exporters: Rollout | None = None
    agents: Rollout | None = None
    targets: TargetCounts | None = None
    # Why no agent answers.
    silence: str = ""
    # Why Kubernetes does not create pods; empty if it does, or if the reason is not known.
    creation_failure: str = ""
    # What the API server warned about when it stored the objects.
    warnings: tuple[str, ...] = ()
    # The exporters by node, those with problems first.
    nodes: tuple[ExporterNode, ...] | None = None
    # Pods are missing, and nothing has changed within the progress deadline.
    stalled: bool = False
    # The schedule of the CronJob, if there is one; `suspended`: it starts no Jobs, and no DaemonSet runs.
    schedule: str = ""
    suspended: bool = False
    # What runs instead of a CronJob, and why.
    note: str = ""
    # The last completely applied specification, as JSON.
    applied_spec: str | None = None

    @property
    def problems(self) -> list[ReconcileProblem]:
        """The problems of the spec."""
        receivers = tuple(line for line in self.left_out if line.startswith(DEFAULT_RECEIVERS))
        targets = tuple(line for line in self.left_out if line not in receivers)
        left_out = {"TargetsInvalid": targets, "ReceiversInvalid": receivers}
        found = [ReconcileProblem(reason, lines) for reason, lines in left_out.items() if lines]
        return found if self.problem is None else [self.problem, *found]

    @property
    def halted(self) -> bool:
        """Whether nothing of the newest spec is applied."""
        return self.problem is not None and self.problem.halts


def build_status(state: MonitorConditions, before: Mapping[str, object], unix: float) -> Json:
    """The status as JSON; absent keys have the value None."""
    exporters, targets = state.exporters, state.targets
    lines = [line for problem in state.problems for line in problem.lines]
    node_errors = (f"node {one.name}: {one.error}" for one in state.nodes or () if one.error)
    others = [state.creation_failure, *node_errors, targets.error if targets else state.silence]
    error = join_messages(lines or [line for line in others if line][:1])
    return {
        "observedGeneration": state.generation,
        "conditions": build_conditions(_conditions(state), state.generation, before, unix),
        "gpuNodes": exporters.desired if exporters and exporters.observed else None,
        "exportersReady": exporters.ready if exporters and exporters.observed else None,
        "targetsFound": targets.found if targets else None,
        "targetsUp": targets.up if targets else None,
        "nodes": None if state.nodes is None else [one.as_json() for one in state.nodes[:_MOST_NODES]],
        "nodesOmitted": max(0, len(state.nodes or ()) - _MOST_NODES) or None,
        "lastError": error or None,
        "appliedSpec": state.applied_spec,
    }


def status_patch(status: Json, before: Mapping[str, object]) -> Json:
    """The changes as a merge patch of the status `before`; empty if there are none."""
    return {key: value for key, value in status.items() if before.get(key) != value}


def is_urgent(status: Json, before: Mapping[str, object]) -> bool:
    """Whether more than numbers and messages changed: users and programs wait for such changes."""
    return _transitions(status) != _transitions(before)


def _transitions(status: Mapping[str, object]) -> object:
    summaries = [
        (condition.get("type"), condition.get("status"), condition.get("reason"))
        for condition in mappings_at(status, "conditions")
    ]
    return status.get("observedGeneration"), summaries


def _conditions(state: MonitorConditions) -> Iterator[Condition]:
    yield _available(state)
    yield _progressing(state)
    yield _degraded(state)
    if state.receiver_missing is None:
        yield Condition("ReceiverMissing", "Unknown", "SpecRefused", "the spec is invalid; see Degraded")
    elif state.receiver_missing:
        yield Condition(
            "ReceiverMissing",
            "True",
            "NoRemoteWrite",
            "no samples are sent: set remoteWrite in the resource or the chart's operator.defaultRemoteWrite",
        )
    else:
        yield Condition("ReceiverMissing", "False", "ReceiverNamed")
    if state.warnings:
        yield Condition("ServerWarnings", "True", "Warned", _list_all(state.warnings))
    if state.ignored:
        # Each of them: after a move from another operator, users must see what has no effect here.
        yield Condition("FieldsIgnored", "True", "NotServed", _list_all(state.ignored))
    else:
        yield Condition("FieldsIgnored", "False", "AllServed")


def _available(state: MonitorConditions) -> Condition:
    exporters, agents = state.exporters, state.agents
    if state.suspended:
        return Condition("Available", "False", "Suspended", "the CronJob is suspended and starts no Jobs")
    if not _rollouts(state):
        return Condition("Available", "False", "NothingMade", "neither exporters nor agents are deployed")
    if state.schedule and not state.note and exporters and not exporters.observed:
        message = f"no result of a Job is known; they start by the schedule {state.schedule}"
        return Condition("Available", "False", "Starting", message)
    if not all(pods.observed for pods in _rollouts(state)):
        return Condition("Available", "False", "Starting", "Kubernetes has not started to create the pods")
    if exporters and not exporters.desired:
        return Condition("Available", "False", "NoNodeMatches", _NO_NODE)
    if exporters and not exporters.ready:
        return Condition("Available", "False", "NoExporterReady", _progress_message(state))
    if agents and agents.desired and not agents.ready:
        return Condition("Available", "False", "NoAgentReady", _progress_message(state))
    return Condition("Available", "True", "Running", _progress_message(state))


def _progressing(state: MonitorConditions) -> Condition:
    if state.halted:
        running = "the last applied spec keeps running" if _rollouts(state) else "nothing runs"
        return Condition("Progressing", "False", "Halted", running)
    if all(pods.complete for pods in _rollouts(state)):
        return Condition("Progressing", "False", "Complete", _progress_message(state))
    if state.stalled:
        return Condition("Progressing", "False", "DeadlineExceeded", _progress_message(state))
    return Condition("Progressing", "True", "RollingOut", _progress_message(state))


def _degraded(state: MonitorConditions) -> Condition:
    found = [(problem.reason, line) for problem in state.problems for line in problem.lines]
    if state.creation_failure and not state.halted:
        found.insert(0, ("PodsNotCreated", state.creation_failure))
    elif state.stalled and not state.halted:
        found.insert(0, ("PodsNotReady", _progress_message(state)))
    targets = state.targets
    if targets and targets.down and not state.halted:
        suffix = f": {targets.error}" if targets.error else ""
        found.append(("TargetsDown", f"{targets.down} of {targets.found} targets are down{suffix}"))
    failing = [node for node in state.nodes or () if node.ready and node.error]
    if failing and not state.halted:
        first = f"{failing[0].name}: {failing[0].error}"
        found.append(("NodeErrors", f"{len(failing)} of {len(state.nodes or ())} nodes have errors: {first}"))
    if not found:
        return Condition("Degraded", "False", "AsWanted")
    return Condition("Degraded", "True", found[0][0], _list_all(line for _, line in found))


def _list_all(lines: Iterable[str]) -> str:
    """Each of the lines, unless they are more than a user can read."""
    return join_messages(lines, _MOST_FIELDS, _MOST_FIELDS * _MAX_MESSAGE_LENGTH // _MAX_LINES)


def _rollouts(state: MonitorConditions) -> list[Rollout]:
    """The existing rollouts, of this spec or an earlier one."""
    return [pods for pods in (state.exporters, state.agents) if pods is not None]


def _progress_message(state: MonitorConditions) -> str:
    jobs = state.schedule and not state.note
    written = "nodes have written their file in the newest Jobs" if jobs else "exporters are ready"
    ready = ", ".join(
        f"{pods.ready} of {pods.desired} {what}"
        for pods, what in ((state.exporters, written), (state.agents, "agents are ready"))
        if pods is not None and pods.observed
    )
    unknown = f"no agent reports its targets: {state.silence}" if state.silence else ""
    return join_messages(line for line in (ready, state.note, state.creation_failure, unknown) if line)
