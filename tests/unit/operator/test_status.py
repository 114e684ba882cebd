"""What a resource's status says, of what is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuledger.operator.rollout import Deadline, Rollout, rollout_of
from gpuledger.operator.status import (
    Condition,
    Standing,
    Targets,
    Trouble,
    changes,
    condition_list,
    is_urgent,
    joined,
    status_of,
)

Json = dict[str, Any]
NOW = 1_700_000_000.0
READY = Rollout(8, 8, 8)
WELL = Standing(3, receiver_missing=False, exporters=READY, agents=Rollout(1, 1, 1))
NOTHING = replace(WELL, exporters=None, agents=None)
WRONG = Trouble("InvalidSpec", ("spec.agent.replicas: a number is wanted",))


def turns(standing: Standing) -> dict[str, tuple[str, str]]:
    conditions = status_of(standing, {}, NOW)["conditions"]
    return {one["type"]: (one["status"], one["reason"]) for one in conditions}


@pytest.mark.parametrize(
    ("standing", "condition", "status", "reason"),
    [
        (WELL, "Available", "True", "Running"),
        (WELL, "Progressing", "False", "Complete"),
        (WELL, "Degraded", "False", "AsWanted"),
        (WELL, "ReceiverMissing", "False", "ReceiverNamed"),
        (WELL, "FieldsIgnored", "False", "AllServed"),
        # Accounts may be there, when there is nobody to deliver to: nothing runs.
        (NOTHING, "Available", "False", "NothingMade"),
        (replace(NOTHING, trouble=WRONG), "Progressing", "False", "Halted"),
        (
            replace(WELL, exporters=Rollout(0, 0, 0, settled=False, seen=False)),
            "Available",
            "False",
            "Starting",
        ),
        (replace(WELL, exporters=Rollout(8, 8, 0)), "Available", "False", "NoExporterReady"),
        (replace(WELL, exporters=Rollout(8, 8, 1)), "Available", "True", "Running"),
        (replace(WELL, exporters=Rollout(0, 0, 0)), "Available", "True", "Running"),
        (replace(WELL, agents=Rollout(2, 2, 0)), "Available", "False", "NoAgentReady"),
        (replace(WELL, exporters=Rollout(8, 8, 7)), "Progressing", "True", "RollingOut"),
        (replace(WELL, exporters=Rollout(8, 7, 8)), "Progressing", "True", "RollingOut"),
        (replace(WELL, exporters=Rollout(8, 8, 8, settled=False)), "Progressing", "True", "RollingOut"),
        (replace(WELL, exporters=Rollout(8, 8, 7), stalled=True), "Progressing", "False", "DeadlineExceeded"),
        (replace(WELL, exporters=Rollout(8, 8, 7), stalled=True), "Degraded", "True", "PodsNotReady"),
        (replace(WELL, trouble=WRONG), "Progressing", "False", "Halted"),
        (replace(WELL, trouble=WRONG), "Degraded", "True", "InvalidSpec"),
        # The last good one runs on.
        (replace(WELL, trouble=WRONG), "Available", "True", "Running"),
        (replace(WELL, targets=Targets(10, 9, 1)), "Degraded", "True", "TargetsDown"),
        # Not yet scraped is not down.
        (replace(WELL, targets=Targets(10, 8, 0)), "Degraded", "False", "AsWanted"),
        (replace(WELL, receiver_missing=True), "ReceiverMissing", "True", "NoRemoteWrite"),
        (replace(WELL, receiver_missing=None), "ReceiverMissing", "Unknown", "SpecRefused"),
        (replace(WELL, ignored=("spec.license: not needed",)), "FieldsIgnored", "True", "NotServed"),
    ],
)
def test_each_condition_says_what_is_so(standing: Standing, condition: str, status: str, reason: str) -> None:
    assert turns(standing)[condition] == (status, reason)


@pytest.mark.parametrize(
    "standing",
    [replace(WELL, receiver_missing=None, trouble=WRONG), replace(NOTHING, trouble=WRONG)],
    ids=["a spec that is refused", "the first spec is refused"],
)
def test_what_is_not_as_it_should_be_is_told_in_words(standing: Standing) -> None:
    conditions = status_of(standing, {}, NOW)["conditions"]
    well = {("ReceiverMissing", "False"), ("FieldsIgnored", "False"), ("Degraded", "False")}
    silent = {(one["type"], one["status"]) for one in conditions if "message" not in one}
    assert silent <= well


def test_numbers_that_nobody_knows_are_absent() -> None:
    status = status_of(replace(WELL, exporters=Rollout(0, 0, 0, seen=False), agents=None), {}, NOW)
    numbers = ("gpuNodes", "exportersReady", "targetsFound", "targetsUp", "lastError")
    assert [status[name] for name in numbers] == [None] * 5
    known = status_of(replace(WELL, targets=Targets(4, 3, 1, "timed out")), {}, NOW)
    assert [known[name] for name in numbers] == [8, 8, 4, 3, "timed out"]


def test_an_error_of_a_target_that_goes_on_and_on_is_cut() -> None:
    status = status_of(replace(WELL, targets=Targets(4, 3, 1, "x" * 5000)), {}, NOW)
    assert len(status["lastError"]) <= 1000


def test_trouble_is_told_with_the_path_of_the_field() -> None:
    status = status_of(replace(WELL, trouble=WRONG), {}, NOW)
    assert status["lastError"] == "spec.agent.replicas: a number is wanted"


def test_the_time_is_that_of_the_last_turn() -> None:
    one = Condition("Available", "True", "Running", "3 of 3")
    first = condition_list([one], 1, None, NOW)
    later = condition_list([replace(one, message="4 of 4")], 2, first, NOW + 60)
    assert later[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    turned = condition_list([replace(one, status="False")], 2, later, NOW + 60)
    assert turned[0]["lastTransitionTime"] == "2023-11-14T22:14:20Z"


def test_an_empty_message_is_left_out() -> None:
    assert "message" not in condition_list([Condition("A", "True", "B")], 1, None, NOW)[0]


def as_kept(status: Json) -> Json:
    """As the API server keeps it: what is null is not there."""
    return {key: value for key, value in status.items() if value is not None}


def test_what_was_written_is_not_written_again() -> None:
    before = as_kept(status_of(WELL, {}, NOW))
    assert changes(status_of(WELL, before, NOW + 3600), before) == {}


@pytest.mark.parametrize(
    ("after", "urgent"),
    [
        (replace(WELL, exporters=Rollout(9, 9, 9)), False),
        (replace(WELL, exporters=Rollout(9, 9, 8)), True),
        (replace(WELL, generation=4), True),
        (replace(WELL, targets=Targets(1, 1, 0)), False),
    ],
    ids=["numbers", "a condition", "another spec", "targets"],
)
def test_only_a_turn_is_urgent(after: Standing, urgent: bool) -> None:
    before = as_kept(status_of(WELL, {}, NOW))
    status = status_of(after, before, NOW)
    assert changes(status, before) != {}
    assert is_urgent(status, before) is urgent


def test_very_many_lines_are_some() -> None:
    assert joined(f"line {number}" for number in range(12)).endswith("line 9; and 2 more")
    assert len(joined(["x" * 5000])) <= 1000


def controlled(kind: str, generation: int = 1, spec: Json | None = None, **status: int) -> Json:
    return {"kind": kind, "metadata": {"generation": generation}, "spec": spec or {}, "status": status}


def test_pods_are_counted_over_all_sets() -> None:
    numbers = {"desiredNumberScheduled": 4, "updatedNumberScheduled": 3, "numberReady": 2}
    one = controlled("DaemonSet", observedGeneration=1, **numbers)
    other = controlled("DaemonSet", 2, observedGeneration=1, **numbers)
    assert rollout_of([]) is None
    assert rollout_of([one]) == Rollout(4, 3, 2)
    assert rollout_of([one, other]) == Rollout(8, 6, 4, settled=False)


def test_pods_that_are_exchanged_by_hand_are_not_waited_for() -> None:
    numbers = {"desiredNumberScheduled": 4, "updatedNumberScheduled": 0, "numberReady": 4}
    by_hand = controlled(
        "DaemonSet", 1, {"updateStrategy": {"type": "OnDelete"}}, observedGeneration=1, **numbers
    )
    found = rollout_of([by_hand])
    assert found is not None
    assert found.complete


def test_of_a_set_that_no_controller_has_seen_nothing_is_known() -> None:
    assert rollout_of([controlled("DaemonSet")]) == Rollout(0, 0, 0, settled=False, seen=False)


def test_a_stateful_set_wants_its_replicas() -> None:
    status = {"observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": 1}
    assert rollout_of([controlled("StatefulSet", spec={"replicas": 3}, **status)]) == Rollout(3, 2, 1)


def test_what_becomes_no_better_has_stalled() -> None:
    deadline = Deadline(600.0)
    assert deadline.look((Rollout(8, 8, 3),), 1, 0.0) == 600.0
    assert deadline.look((Rollout(8, 8, 3),), 1, 500.0) == 100.0
    # One more is ready: it goes on.
    assert deadline.look((Rollout(8, 8, 4),), 1, 550.0) == 600.0
    assert deadline.look((Rollout(8, 8, 4),), 1, 1150.0) == 0.0
    # Another spec is another try.
    assert deadline.look((Rollout(8, 8, 4),), 2, 1150.0) == 600.0
    assert deadline.look((READY,), 2, 9999.0) is None
    assert deadline.look((None,), 2, 9999.0) is None
