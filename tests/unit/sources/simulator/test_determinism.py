from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.model import quantities as q
from gpuledger.sources.simulator.hardware import hash_text, hex_digits, make_uuid, mix_bits
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import Node, reading

TICKS = st.lists(st.floats(0.001, 400, allow_nan=False), max_size=12)
STATE = frozenset({q.ENERGY, q.POWER, q.TEMPERATURE, q.PCIE_RX, q.MEMORY_USED, q.SM_CLOCK})


def test_pseudo_random_values_are_the_same_on_every_machine() -> None:
    assert mix_bits(1, 2, 3) == 973617758142900530
    assert hash_text("a") == 0xAF63DC4C8601EC8C
    assert hex_digits(5, 1) == hex_digits(40, 1)[:5]
    assert make_uuid(7)[14] == "4"


@pytest.mark.parametrize("name", ["k8s-node", "workstation"])
def test_the_same_seed_gives_the_same_snapshots(name: str) -> None:
    first, second = Node(load_scenario(name), seed=5), Node(load_scenario(name), seed=5)
    for at in (0, 1, 2.5, 61, 300):
        assert first.at(at) == second.at(at)


def test_another_seed_gives_another_node() -> None:
    first, second = (Node(load_scenario("k8s-node"), seed=seed).at(90) for seed in (1, 2))
    assert {r.device.uuid for r in first.readings}.isdisjoint(r.device.uuid for r in second.readings)
    assert reading(first).values[q.ENERGY] != reading(second).values[q.ENERGY]
    assert {p.pid for p in first.processes} != {p.pid for p in second.processes}


@settings(max_examples=25)
@given(ticks=TICKS, name=st.sampled_from(["k8s-node", "workstation"]))
def test_state_does_not_depend_on_earlier_reads(ticks: list[float], name: str) -> None:
    often, once = Node(load_scenario(name)), Node(load_scenario(name))
    for tick in sorted(ticks):
        often.at(tick)
    read_often, read_once = often.at(401.3, STATE), once.at(401.3, STATE)
    assert [(r.device, r.values) for r in read_often.readings] == [
        (r.device, r.values) for r in read_once.readings
    ]
    assert [p.key for p in read_often.processes] == [p.key for p in read_once.processes]
    assert read_often.allocations == read_once.allocations


@settings(max_examples=25)
@given(ticks=st.lists(st.floats(0, 18, allow_nan=False), max_size=8))
def test_every_driver_sample_is_returned_once_for_any_ticks(ticks: list[float]) -> None:
    often, twice = Node(load_scenario("k8s-node")), Node(load_scenario("k8s-node"))
    twice.at(0)
    expected = {r.device: sorted(r.samples or (), key=repr) for r in twice.at(18).readings}
    often.at(0)
    returned = dict.fromkeys(expected, ())
    for tick in [*sorted(ticks), 18]:
        for found in often.at(tick).readings:
            returned[found.device] += found.samples or ()
    assert {device: sorted(samples, key=repr) for device, samples in returned.items()} == expected
    assert sum(map(len, expected.values())) > 100


def test_speed_is_scenario_seconds_per_real_second() -> None:
    fast, slow = Node(load_scenario("workstation"), speed=60), Node(load_scenario("workstation"))
    quick, steady = fast.at(600), slow.at(600)
    assert fast.clock.now == 10
    assert quick.elapsed == steady.elapsed == 600
    assert quick.unix == steady.unix
    assert quick.readings[0].values == steady.readings[0].values
