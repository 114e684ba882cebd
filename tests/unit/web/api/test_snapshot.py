"""/api/v1/snapshot: what one Page says, and what it leaves open."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import GIB, gpu, instance, page, process, reading, snapshot
from golden_page import golden_page, stale_page
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.node_state import Health, PauseHealth
from gpuledger.model.process import GpuProcess
from gpuledger.model.session import EnergyState, LedgerState, SessionRow
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Workload
from gpuledger.web.api.snapshot import snapshot_of
from gpuledger.web.api.values import Words, encoded, joules

CARD = gpu(0, name="NVIDIA H100", pci_bus_id="00000000:18:00.0")
BOOKED = EnergyState(totals={CARD.uuid: 10_000})


def told(seen: Snapshot | None, ledger: LedgerState | None = None, health: Health | None = None) -> Words:
    return snapshot_of(page(seen, ledger, health), "node-1")


def row(one: GpuProcess, **more: float | None) -> SessionRow:
    return SessionRow(1, one, 0.0, 0.0)._replace(**more)


def test_every_kind_of_device_stands_in_the_order_of_the_snapshot() -> None:
    devices = snapshot_of(golden_page(), "node-1")["devices"]
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


def test_absent_zero_and_failed_are_three_things() -> None:
    by_place = {(one["gpu"], one["instance"]): one for one in snapshot_of(golden_page(), "")["devices"]}
    assert by_place["2", "9_0"]["memory_used_bytes"] == 0
    assert by_place["2", "2_0"]["memory_used_bytes"] is None
    assert by_place["1", ""]["processes"] == by_place["1", ""]["sessions"] == 0
    lost = by_place["3", ""]
    assert (lost["up"], lost["processes"], lost["sessions"], lost["power_watts"]) == (False, None, None, None)
    cut = by_place["2", ""]
    assert (cut["processes"], cut["sessions"], cut["state"]) == (None, None, None)


def test_an_owner_that_has_gone_has_no_process_count() -> None:
    owners = snapshot_of(golden_page(), "")["devices"][1]["owners"]
    words = [(one["owner_kind"], one["present"], one["processes"], one["held_seconds"]) for one in owners]
    assert words == [("pod", True, 0, 60.0), ("slurm", False, None, 0.0)]


def test_without_readings_there_are_no_devices_and_the_status_says_why() -> None:
    words = snapshot_of(stale_page(), "node-1")
    assert (words["devices"], words["processes"], words["devices_complete"]) == ([], [], False)
    assert words["status"]["text"] == "no reading for 3.0 s"
    assert (words["status"]["stalled"], words["status"]["readings"]) == (True, False)


def test_a_pause_says_until_when() -> None:
    health = Health("paused", tried=True, pause=PauseHealth(True, 1_700_000_600.0, "upgrade"))
    status = told(None, health=health)["status"]
    assert (status["paused"], status["paused_until"], status["readings"]) == (True, 1_700_000_600.0, False)


def test_devices_that_could_not_all_be_listed_are_said_to_be_incomplete() -> None:
    assert told(snapshot(reading(CARD), devices_failed=True))["devices_complete"] is False
    assert told(snapshot(reading(CARD)))["devices_complete"] is True


def test_a_process_has_everything_that_was_booked_to_it_at_once() -> None:
    one = process(CARD, 7, memory=2 * GIB, sm=0.5)
    ledger = LedgerState(energy=BOOKED, sessions=(row(one, measured=1_500, apportioned=1, watts=250.12345),))
    (words,) = told(snapshot(reading(CARD, one)), ledger)["processes"]
    assert (words["joules"], words["measured_joules"], words["power_watts"]) == (1.501, 1.5, 250.123)
    assert (words["pid"], words["count"], words["memory_bytes"], words["sm_ratio"]) == (7, None, 2 * GIB, 0.5)


def test_a_process_on_a_gpu_that_tells_no_energy_has_no_joules() -> None:
    one = process(CARD)
    (words,) = told(snapshot(reading(CARD, one)), LedgerState(sessions=(row(one),)))["processes"]
    assert (words["joules"], words["measured_joules"], words["power_watts"]) == (None, None, None)


def test_a_name_that_a_map_has_lost_is_still_the_sessions() -> None:
    named = process(CARD, workload=Workload("pod", "ml", "train-0", "pytorch"))
    lost = replace(named, workload=Workload("pod", pod_uid="u", missing="pod_name"))
    seen = snapshot(reading(CARD, lost))
    (words,) = told(seen, LedgerState(sessions=(row(named),)))["processes"]
    assert (words["namespace"], words["pod"], words["unresolved"]) == ("ml", "train-0", "")


def test_those_beyond_the_cap_are_one_row_with_their_sum() -> None:
    few = [process(CARD, pid, memory=pid * GIB) for pid in (1, 2, 3)]
    ledger = LedgerState(
        energy=BOOKED,
        omitted={CARD.uuid: frozenset(one.key for one in few[1:])},
        sessions=tuple(row(one, measured=1_000, watts=10.0) for one in few),
    )
    words = told(snapshot(reading(CARD, *few)), ledger)["processes"]
    assert [(one["pid"], one["count"]) for one in words] == [(1, None), (None, 2)]
    rest = words[1]
    assert (rest["memory_bytes"], rest["joules"], rest["power_watts"]) == (5 * GIB, 2, 20.0)


def test_a_sum_of_which_a_part_is_not_known_is_not_known() -> None:
    few = [process(CARD, 1), process(CARD, 2, memory=None), process(CARD, 3)]
    ledger = LedgerState(
        energy=BOOKED,
        omitted={CARD.uuid: frozenset(one.key for one in few)},
        sessions=(row(few[0], measured=1, watts=1.0), row(few[1], measured=1)),
    )
    (rest,) = told(snapshot(reading(CARD, *few)), ledger)["processes"]
    assert (rest["memory_bytes"], rest["joules"], rest["power_watts"]) == (None, None, None)


def test_an_instance_works_as_much_as_its_engines_do() -> None:
    part = instance(CARD, 2, profile="3g.40gb")
    words = told(snapshot(reading(CARD), reading(part, values={q.ENGINE_ACTIVITY: 0.25})))
    whole, piece = words["devices"]
    assert (whole["utilization_ratio"], whole["profile"]) == (None, "")
    assert (piece["utilization_ratio"], piece["profile"], piece["instance"]) == (0.25, "3g.40gb", "2_0")


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_no_number_is_absent(value: float) -> None:
    values = {q.UTILIZATION: value, q.POWER: value, q.MEMORY_USED: value, q.TEMPERATURE: value}
    words = json.loads(encoded(told(snapshot(reading(CARD, values=values)))))["devices"][0]
    names = ("utilization_ratio", "power_watts", "memory_used_bytes", "temperature_celsius")
    assert [words[name] for name in names] == [None] * 4


@given(st.integers(0, 2**52))
def test_joules_have_every_millijoule(millijoules: int) -> None:
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
    """JSON's texts are UTF-16: two halves of a character, side by side, are that character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@settings(deadline=None, max_examples=40)
@given(NAMES, NAMES, NAMES, NAMES, NAMES)
def test_whatever_the_names_are_json_brings_them_back(
    gpu_name: str, pod: str, command: str, status: str, node: str
) -> None:
    card = Gpu("GPU-0", 0, name=gpu_name)
    one = process(card, name="x", workload=Workload("pod", pod, pod, pod, user=pod, job=pod))
    one = replace(one, name="", host=replace(one.host, comm=command))
    seen = replace(snapshot(reading(card, one)), source=SourceInfo(node, detail=status))
    told_page = replace(page(seen, health=Health(status)), source=seen.source)
    words = snapshot_of(told_page, node)
    back = json.loads(encoded(words))
    assert back["node"] == as_json_has_it(node)
    assert back["devices"][0]["name"] == as_json_has_it(gpu_name)
    assert back["status"]["text"] == back["source"]["detail"] == as_json_has_it(status)
    (row,) = back["processes"]
    assert row["command"] == as_json_has_it(one.command)
    assert row["namespace"] == row["pod"] == row["container"] == row["job"] == as_json_has_it(pod)


def test_a_session_has_its_watts_from_its_last_interval_until_a_minute_without_one() -> None:
    one = process(CARD, sm=0.5)

    def at(seconds: float, energy: float | None) -> Snapshot:
        values = {} if energy is None else {q.ENERGY: energy, q.POWER_LIMIT_MAX: 700.0}
        return snapshot(reading(CARD, one, values=values), unix=1_700_000_000.0 + seconds)

    ledger = Ledger(LedgerSettings())
    watts = []
    for seconds, energy in [(0, 0), (1, 100_000), (2, 300_000), (4, 600_000), (5, None), (70, None)]:
        ledger.post(at(seconds, energy))
        watts.append(ledger.state.sessions[0].watts)
    # The first move begins an interval, the second one ends it.
    assert watts == [None, None, 200.0, 150.0, 150.0, None]


@pytest.mark.parametrize("step", [-3600.0, -0.9, 0.9, 3600.0])
def test_a_clock_that_is_set_does_not_change_what_is_said_of_power(step: float) -> None:
    one = process(CARD, sm=0.5)
    ledger = Ledger(LedgerSettings())
    for second in range(4):
        values = {q.ENERGY: second * 100_000, q.POWER_LIMIT_MAX: 700.0}
        unix = 1_700_000_000.0 + second + (step if second == 3 else 0.0)
        there = snapshot(reading(CARD, one, values=values), unix=unix)
        ledger.post(replace(there, elapsed=1_000.0 + second))
    assert ledger.state.sessions[0].watts == 100.0


def test_an_interruption_ends_what_is_said_of_power() -> None:
    one = process(CARD, sm=0.5)
    ledger = Ledger(LedgerSettings())
    for second in range(4):
        values = {q.ENERGY: second * 100_000, q.POWER_LIMIT_MAX: 700.0}
        ledger.post(snapshot(reading(CARD, one, values=values), unix=1_700_000_000.0 + second))
    assert ledger.state.sessions[0].watts == 100.0
    ledger.interrupt()
    state = ledger.post(snapshot(reading(CARD, one, values={}), unix=1_700_000_005.0))
    assert state.sessions[0].watts is None
