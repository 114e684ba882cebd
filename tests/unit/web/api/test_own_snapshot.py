"""The snapshot for a user: own processes and owners, and values of whole GPUs only where they are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builders import gpu, instance, node_state, process, reading, snapshot
from golden_state import golden_state
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.availability import Availability
from gpuledger.model.node_state import NodeState
from gpuledger.model.session import ThrottleRow, XidRow
from gpuledger.model.workload import Allocation, Workload
from gpuledger.web.api.json_values import JsonObject
from gpuledger.web.api.own_snapshot import own_state, snapshot_for
from gpuledger.web.api.snapshot import build_snapshot

DAN = Reader("dan", frozenset({"dan", "1001"}), 1001)
A, B, C = gpu(0, name="NVIDIA H100"), gpu(1, name="NVIDIA H100"), gpu(2, name="NVIDIA H100")
MINE, THEIRS = instance(C, 1, 0, sm_count=60), instance(C, 2, 0, sm_count=60)
VALUES = {
    q.UTILIZATION: 0.5,
    q.POWER: 312.5,
    q.TEMPERATURE: 66.0,
    q.MEMORY_USED: 7.0e9,
    q.MEMORY_TOTAL: 80.0e9,
}


def shared_machine() -> NodeState:
    """dan is on GPU 0 with ann and a pod, ann alone on GPU 1, and each of both on an instance of GPU 2."""
    dan, ann = Workload("user", user="dan"), Workload("user", user="annsecret")
    pod = Workload("pod", "secretspace", "secretpod", "main", user="dan")
    readings = [
        reading(
            A,
            process(A, 4001, workload=dan, name="julia"),
            process(A, 77_101, workload=ann, name="secretcmd"),
            process(A, 77_102, workload=pod, name="secretcmd"),
            values=VALUES,
        ),
        reading(B, process(B, 77_103, workload=ann, name="secretcmd"), values=VALUES),
        reading(C, values=VALUES, mig_enabled=True),
        reading(MINE, process(MINE, 4002, workload=dan, sm=None), values=VALUES),
        reading(THEIRS, process(THEIRS, 77_104, workload=ann, name="secretcmd", sm=None), values=VALUES),
    ]
    ledger = Ledger(LedgerSettings())
    seen = snapshot(*readings)
    held = Allocation(B, Workload("slurm", job="77001", user="annsecret"), "slurm")
    state = ledger.post(seen)
    for _ in range(2):
        seen = replace(seen, unix=seen.unix + 1, elapsed=seen.elapsed + 1, allocations=(held,))
        state = ledger.post(seen)
    state = replace(
        state,
        xid_log=tuple(
            XidRow(n, card.uuid, "", 31, 0.0, 0.0, 1, 77_101, "secretcmd") for n, card in enumerate((A, B))
        ),
        throttling={card.uuid: (ThrottleRow("power_cap", 1.0, 5.0, 60.0, 0.9),) for card in (A, B)},
    )
    return node_state(seen, state)


def assert_no_secret(body: JsonObject) -> None:
    text = json.dumps(body)
    assert "secret" not in text
    assert "771" not in text
    assert "77001" not in text


def device(body: JsonObject, index: str, place: str = "") -> JsonObject:
    return next(one for one in body["devices"] if (one["gpu"], one["instance"]) == (index, place))


def test_an_administrator_gets_the_snapshot_itself() -> None:
    state = shared_machine()
    assert snapshot_for(state, "node-1", EVERYTHING) == build_snapshot(state, "node-1")
    with pytest.raises(AssertionError):
        assert_no_secret(build_snapshot(state, "node-1"))


def test_a_user_sees_own_processes_and_counts_of_them() -> None:
    body = snapshot_for(shared_machine(), "node-1", DAN)
    assert_no_secret(body)
    assert [row["pid"] for row in body["processes"]] == [4001, 4002]
    assert [(one["gpu"], one["instance"], one["processes"], one["sessions"]) for one in body["devices"]] == [
        ("0", "", 1, 1),
        ("1", "", 0, 0),
        ("2", "", None, None),
        ("2", "1_0", 1, 1),
        ("2", "2_0", 0, 0),
    ]
    assert [owner["user"] for owner in device(body, "0")["owners"]] == ["dan"]
    assert device(body, "1")["owners"] == []


def test_values_of_a_whole_gpu_are_shown_where_the_user_is() -> None:
    body, full = (snapshot_for(shared_machine(), "node-1", one) for one in (DAN, EVERYTHING))
    for key in ("utilization_ratio", "power_watts", "memory_used_bytes", "temperature_celsius", "state"):
        assert device(body, "0")[key] == device(full, "0")[key]
        assert device(body, "2", "1_0")[key] == device(full, "2", "1_0")[key]
        # Of the GPU of others, of an instance of others, and of the GPU that is cut.
        for index, place in (("1", ""), ("2", "2_0"), ("2", "")):
            assert device(body, index, place)[key] is None


@pytest.mark.parametrize(
    ("availability", "state"), [("free", "idle"), ("in_use", None), ("allocated", None), ("reserved", None)]
)
def test_a_gpu_that_can_be_taken_is_idle_for_everybody(availability: str, state: str | None) -> None:
    found = replace(shared_machine(), availability={(B.uuid, ""): Availability(availability)})
    assert device(snapshot_for(found, "lab", DAN), "1")["state"] == state


def test_throttling_and_xids_of_a_gpu_of_others_are_not_shown() -> None:
    body = snapshot_for(shared_machine(), "node-1", DAN)
    assert device(body, "0")["throttling"]
    assert device(body, "1")["throttling"] == device(body, "1")["xids"] == []
    assert not [one for one in device(body, "1")["problems"] if "throttling" in one["kind"]]
    assert [(row["pid"], row["command"]) for row in device(body, "0")["xids"]] == [(None, "")]


@pytest.mark.parametrize(("user", "name"), [("dan", "dan"), ("annsecret", "")])
def test_a_reservation_has_an_end_and_only_the_own_one_a_name(user: str, name: str) -> None:
    """As in answers to `gpuledger free`."""
    found = Availability("reserved", "a user has reserved it", 9.0, reserved_by=user, reserved_until=1234.5)
    state = replace(shared_machine(), availability={(B.uuid, ""): found})
    (device,) = (one for one in snapshot_for(state, "lab", DAN)["devices"] if one["uuid"] == B.uuid)
    assert (device["reserved_by"], device["reserved_until"]) == (name, 1234.5)
    assert (device["availability"], device["free_seconds"]) == ("reserved", 9.0)


def test_energy_since_the_ledger_began_is_not_shown() -> None:
    body = snapshot_for(shared_machine(), "node-1", DAN)
    assert {one["energy_joules"] for one in body["devices"]} == {None}


@pytest.mark.parametrize(
    "reader", [DAN, Reader(), Reader("eve", frozenset({"eve"}), 7)], ids=["dan", "-", "eve"]
)
def test_the_keys_and_types_are_those_of_every_snapshot(reader: Reader) -> None:
    for state in (shared_machine(), golden_state()):
        body, full = snapshot_for(state, "node-1", reader), build_snapshot(state, "node-1")
        assert body.keys() == full.keys()
        for mine, theirs in zip(body["devices"], full["devices"], strict=True):
            assert mine.keys() == theirs.keys()
            assert mine["uuid"] == theirs["uuid"]
            for key, value in mine.items():
                assert value is None or type(value) is type(theirs[key]), key


def test_a_new_key_of_a_device_is_hidden_until_it_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_diaries(state: NodeState, node: str) -> JsonObject:
        body = build_snapshot(state, node)
        for one in body["devices"]:
            one["diary"] = "annsecret"
        return body

    monkeypatch.setattr("gpuledger.web.api.own_snapshot.build_snapshot", with_diaries)
    body = snapshot_for(shared_machine(), "node-1", Reader("eve", frozenset({"eve"}), 7))
    assert {one["diary"] for one in body["devices"]} == {""}


def test_a_process_without_a_session_is_shown_by_its_owner() -> None:
    seen = snapshot(
        reading(
            A,
            process(A, 1, workload=Workload("user", user="dan")),
            process(A, 2, workload=Workload("user", user="ann")),
        )
    )
    body = snapshot_for(node_state(seen), "node-1", DAN)
    assert [row["pid"] for row in body["processes"]] == [1]


def test_a_session_decides_over_the_process() -> None:
    """A session keeps its name: a process that has another one for a moment is still hidden."""
    state = shared_machine()
    assert state.snapshot is not None
    taken = [
        replace(one, workload=Workload("user", user="dan")) if one.pid == 77_103 else one
        for one in state.snapshot.readings[1].processes or ()
    ]
    readings = (state.snapshot.readings[0], replace(state.snapshot.readings[1], processes=tuple(taken)))
    changed = replace(state, snapshot=replace(state.snapshot, readings=readings))
    assert 77_103 not in [row["pid"] for row in snapshot_for(changed, "node-1", DAN)["processes"]]


def test_the_state_of_a_user_has_no_lists_of_others() -> None:
    state = own_state(shared_machine(), DAN)
    assert state.snapshot is not None
    assert state.snapshot.allocations == state.snapshot.xids == ()
    assert {row.process.pid for row in state.ledger.sessions} == {4001, 4002}
    assert "secret" not in repr((state.ledger.sessions, state.ledger.owners, state.snapshot.readings))


def test_a_state_without_a_reading_has_no_devices_for_anybody() -> None:
    body = snapshot_for(node_state(None), "node-1", DAN)
    assert body["devices"] == body["processes"] == []
