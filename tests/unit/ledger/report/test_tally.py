"""Adding up a report: each GPU once for a row, bounds of a row, the GPUs' own accounts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from builders import gpu, instance
from gpuledger.ledger.energy.shares import share_of
from gpuledger.ledger.report.grouping import GROUPINGS, Key, Party, grouping, party_from, party_of, party_text
from gpuledger.ledger.report.tally import Amount, Energy, Tally, Times
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
    return Tally(grouping(by, DEVICES), lambda uuid: share_of(DEVICES[uuid]))


def energy(method: str, *shares: tuple[Party, int], idle: int = 0, unattributed: int = 0) -> Energy:
    return Energy(A.uuid, method, 1_000_000, idle, unattributed, 0, shares)


def times(party: Party, resident: int = 0, held: int = 0, allocated: int = 0, hour: int = 0) -> Times:
    return Times(hour, party, resident, held, resident & ~held, allocated, 1)


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
    ("gpu", pod("a", device=PART), (B.uuid, "1", "NVIDIA H100")),
    ("command", pod("a"), ("python3",)),
    ("label:team", pod("a", labels=(("team", "blue"),)), ("blue",)),
    ("label:team", pod("a"), ("",)),
]


@pytest.mark.parametrize(("by", "party", "key"), OWNERS)
def test_a_party_is_in_the_row_of_its_name(by: str, party: Party, key: Key) -> None:
    assert grouping(by, DEVICES).key(party) == key
    assert len(grouping(by, DEVICES).columns) == len(key)


def test_every_grouping_is_in_the_table_above() -> None:
    assert {by for by, _, _ in OWNERS} == {*GROUPINGS, "label:team"}


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("nampespace", "unknown --by 'nampespace'; did you mean 'namespace'?"),
        ("label:", "--by label: wants the pod label's name, as in --by label:team"),
    ],
)
def test_a_grouping_that_is_not_there_is_named(by: str, line: str) -> None:
    with pytest.raises(UsageError, match=line.replace("?", r"\?")):
        grouping(by, DEVICES)


@pytest.mark.parametrize("party", [party for _, party, _ in OWNERS])
def test_a_party_comes_back_from_its_text(party: Party) -> None:
    assert party_from(party_text(party)) == party


def test_what_differs_from_start_to_start_makes_no_other_party() -> None:
    one, other = (
        party_of(A.uuid, Workload("pod", "ml", "a", pod_uid=uid, container_id=uid, found_by=by))
        for uid, by in (("1", "cgroup"), ("2", "api"))
    )
    assert one == other


def test_a_gpu_counts_once_for_a_row_however_many_were_on_it() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b1110))
    found.add_times(times(pod("b"), resident=0b0111))
    found.finish()
    assert only(found).resident == 4
    assert found.occupied == 4


def test_a_gpu_that_two_rows_shared_counts_for_each() -> None:
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


def test_a_row_is_held_while_somebody_of_it_is_there_and_nobody_of_it_works() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), resident=0b11111, held=0b01111))
    found.add_times(times(pod("b"), resident=0b00111, held=0b00010))
    found.finish()
    assert only(found).held == 2


def test_a_device_that_was_handed_over_and_not_used_is_held() -> None:
    found = tally("namespace")
    found.add_times(times(pod("a"), held=0b1111, allocated=0b1111))
    found.finish()
    assert (only(found).held, only(found).allocated, only(found).resident) == (4, 4, 0)


def test_hours_are_not_mixed() -> None:
    found = tally("namespace")
    for hour in (0, 1):
        found.add_times(times(pod("a"), resident=0b1, hour=hour))
    found.finish()
    assert only(found).resident == 2


def test_the_upper_bound_of_a_row_is_what_the_gpu_used_while_somebody_of_it_was_there() -> None:
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


def test_a_gpus_own_accounts_and_its_shares_are_all_that_it_used() -> None:
    found = tally()
    found.add_energy(energy("activity", (pod("a"), 30), idle=7, unattributed=3))
    found.add_energy(Energy(A.uuid, "unobserved", 9_000_000, 0, 0, 11, ()))
    amount = found.gpus[A.uuid]
    assert (amount.idle, amount.unattributed, amount.unobserved, amount.millijoules) == (7, 3, 11, 51)
    assert amount.microseconds == 1_000_000
