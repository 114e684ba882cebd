"""/api/v1/snapshot: a NodeState as JSON, with absent values."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, gpu, instance, node_state, process, reading, snapshot
from golden_state import golden_state, stale_state
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.availability import Availability
from gpuledger.model.devices import Gpu
from gpuledger.model.node_state import Health, PauseHealth
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import EnergyState, LedgerState, SessionRow
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Workload
from gpuledger.web.api.json_values import JsonObject, encode_json, joules
from gpuledger.web.api.snapshot import build_snapshot

CARD = gpu(0, name="NVIDIA H100", pci_bus_id="00000000:18:00.0")
BOOKED = EnergyState(totals={CARD.uuid: 10_000})


def snapshot_of(
    seen: Snapshot | None, ledger: LedgerState | None = None, health: Health | None = None
) -> JsonObject:
    return build_snapshot(node_state(seen, ledger, health), "node-1")


def row(one: GpuProcess, **more: float | None) -> SessionRow:
    return SessionRow(1, one, 0.0, 0.0)._replace(**more)


def test_every_kind_of_device_is_listed_in_the_order_of_the_snapshot() -> None:
    devices = build_snapshot(golden_state(), "node-1")["devices"]
    assert [(one["gpu"], one["instance"], one["up"], one["holds_processes"]) for one in devices] == [
        ("0", "", True, True),
        ("1", "", True, True),
        ("2", "", True, False),
        ("2", "9_0", True, True),
        ("2", "2_0", True, True),
        ("3", "", False, True),
        ("4", "", True, True),
    ]
    assert {one["uuid"] for one in devices[2:5]} == {"GPU-2"}


def test_memory_that_compute_instances_share_is_in_one_row() -> None:
    values = {q.MEMORY_USED: GIB, q.MEMORY_TOTAL: 5 * GIB}
    parts = [reading(instance(CARD, 1, ci), values=values) for ci in (0, 1)]
    devices = snapshot_of(snapshot(reading(CARD), *parts))["devices"]
    keys = ("memory_used_bytes", "memory_total_bytes", "memory_shared_with")
    assert [[one[key] for key in keys] for one in devices[1:]] == [[GIB, 5 * GIB, ""], [None, None, "1_0"]]


def test_absent_zero_and_failed_values_differ() -> None:
    by_place = {(one["gpu"], one["instance"]): one for one in build_snapshot(golden_state(), "")["devices"]}
    assert by_place["2", "9_0"]["memory_used_bytes"] == 0
    assert by_place["2", "2_0"]["memory_used_bytes"] is None
    assert by_place["1", ""]["processes"] == by_place["1", ""]["sessions"] == 0
    lost = by_place["3", ""]
    assert (lost["up"], lost["processes"], lost["sessions"], lost["power_watts"]) == (False, None, None, None)
    assert (lost["down_reason"], by_place["1", ""]["down_reason"]) == ("does not answer", "")
    cut = by_place["2", ""]
    assert (cut["processes"], cut["sessions"], cut["state"]) == (None, None, None)


def test_a_past_owner_has_no_process_count() -> None:
    owners = build_snapshot(golden_state(), "")["devices"][1]["owners"]
    body = [(one["owner_kind"], one["present"], one["processes"], one["held_seconds"]) for one in owners]
    assert body == [("pod", True, 0, 60.0), ("slurm", False, None, 0.0)]


def test_without_readings_there_are_no_devices_and_the_status_has_the_reason() -> None:
    body = build_snapshot(stale_state(), "node-1")
    assert (body["devices"], body["processes"], body["devices_complete"]) == ([], [], False)
    assert body["status"]["text"] == "no reading for 3.0 s"
    assert (body["status"]["stalled"], body["status"]["readings"]) == (True, False)


def test_the_status_has_the_end_of_a_pause() -> None:
    health = Health("paused", attempted=True, pause=PauseHealth(True, 1_700_000_600.0, "upgrade"))
    status = snapshot_of(None, health=health)["status"]
    assert (status["paused"], status["paused_until"], status["readings"]) == (True, 1_700_000_600.0, False)


def test_an_incomplete_list_of_devices_is_marked() -> None:
    assert snapshot_of(snapshot(reading(CARD), devices_failed=True))["devices_complete"] is False
    assert snapshot_of(snapshot(reading(CARD)))["devices_complete"] is True


def test_a_process_has_all_its_booked_energy() -> None:
    one = process(CARD, 7, memory=2 * GIB, sm=0.5)
    ledger = LedgerState(energy=BOOKED, sessions=(row(one, measured=1_500, apportioned=1, watts=250.12345),))
    (body,) = snapshot_of(snapshot(reading(CARD, one)), ledger)["processes"]
    assert (body["joules"], body["measured_joules"], body["power_watts"]) == (1.501, 1.5, 250.123)
    assert (body["pid"], body["count"], body["memory_bytes"], body["sm_ratio"]) == (7, None, 2 * GIB, 0.5)


def test_a_process_on_a_gpu_without_energy_readings_has_null_energy() -> None:
    one = process(CARD)
    (body,) = snapshot_of(snapshot(reading(CARD, one)), LedgerState(sessions=(row(one),)))["processes"]
    assert (body["joules"], body["measured_joules"], body["power_watts"]) == (None, None, None)


def test_a_session_keeps_a_name_that_the_owner_index_has_lost() -> None:
    named = process(CARD, workload=Workload("pod", "ml", "train-0", "pytorch"))
    lost = replace(named, workload=Workload("pod", pod_uid="u", missing="pod_name"))
    seen = snapshot(reading(CARD, lost))
    (body,) = snapshot_of(seen, LedgerState(sessions=(row(named),)))["processes"]
    assert (body["namespace"], body["pod"], body["unresolved"]) == ("ml", "train-0", "")


def test_processes_beyond_the_limit_are_summed_in_one_row() -> None:
    few = [process(CARD, pid, memory=pid * GIB) for pid in (1, 2, 3)]
    ledger = LedgerState(
        energy=BOOKED,
        omitted={CARD.uuid: frozenset(one.key for one in few[1:])},
        sessions=tuple(row(one, measured=1_000, watts=10.0) for one in few),
    )
    body = snapshot_of(snapshot(reading(CARD, *few)), ledger)["processes"]
    assert [(one["pid"], one["count"]) for one in body] == [(1, None), (None, 2)]
    rest = body[1]
    assert (rest["memory_bytes"], rest["joules"], rest["power_watts"]) == (5 * GIB, 2, 20.0)


def test_a_sum_with_an_absent_part_is_absent() -> None:
    few = [process(CARD, 1), process(CARD, 2, memory=None), process(CARD, 3)]
    ledger = LedgerState(
        energy=BOOKED,
        omitted={CARD.uuid: frozenset(one.key for one in few)},
        sessions=(row(few[0], measured=1, watts=1.0), row(few[1], measured=1)),
    )
    (rest,) = snapshot_of(snapshot(reading(CARD, *few)), ledger)["processes"]
    assert (rest["memory_bytes"], rest["joules"], rest["power_watts"]) == (None, None, None)


def test_the_utilization_of_an_instance_is_its_engine_activity() -> None:
    part = instance(CARD, 2, profile="3g.40gb")
    body = snapshot_of(snapshot(reading(CARD), reading(part, values={q.ENGINE_ACTIVITY: 0.25})))
    whole, piece = body["devices"]
    assert (whole["utilization_ratio"], whole["profile"]) == (None, "")
    assert (piece["utilization_ratio"], piece["profile"], piece["instance"]) == (0.25, "3g.40gb", "2_0")


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_infinite_and_nan_samples_are_omitted(value: float) -> None:
    values = {q.UTILIZATION: value, q.POWER: value, q.MEMORY_USED: value, q.TEMPERATURE: value}
    body = json.loads(encode_json(snapshot_of(snapshot(reading(CARD, values=values)))))["devices"][0]
    names = ("utilization_ratio", "power_watts", "memory_used_bytes", "temperature_celsius")
    assert [body[name] for name in names] == [None] * 4


@given(st.integers(0, 2**52))
def test_joules_are_exact_to_the_millijoule(millijoules: int) -> None:
    written = json.dumps(joules(millijoules))
    assert round(json.loads(written) * 1000) == millijoules
    assert len(written.partition(".")[2]) <= 3 or "e" in written


NAMES = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=60),
    st.sampled_from(
        ["</script><script>alert(1)</script>", "\ud800", "\udfff!", "\x00\x1b[2J\x7f", "\u2028", "'\"\\", "é"]
    ),
    st.builds(lambda char, times: char * times, st.sampled_from("x\x01\ud834<"), st.just(100_000)),
)


def as_json_has_it(text: str) -> str:
    """JSON strings are UTF-16: two adjacent surrogates are one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@given(NAMES, NAMES, NAMES, NAMES, NAMES)
def test_any_name_survives_json(gpu_name: str, pod: str, command: str, status: str, node: str) -> None:
    card = Gpu("GPU-0", 0, name=gpu_name)
    one = process(card, name="x", workload=Workload("pod", pod, pod, pod, user=pod, job=pod))
    one = replace(one, name="", host=replace(one.host, comm=command))
    seen = replace(snapshot(reading(card, one)), source=SourceInfo(node, detail=status))
    state = replace(node_state(seen, health=Health(status)), source=seen.source)
    body = build_snapshot(state, node)
    back = json.loads(encode_json(body))
    assert back["node"] == as_json_has_it(node)
    assert back["devices"][0]["name"] == as_json_has_it(gpu_name)
    assert back["status"]["text"] == back["source"]["detail"] == as_json_has_it(status)
    (row,) = back["processes"]
    assert row["command"] == as_json_has_it(one.command)
    assert row["namespace"] == row["pod"] == row["container"] == row["job"] == as_json_has_it(pod)


def test_the_power_of_a_session_expires_after_a_minute_without_an_interval() -> None:
    one = process(CARD, sm=0.5)

    def at(seconds: float, energy: float | None) -> Snapshot:
        values = {} if energy is None else {q.ENERGY: energy, q.POWER_LIMIT_MAX: 700.0}
        return snapshot(reading(CARD, one, values=values), unix=1_700_000_000.0 + seconds)

    ledger = Ledger(LedgerSettings())
    watts = []
    for seconds, energy in [(0, 0), (1, 100_000), (2, 300_000), (4, 600_000), (5, None), (70, None)]:
        ledger.post(at(seconds, energy))
        watts.append(ledger.state.sessions[0].watts)
    # The first counter change begins an interval, the second one ends it.
    assert watts == [None, None, 200.0, 150.0, 150.0, None]


@pytest.mark.parametrize("step", [-3600.0, -0.9, 0.9, 3600.0])
def test_setting_the_clock_does_not_change_the_power_of_a_session(step: float) -> None:
    one = process(CARD, sm=0.5)
    ledger = Ledger(LedgerSettings())
    for second in range(4):
        values = {q.ENERGY: second * 100_000, q.POWER_LIMIT_MAX: 700.0}
        unix = 1_700_000_000.0 + second + (step if second == 3 else 0.0)
        there = snapshot(reading(CARD, one, values=values), unix=unix)
        ledger.post(replace(there, elapsed=1_000.0 + second))
    assert ledger.state.sessions[0].watts == 100.0


def test_an_interruption_clears_the_power_of_a_session() -> None:
    one = process(CARD, sm=0.5)
    ledger = Ledger(LedgerSettings())
    for second in range(4):
        values = {q.ENERGY: second * 100_000, q.POWER_LIMIT_MAX: 700.0}
        ledger.post(snapshot(reading(CARD, one, values=values), unix=1_700_000_000.0 + second))
    assert ledger.state.sessions[0].watts == 100.0
    ledger.interrupt()
    state = ledger.post(snapshot(reading(CARD, one, values={}), unix=1_700_000_005.0))
    assert state.sessions[0].watts is None


def test_a_device_says_whether_it_can_be_taken() -> None:
    whole, cut = gpu(0), gpu(1)
    part = instance(cut, 2)
    seen = snapshot(reading(whole), reading(cut, mig_enabled=True), reading(part))
    state = replace(
        node_state(seen),
        availability={
            (whole.uuid, ""): Availability(
                "reserved", "a user has reserved it", 61.25, GIB, None, 7, "ann", 9.0
            ),
            (cut.uuid, "2_0"): Availability("free", "", 120.0),
        },
    )
    first, parent, second = build_snapshot(state, "lab-1")["devices"]
    keys = ("device_uuid", "availability", "availability_reason", "free_seconds", "memory_free_bytes")
    keys += ("reserved_by", "reserved_until")
    assert [first[key] for key in keys] == [
        *(whole.uuid, "reserved", "a user has reserved it", 61.25, GIB),
        *("ann", 9.0),
    ]
    # Of a GPU with instances, only these are judged.
    assert [parent[key] for key in keys] == [cut.uuid, None, "", None, None, "", None]
    assert [second[key] for key in keys[:4]] == [part.uuid, "free", "", 120.0]
