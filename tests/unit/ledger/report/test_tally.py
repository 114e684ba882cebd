"""Report sums: a GPU counts once per row, bounds of a row, the GPUs' own accounts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from builders import gpu, instance
from gpuledger.ledger.energy.shares import device_share
from gpuledger.ledger.report.grouping import (
    GROUPINGS,
    Key,
    Party,
    find_grouping,
    party_from_text,
    party_of,
    party_text,
)
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


def times(party: Party, resident: int = 0, held: int = 0, allocated: int = 0, hour: int = 0) -> TimeEntry:
    return TimeEntry(hour, party, resident, held, resident & ~held, allocated, 1)


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


def test_every_grouping_is_in_the_table_above() -> None:
    assert {by for by, _, _ in OWNERS} == {*GROUPINGS, "label:team"}


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


def test_hours_are_counted_separately() -> None:
    found = tally("namespace")
    for hour in (0, 1):
        found.add_times(times(pod("a"), resident=0b1, hour=hour))
    found.finish()
    assert only(found).resident == 2


def test_the_upper_bound_of_a_row_is_the_gpus_energy_while_it_was_present() -> None:
    found = tally("namespace")
    found.add_energy(energy("measured", (pod("a"), 100)))
    found.add_energy(energy("activity", (pod("a"), 30), (pod("b"), 20), (pod("c", "web"), 50), idle=7))
    found.add_energy(energy("activity", (pod("c", "web"), 60), unattributed=5))
    assert {
        key[0]: (amount.measured, amount.millijoules, amount.high) for key, amount in found.amounts.items()
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
