"""The status of a resource, built from its known state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuledger.operator.rollout import ProgressDeadline, Rollout, rollout_of
from gpuledger.operator.status import (
    Condition,
    ExporterNode,
    MonitorConditions,
    ReconcileProblem,
    TargetCounts,
    build_conditions,
    build_status,
    is_urgent,
    join_messages,
    status_patch,
)

Json = dict[str, Any]
NOW = 1_700_000_000.0
READY = Rollout(8, 8, 8)
WELL = MonitorConditions(3, receiver_missing=False, exporters=READY, agents=Rollout(1, 1, 1))
NOTHING = replace(WELL, exporters=None, agents=None)
WRONG = ReconcileProblem("InvalidSpec", ("spec.agent.replicas: expected a number",))


def summaries(state: MonitorConditions) -> dict[str, tuple[str, str]]:
    conditions = build_status(state, {}, NOW)["conditions"]
    return {one["type"]: (one["status"], one["reason"]) for one in conditions}


@pytest.mark.parametrize(
    ("state", "condition", "status", "reason"),
    [
        (WELL, "Available", "True", "Running"),
        (WELL, "Progressing", "False", "Complete"),
        (WELL, "Degraded", "False", "AsWanted"),
        (WELL, "ReceiverMissing", "False", "ReceiverNamed"),
        (WELL, "FieldsIgnored", "False", "AllServed"),
        # Without a receiver, only ServiceAccounts may exist: nothing runs.
        (NOTHING, "Available", "False", "NothingMade"),
        (replace(NOTHING, problem=WRONG), "Progressing", "False", "Halted"),
        (
            replace(WELL, exporters=Rollout(0, 0, 0, observed_latest=False, observed=False)),
            "Available",
            "False",
            "Starting",
        ),
        (replace(WELL, exporters=Rollout(8, 8, 0)), "Available", "False", "NoExporterReady"),
        (replace(WELL, exporters=Rollout(8, 8, 1)), "Available", "True", "Running"),
        (replace(WELL, exporters=Rollout(0, 0, 0)), "Available", "False", "NoNodeMatches"),
        (replace(WELL, agents=Rollout(2, 2, 0)), "Available", "False", "NoAgentReady"),
        (replace(WELL, exporters=Rollout(8, 8, 7)), "Progressing", "True", "RollingOut"),
        (replace(WELL, exporters=Rollout(8, 7, 8)), "Progressing", "True", "RollingOut"),
        (
            replace(WELL, exporters=Rollout(8, 8, 8, observed_latest=False)),
            "Progressing",
            "True",
            "RollingOut",
        ),
        (replace(WELL, exporters=Rollout(8, 8, 7), stalled=True), "Progressing", "False", "DeadlineExceeded"),
        (replace(WELL, exporters=Rollout(8, 8, 7), stalled=True), "Degraded", "True", "PodsNotReady"),
        (replace(WELL, problem=WRONG), "Progressing", "False", "Halted"),
        (replace(WELL, problem=WRONG), "Degraded", "True", "InvalidSpec"),
        # The last applied spec keeps running.
        (replace(WELL, problem=WRONG), "Available", "True", "Running"),
        (replace(WELL, targets=TargetCounts(10, 9, 1)), "Degraded", "True", "TargetsDown"),
        # A target that was not scraped yet is not down.
        (replace(WELL, targets=TargetCounts(10, 8, 0)), "Degraded", "False", "AsWanted"),
        (replace(WELL, receiver_missing=True), "ReceiverMissing", "True", "NoRemoteWrite"),
        (replace(WELL, receiver_missing=None), "ReceiverMissing", "Unknown", "SpecRefused"),
        (replace(WELL, problem=replace(WRONG, halts=False)), "Progressing", "False", "Complete"),
        (replace(WELL, problem=replace(WRONG, halts=False)), "Degraded", "True", "InvalidSpec"),
        (replace(WELL, nodes=(ExporterNode("a", True, error="STALE"),)), "Degraded", "True", "NodeErrors"),
        # The rollout reports exporters that are not ready.
        (replace(WELL, nodes=(ExporterNode("a", False, error="x"),)), "Degraded", "False", "AsWanted"),
        (replace(WELL, warnings=("deprecated",)), "ServerWarnings", "True", "Warned"),
        (replace(WELL, ignored=("spec.license: not needed",)), "FieldsIgnored", "True", "NotServed"),
    ],
)
def test_each_condition_has_its_status_and_reason(
    state: MonitorConditions, condition: str, status: str, reason: str
) -> None:
    assert summaries(state)[condition] == (status, reason)


@pytest.mark.parametrize(
    "state",
    [replace(WELL, receiver_missing=None, problem=WRONG), replace(NOTHING, problem=WRONG)],
    ids=["a spec that is refused", "the first spec is refused"],
)
def test_every_abnormal_condition_has_a_message(state: MonitorConditions) -> None:
    conditions = build_status(state, {}, NOW)["conditions"]
    well = {("ReceiverMissing", "False"), ("FieldsIgnored", "False"), ("Degraded", "False")}
    silent = {(one["type"], one["status"]) for one in conditions if "message" not in one}
    assert silent <= well


def test_the_message_says_why_the_numbers_of_targets_are_absent() -> None:
    status = build_status(replace(WELL, targets=None, silence="agent-0 does not answer"), {}, NOW)
    (available,) = (one for one in status["conditions"] if one["type"] == "Available")
    assert available["message"].endswith("no agent reports its targets: agent-0 does not answer")
    assert status["lastError"] == "agent-0 does not answer"


def test_unknown_numbers_are_absent() -> None:
    status = build_status(replace(WELL, exporters=Rollout(0, 0, 0, observed=False), agents=None), {}, NOW)
    numbers = ("gpuNodes", "exportersReady", "targetsFound", "targetsUp", "lastError")
    assert [status[name] for name in numbers] == [None] * 5
    known = build_status(replace(WELL, targets=TargetCounts(4, 3, 1, "timed out")), {}, NOW)
    assert [known[name] for name in numbers] == [8, 8, 4, 3, "timed out"]


def test_a_very_long_target_error_is_truncated() -> None:
    status = build_status(replace(WELL, targets=TargetCounts(4, 3, 1, "x" * 5000)), {}, NOW)
    assert len(status["lastError"]) <= 1000


def test_the_last_error_contains_the_path_of_the_field() -> None:
    status = build_status(replace(WELL, problem=WRONG), {}, NOW)
    assert status["lastError"] == "spec.agent.replicas: expected a number"


def test_the_transition_time_changes_only_with_the_status() -> None:
    one = Condition("Available", "True", "Running", "3 of 3")
    first = build_conditions([one], 1, {}, NOW)
    later = build_conditions([replace(one, message="4 of 4")], 2, {"conditions": first}, NOW + 60)
    assert later[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    turned = build_conditions([replace(one, status="False")], 2, {"conditions": later}, NOW + 60)
    assert turned[0]["lastTransitionTime"] == "2023-11-14T22:14:20Z"


def test_an_empty_message_is_omitted() -> None:
    assert "message" not in build_conditions([Condition("A", "True", "B")], 1, {}, NOW)[0]


def as_stored(status: Json) -> Json:
    """The status as the API server stores it, without null values."""
    return {key: value for key, value in status.items() if value is not None}


def test_an_unchanged_status_is_not_written_again() -> None:
    before = as_stored(build_status(WELL, {}, NOW))
    assert status_patch(build_status(WELL, before, NOW + 3600), before) == {}


@pytest.mark.parametrize(
    ("after", "urgent"),
    [
        (replace(WELL, exporters=Rollout(9, 9, 9)), False),
        (replace(WELL, exporters=Rollout(9, 9, 8)), True),
        (replace(WELL, generation=4), True),
        (replace(WELL, targets=TargetCounts(1, 1, 0)), False),
    ],
    ids=["numbers", "a condition", "another spec", "targets"],
)
def test_only_a_changed_condition_is_urgent(after: MonitorConditions, urgent: bool) -> None:
    before = as_stored(build_status(WELL, {}, NOW))
    status = build_status(after, before, NOW)
    assert status_patch(status, before) != {}
    assert is_urgent(status, before) is urgent


def test_joined_messages_are_limited() -> None:
    assert join_messages(f"line {number}" for number in range(12)).endswith("line 9; and 2 more")
    assert len(join_messages(["x" * 5000])) <= 1000


def controlled(kind: str, generation: int = 1, spec: Json | None = None, **status: int) -> Json:
    return {"kind": kind, "metadata": {"generation": generation}, "spec": spec or {}, "status": status}


def test_pods_are_summed_over_all_sets() -> None:
    numbers = {"desiredNumberScheduled": 4, "updatedNumberScheduled": 3, "numberReady": 2}
    one = controlled("DaemonSet", observedGeneration=1, **numbers)
    other = controlled("DaemonSet", 2, observedGeneration=1, **numbers)
    assert rollout_of([]) is None
    assert rollout_of([one]) == Rollout(4, 3, 2)
    assert rollout_of([one, other]) == Rollout(8, 6, 4, observed_latest=False)


def test_a_rollout_does_not_wait_for_pods_that_users_replace() -> None:
    numbers = {"desiredNumberScheduled": 4, "updatedNumberScheduled": 0, "numberReady": 4}
    on_delete = controlled(
        "DaemonSet", 1, {"updateStrategy": {"type": "OnDelete"}}, observedGeneration=1, **numbers
    )
    found = rollout_of([on_delete])
    assert found is not None
    assert found.complete


def test_a_set_that_no_controller_has_observed_is_unknown() -> None:
    assert rollout_of([controlled("DaemonSet")]) == Rollout(0, 0, 0, observed_latest=False, observed=False)


def test_the_desired_pods_of_a_stateful_set_are_its_replicas() -> None:
    status = {"observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": 1}
    assert rollout_of([controlled("StatefulSet", spec={"replicas": 3}, **status)]) == Rollout(3, 2, 1)


def test_a_rollout_without_progress_is_stalled() -> None:
    deadline = ProgressDeadline(600.0)
    assert deadline.seconds_left((Rollout(8, 8, 3),), 1, 0.0) == 600.0
    assert deadline.seconds_left((Rollout(8, 8, 3),), 1, 500.0) == 100.0
    # One more pod is ready: progress.
    assert deadline.seconds_left((Rollout(8, 8, 4),), 1, 550.0) == 600.0
    assert deadline.seconds_left((Rollout(8, 8, 4),), 1, 1150.0) == 0.0
    # A new spec restarts the deadline.
    assert deadline.seconds_left((Rollout(8, 8, 4),), 2, 1150.0) == 600.0
    assert deadline.seconds_left((READY,), 2, 9999.0) is None
    assert deadline.seconds_left((None,), 2, 9999.0) is None
