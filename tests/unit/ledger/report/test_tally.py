"""Report sums: a GPU counts once per row, bounds of a row, the GPUs' own accounts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.report.grouping import Key, find_grouping
from gpuledger.ledger.report.party import Party, party_from_text, party_of, party_text
from gpuledger.ledger.report.tally import Amount, EnergyEntry, Tally, TimeEntry
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import UNKNOWN, Workload

A = gpu(0, name="NVIDIA H100", sm_count=132)
B = gpu(1, name="NVIDIA H100", sm_count=132)
PART = instance(B, 2, 0, profile="3g.40gb", sm_count=60)
DEVICES: dict[str, Device] = {device.uuid: device for device in (A, B, PART)}


def pod(
    name: str, namespace: str = "ml", device: Device = A, command: str = "python3", **more: object
) -> Party:
    return party_of(device.uuid, Workload("pod", namespace, name, "main", **more), command)  # type: ignore[arg-type]


def tally(by: str = "namespace") -> Tally:
    return Tally(find_grouping(by, DEVICES), lambda uuid: device_share(DEVICES[uuid]))


def energy(method: str, *shares: tuple[Party, int], idle: int = 0, unattributed: int = 0) -> EnergyEntry:
    return EnergyEntry(A.uuid, method, 1_000_000, idle, unattributed, 0, shares)


def times(
    party: Party,
    resident: int = 0,
    held: int = 0,
    allocated: int = 0,
    quarter: int = 0,
    unknown: int = 0,
    old: int = 0,
) -> TimeEntry:
    busy = resident & ~held & ~unknown
    return TimeEntry(quarter, party, resident, held, busy, allocated, 1, unknown, old)


def only(found: Tally) -> Amount:
    (amount,) = found.amounts.values()
    return amount


OWNERS: list[tuple[str, Party, Key]] = [
    ("owner", pod("a"), ("pod", "ml", "a")),
    ("owner", party_of(A.uuid, Workload("slurm", job="17", user="ada")), ("slurm", "", "17")),
    ("owner", party_of(A.uuid, Workload("user", user="ada")), ("user", "", "ada")),
    ("owner", party_of(A.uuid, Workload("container", container="web")), ("container", "", "web")),
    ("owner", party_of(A.uuid, Workload("unit", unit="x.service")), ("unit", "", "x.service")),
    ("owner", party_of(A.uuid, UNKNOWN), ("unknown", "", "")),
    ("namespace", pod("a"), ("ml",)),
    ("pod", pod("a"), ("ml", "a")),
    ("container", pod("a"), ("ml", "a", "main")),
    ("user", party_of(A.uuid, Workload("slurm", job="17", user="ada")), ("ada",)),
    ("user", pod("a", user="root"), ("",)),
    ("job", party_of(A.uuid, Workload("slurm", job="17")), ("", "17")),
    ("job", pod("a-x", controller_kind="Job", controller="a"), ("ml", "a")),
    ("job", pod("a-x", controller_kind="ReplicaSet", controller="a"), ("", "")),
    ("unit", party_of(A.uuid, Workload("unit", unit="ollama.service")), ("ollama.service",)),
    ("unit", pod("a"), ("",)),
    ("gpu", pod("a", device=PART), (B.uuid, "1", "NVIDIA H100")),
    ("command", pod("a"), ("python3",)),
    ("label:team", pod("a", labels=(("team", "blue"),)), ("blue",)),
    ("label:team", pod("a"), ("",)),
]


@pytest.mark.parametrize(("by", "party", "key"), OWNERS)
def test_a_party_belongs_to_the_row_of_its_key(by: str, party: Party, key: Key) -> None:
    assert find_grouping(by, DEVICES).key(party) == key
    assert len(find_grouping(by, DEVICES).columns) == len(key)


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("nampespace", "unknown --by 'nampespace'; did you mean 'namespace'?"),
        ("label:", "--by label: requires a pod label's name, such as --by label:team"),
    ],
)
def test_an_unknown_grouping_is_named(by: str, line: str) -> None:
    with pytest.raises(UsageError, match=line.replace("?", r"\?")):
        find_grouping(by, DEVICES)


@pytest.mark.parametrize("party", [party for _, party, _ in OWNERS])
def test_a_party_round_trips_through_text(party: Party) -> None:
    assert party_from_text(party_text(party)) == party


def test_ids_of_single_starts_do_not_change_the_party() -> None:
    one, other = (
        party_of(A.uuid, Workload("pod", "ml", "a", pod_uid=uid, container_id=uid, found_by=by))
        for uid, by in (("1", "cgroup"), ("2", "api"))
    )
    assert one == other


def test_a_gpu_counts_once_per_row_regardless_of_its_processes() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b1110))
    found.add_times(times(pod("b"), resident=0b0111))
    found.finish()
    assert only(found).resident == 4
    assert found.occupied == 4


def test_a_gpu_shared_by_two_rows_counts_for_both() -> None:
    found = tally("pod")
    found.add_times(times(pod("a"), resident=0b1110))
    found.add_times(times(pod("b"), resident=0b0111))
    found.finish()
    assert [amount.resident for amount in found.amounts.values()] == [3, 3]
    assert found.occupied == 4


def test_two_gpus_count_twice_and_an_instance_by_its_multiprocessors() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b11))
    found.add_times(times(pod("a", device=PART), resident=0b11))
    found.finish()
    assert only(found).resident == 2 + 2 * Fraction(60, 132)


def test_a_row_is_held_while_its_parties_are_present_and_all_inactive() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b11111, held=0b01111))
    found.add_times(times(pod("b"), resident=0b00111, held=0b00010))
    found.finish()
    assert only(found).held == 2


def test_an_allocated_unused_device_counts_as_held() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), held=0b1111, allocated=0b1111))
    found.finish()
    assert (only(found).held, only(found).allocated, only(found).resident) == (4, 4, 0)


def test_an_allocation_without_a_process_is_in_the_row_of_none_running() -> None:
    found = tally("command")
    found.add_times(times(pod("a", command=""), held=0b1111, allocated=0b1111))
    found.finish()
    assert [key for _, key in found.amounts] == [(NONE_RUNNING,)]


def test_a_row_is_active_while_an_engine_was_busy() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b11111, held=0b00011))
    found.add_times(times(pod("b"), held=0b1111, allocated=0b1111))
    found.finish()
    assert only(found).active == 3


def test_a_second_of_a_row_is_active_else_unknown_else_held() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b111111, held=0b000111, unknown=0b011000))
    found.add_times(times(pod("b"), resident=0b011011, held=0b010001, unknown=0b000010))
    found.finish()
    amount = only(found)
    assert (amount.active, amount.unknown, amount.held, amount.resident) == (2, 2, 2, 6)


@given(st.lists(st.tuples(*[st.integers(0, 255)] * 3, st.sampled_from([A, PART])), min_size=1, max_size=6))
def test_active_held_and_unknown_seconds_sum_to_the_resident_ones(
    seen: list[tuple[int, int, int, Device]],
) -> None:
    found = tally("namespace")
    for resident, held, unknown, device in seen:
        rest = resident & ~held
        found.add_times(times(pod("a", device=device), resident, resident & held, unknown=rest & unknown))
    found.finish()
    amount = only(found)
    assert amount.active + amount.held + amount.unknown == amount.resident


def test_an_allocation_of_which_the_processes_were_not_read_is_unknown() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), held=0b0001, allocated=0b1111, unknown=0b0110))
    found.finish()
    assert (only(found).held, only(found).unknown, only(found).allocated) == (1, 2, 4)


def test_what_an_earlier_version_did_not_call_held_is_unknown() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b1111, held=0b0010, unknown=0b0001, old=0b0011))
    found.add_times(times(pod("b"), allocated=0b110001, old=0b010011))
    found.finish()
    amount = only(found)
    assert (amount.held, amount.unknown, amount.old, amount.active) == (1, 2, 2, 2)


def test_quarters_are_counted_separately() -> None:
    found = tally("namespace")
    for quarter in (0, 1):
        found.add_times(times(pod("a"), resident=0b1, quarter=quarter))
    found.finish()
    assert only(found).resident == 2


def test_the_upper_bound_of_a_row_is_the_gpus_energy_while_it_was_present() -> None:
    found = tally("namespace")
    found.add_energy(energy("measured", (pod("a"), 100)))
    found.add_energy(energy("activity", (pod("a"), 30), (pod("b"), 20), (pod("c", "web"), 50), idle=7))
    found.add_energy(energy("activity", (pod("c", "web"), 60), unattributed=5))
    assert {
        key[0]: (amount.measured, amount.millijoules, amount.high)
        for (_, key), amount in found.amounts.items()
    } == {
        "ml": (100, 150, 207),
        "web": (0, 110, 172),
    }


def test_a_gpus_own_accounts_and_shares_sum_to_its_energy() -> None:
    found = tally()
    found.add_energy(energy("activity", (pod("a"), 30), idle=7, unattributed=3))
    found.add_energy(EnergyEntry(A.uuid, "unobserved", 9_000_000, 0, 0, 11, ()))
    amount = found.gpus[A.uuid]
    assert (amount.idle, amount.unattributed, amount.unobserved, amount.millijoules) == (7, 3, 11, 51)
    assert amount.microseconds == 1_000_000
