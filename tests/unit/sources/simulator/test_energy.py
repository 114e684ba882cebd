from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.model import quantities as q
from gpuledger.sources.simulator.power import cap_proportionally
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import Node, reading

ENERGY = frozenset({q.ENERGY, q.POWER})
NO_CAP = "load_watts: 240, limit_watts: 700, counter_refresh: 0"
TENANT_1G = "{gi: 9, profile: 1g.10gb, sm_count: 16, memory: 9GB}"


def energy(node: Node, at: float, gpu: int = 0) -> float:
    return reading(node.at(at, ENERGY), gpu).values[q.ENERGY]


def true_joules(node: Node, at: float) -> dict[str, Fraction]:
    """Return true joules by process name, and for `idle`."""
    node.at(at)
    names = {spec.pid: spec.name for spec in node.scenario.processes}
    booked: Counter[str] = Counter()
    for account, joules in node.source.true_energy(at).items():
        booked[names[account.process[1]] if account.process else account.kind] += joules
    return dict(booked)


@pytest.mark.parametrize(
    ("case", "gpu", "expected"),
    [
        (
            "E1: without a resident the floor is idle",
            f"empty_watts: 60, resident_watts: 60, {NO_CAP}, "
            "processes: [{name: a, pid: 9, load: 1, stop: 3}]",
            {"a": 900, "idle": 420},
        ),
        (
            "E2a: unused multiprocessors of a partitioned GPU are idle",
            "empty_watts: 70, resident_watts: 70, load_watts: 495, limit_watts: 700, counter_refresh: 0, "
            f"instances: [{TENANT_1G}], processes: [{{name: a, pid: 9, gi: 9, load: 1}}]",
            {"a": Fraction(700 * 16, 132) + 600, "idle": Fraction(700 * 116, 132)},
        ),
        (
            "E16: the rise to the resident floor is charged to residents",
            "empty_watts: 70, resident_watts: 115, counter_refresh: 0, "
            f"instances: [{TENANT_1G}], processes: [{{name: a, pid: 9, gi: 9}}]",
            {"a": Fraction(700 * 16, 132) + 450, "idle": Fraction(700 * 116, 132)},
        ),
        (
            "E2b: with MIG load is weighted by multiprocessors",
            "empty_watts: 0, resident_watts: 0, load_watts: 165, limit_watts: 700, counter_refresh: 0, "
            f"instances: [{TENANT_1G}, {{gi: 1, profile: 4g.40gb, sm_count: 64, memory: 40GB}}], "
            "processes: [{name: a, pid: 9, gi: 1, load: 0.5}, {name: b, pid: 8, gi: 9, load: 1}]",
            {"a": 400, "b": 200, "idle": 0},
        ),
        (
            "E3: an MPS server with clients is charged nothing",
            "empty_watts: 70, resident_watts: 70, load_watts: 287.5, limit_watts: 700, counter_refresh: 0, "
            "processes: [{name: s, pid: 5, type: mps-server}, "
            "{name: a, pid: 6, type: mps-client, load: 0.4}, {name: b, pid: 7, type: mps-client, load: 0.4}, "
            "{name: c, pid: 8, type: mps-client}]",
            {"s": 0, "a": Fraction(4150, 3), "b": Fraction(4150, 3), "c": Fraction(700, 3), "idle": 0},
        ),
        (
            "an MPS server without clients is charged the floor",
            f"empty_watts: 60, resident_watts: 90, {NO_CAP}, "
            "processes: [{type: mps-server, pid: 5, name: s}]",
            {"s": 900, "idle": 0},
        ),
        (
            "E4: a process between two ticks is charged from its start to its end",
            "empty_watts: 60, resident_watts: 90, load_watts: 300, limit_watts: 700, counter_refresh: 0, "
            "processes: [{name: a, pid: 9}, {name: b, pid: 8, load: 1, start: 2.5, stop: 6.5}]",
            {"a": 720, "b": 1380, "idle": 0},
        ),
        (
            "the power limit reduces all loads proportionally",
            "empty_watts: 60, resident_watts: 100, load_watts: 900, limit_watts: 400, counter_refresh: 0, "
            "processes: [{name: a, pid: 9, load: 0.5}, {name: b, pid: 8, load: 0.25}]",
            {"a": 500 + 2000, "b": 500 + 1000, "idle": 0},
        ),
        (
            "a graphics-only process is charged its load and no floor",
            f"empty_watts: 60, resident_watts: 90, {NO_CAP}, "
            "processes: [{name: g, pid: 9, type: G, load: 0.1}]",
            {"g": 240, "idle": 600},
        ),
        (
            "demands that exceed an engine are scaled down",
            f"empty_watts: 0, resident_watts: 0, {NO_CAP}, "
            "processes: [{name: a, pid: 9, load: 0.9}, {name: b, pid: 8, load: 0.3}]",
            {"a": 1800, "b": 600, "idle": 0},
        ),
        (
            "a busy encoder draws power by its intensity",
            f"empty_watts: 0, resident_watts: 0, {NO_CAP}, "
            "processes: [{name: a, pid: 9, load: 0.1, encoder: 0.5, intensity: 0.2}]",
            {"a": 240, "idle": 0},
        ),
    ],
)
def test_true_energy_of_ten_seconds(case: str, gpu: str, expected: dict[str, Fraction]) -> None:
    node = Node(f"gpus: [{{{gpu}}}]")
    assert true_joules(node, 10) == expected, case
    assert energy(node, 10) == sum(expected.values()) * 1000, case


def test_a_process_on_two_gpus_has_an_account_on_each() -> None:
    node = Node("{gpus: 2, processes: [{name: a, gpus: [0, 1], load: 0.5}]}")
    node.at(10)
    booked = {a.gpu.index: joules for a, joules in node.source.true_energy(10).items() if a.kind == "process"}
    assert booked == {0: 3900, 1: 3900}


PROCESS = st.fixed_dictionaries(
    {
        "name": st.just("p"),
        "load": st.integers(0, 100).map(lambda points: points / 100),
        "noise": st.sampled_from([0, 0.05, 0.3]),
        "type": st.sampled_from(["C", "G", "C+G", "mps-client"]),
        "intensity": st.sampled_from([1, 0.37]),
    },
    optional={"start": st.integers(0, 20_000).map(lambda milli: milli / 1000), "age": st.integers(0, 99)},
)
CYCLE = st.sampled_from(["", "busy: 1.3, quiet: 2.7", "every: 3.1, for: 4.7, jitter: 2.2", "stop: 33.3"])


@given(
    processes=st.lists(st.tuples(PROCESS, CYCLE), max_size=5),
    limit=st.sampled_from([120, 300, 700]),
    times=st.lists(st.floats(0, 60), min_size=1, max_size=5),
)
def test_accounts_add_up_exactly_to_the_integral_of_power(
    processes: list[tuple[dict[str, object], str]], limit: int, times: list[float]
) -> None:
    rows = [", ".join(f"{k}: {v}" for k, v in process.items()) + ", " + cycle for process, cycle in processes]
    listed = ", ".join(f"{{{row}}}" for row in rows)
    node = Node(f"gpus: [{{limit_watts: {limit}, counter_refresh: 0, processes: [{listed}]}}]")
    for at in sorted(times):
        node.at(at)
        accounts = node.source.true_energy(at)
        (simulated,) = node.source._simulated_gpus
        assert sum(accounts.values()) == Fraction(simulated._meter._energy, 10**12)
        assert all(joules >= 0 for joules in accounts.values())


def test_true_energy_of_the_kubernetes_node_matches_its_counters() -> None:
    node = Node(load_scenario("k8s-node"))
    before = {r.device: r.values[q.ENERGY] for r in node.at(0).readings if q.ENERGY in r.values}
    after = {r.device: r.values[q.ENERGY] for r in node.at(300).readings if q.ENERGY in r.values}
    booked: Counter[object] = Counter()
    for account, joules in node.source.true_energy(300).items():
        booked[account.gpu] += joules
    assert {gpu: int(joules * 1000) for gpu, joules in booked.items()} == {
        gpu: after[gpu] - before[gpu] for gpu in after
    }


def test_true_energy_can_be_computed_for_an_earlier_time() -> None:
    node = Node(load_scenario("workstation"))
    early = node.source.true_energy(10)
    node.source.true_energy(100)
    assert node.source.true_energy(10) == early


def test_true_energy_without_a_time_is_the_current_one() -> None:
    node = Node(load_scenario("workstation"))
    node.clock.now = 42
    assert node.source.true_energy() == node.source.true_energy(42)


def test_the_energy_counter_has_the_value_of_its_last_refresh() -> None:
    template = "gpus: [{{empty_watts: 100, resident_watts: 100, counter_start: 5, counter_refresh: {}}}]"
    slow = Node(template.format("1s"))
    assert [energy(slow, at) for at in (0, 0.9, 1, 1.99, 7.2)] == [5_000, 5_000, 105_000, 105_000, 705_000]
    continuous = Node(template.format(0))
    assert energy(continuous, 0.25) == 30_000


@settings(max_examples=30)
@given(times=st.lists(st.floats(0, 30), min_size=2, max_size=10), refresh=st.sampled_from([0, 0.1, 0.7, 5]))
def test_the_energy_counter_never_decreases_and_changes_only_at_refreshes(
    times: list[float], refresh: float
) -> None:
    process = "{name: a, load: 0.5, noise: 0.4, busy: 1, quiet: 1}"
    node = Node(f"gpus: [{{counter_refresh: {refresh}, processes: [{process}]}}]")
    readings = [(at, energy(node, at)) for at in sorted(times)]
    for (before, old), (after, new) in pairwise(readings):
        assert new >= old
        micro = round(refresh * 1e6)
        if refresh and round(before * 1e6) // micro == round(after * 1e6) // micro:
            assert new == old


def test_a_driver_reload_resets_the_energy_counter_to_zero() -> None:
    node = Node(
        "{gpus: [{empty_watts: 100, resident_watts: 100, counter_start: 9000, counter_refresh: 1s}], "
        "faults: [{kind: counter_reset, at: 10.5}]}"
    )
    assert [energy(node, at) for at in (10, 10.5, 10.9, 11, 20)] == [10_000_000, 0, 0, 50_000, 950_000]
    assert sum(node.source.true_energy(20).values()) == 2000


def test_a_gpu_without_energy_counter_reports_only_power() -> None:
    found = reading(Node("gpus: [{counter: false}]").at(5))
    assert q.ENERGY not in found.values
    assert found.supported["energy"] is False
    assert found.values[q.POWER] == 70


@given(wanted=st.lists(st.integers(0, 10**12), max_size=6), available=st.integers(0, 10**12))
def test_capped_shares_are_integers_that_add_up_to_the_available_amount(
    wanted: list[int], available: int
) -> None:
    cut = cap_proportionally(wanted, available)
    assert sum(cut) == min(sum(wanted), available)
    assert all(0 <= share <= demand for share, demand in zip(cut, wanted, strict=True))
