"""What pods have by their annotations: other devices than the kubelet lists, and parts of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.workloads.pod_resources.allocation_matching import AllocationMatcher, MatchResult
from gpuledger.workloads.pod_resources.allocation_matching import match_allocations as match_with_settings
from gpuledger.workloads.pod_resources.device_names import KubeletAllocation, PodResources
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.gpu_shares import DeviceShare, PodShares
from gpuledger.workloads.pods.pod import Pod, Pods

match_allocations = partial(match_with_settings, settings=PodResourcesSettings())

FULL = Gpu("GPU-31b00003-0000-4000-8000-000000000001", 0)
OTHER = Gpu("GPU-31b00003-0000-4000-8000-000000000002", 1)
HALF = Instance("MIG-31b00003-0000-4000-8000-0000000000a1", OTHER, 1, 0, 0)


def allocation(device_id: str, pod: str) -> KubeletAllocation:
    return KubeletAllocation("team", pod, "main", "nvidia.com/gpu", device_id)


def pod_resources(*allocated: KubeletAllocation) -> PodResources:
    return PodResources(allocated)


def a_pod(uid: str = "u1", name: str = "a", shares: PodShares | None = None) -> Pod:
    return Pod(uid, "team", name, phase="Running", shares=shares or PodShares())


def sharing(pod: Pod, *ids: str, devices: tuple[Device, ...] = (FULL, OTHER)) -> MatchResult:
    items = [
        KubeletAllocation(pod.namespace, pod.name, f"c{at}", "nvidia.com/gpu", one)
        for at, one in enumerate(ids)
    ]
    return match_allocations(pod_resources(*items), devices, Pods([pod]))


def stating(*containers: tuple[DeviceShare, ...]) -> Pod:
    return a_pod(shares=PodShares(containers))


def test_the_annotation_says_which_device_a_pod_has_and_not_the_id_of_the_kubelet() -> None:
    pod = stating((DeviceShare(OTHER.uuid, Fraction(1, 4)),))
    (found,) = sharing(pod, f"{FULL.uuid}-3").allocations
    assert (found.device, found.fraction, found.found_by) == (OTHER, Fraction(1, 4), "annotation")


def test_containers_have_the_devices_of_the_annotation_in_order() -> None:
    pod = stating((DeviceShare(OTHER.uuid, Fraction(1, 4)),), (DeviceShare(FULL.uuid, Fraction(1, 2)),))
    found = sharing(pod, f"{FULL.uuid}-3", f"{FULL.uuid}-4").allocations
    assert [(one.device, one.workload.container) for one in found] == [(FULL, "c1"), (OTHER, "c0")]


def test_the_container_is_not_guessed() -> None:
    pod = stating((DeviceShare(OTHER.uuid), DeviceShare(FULL.uuid)))
    found = sharing(pod, f"{FULL.uuid}-3", f"{FULL.uuid}-4").allocations
    assert [(one.device, one.workload.container) for one in found] == [(FULL, ""), (OTHER, "")]


@pytest.mark.parametrize("uuid", ["", OTHER.uuid, "GPU-31b00003-0000-4000-8000-000000000009"])
def test_a_stated_device_that_is_not_known_here_is_unmatched(uuid: str) -> None:
    """No name, a divided GPU without its instance, and a GPU of another machine."""
    outcome = sharing(
        stating((DeviceShare(uuid, Fraction(1, 4)),)), f"{FULL.uuid}-3", devices=(FULL, OTHER, HALF)
    )
    assert (outcome.allocations, len(outcome.unmatched)) == ((), 1)


def test_a_mig_instance_of_the_kubelet_is_not_replaced() -> None:
    (found,) = sharing(stating((DeviceShare(FULL.uuid),)), HALF.uuid, devices=(FULL, OTHER, HALF)).allocations
    assert (found.device, found.found_by) == (HALF, "pod_resources")


@pytest.mark.parametrize("tail", ["", "::1", "/vgpu1"])
def test_an_annotation_counts_only_for_the_ids_of_its_scheduler(tail: str) -> None:
    """A user who has a whole device cannot write a smaller part."""
    (found,) = sharing(stating((DeviceShare(OTHER.uuid, Fraction(1, 100)),)), FULL.uuid + tail).allocations
    assert (found.device, found.fraction) == (FULL, None if tail else 1)


@pytest.mark.parametrize(
    ("containers", "name"), [({"1": "app"}, "app"), ({"1": "app", "2": "side"}, ""), ({}, "")]
)
def test_the_only_container_of_a_pod_has_what_the_pod_has(containers: dict[str, str], name: str) -> None:
    pod = stating((DeviceShare(OTHER.uuid), DeviceShare(OTHER.uuid)))
    (found,) = sharing(replace(pod, containers=containers), f"{FULL.uuid}-3").allocations
    assert found.workload.container == name


def reserving(group: str, namespace: str = "kai-resource-reservation") -> Pod:
    return Pod(f"uid-{group}", namespace, f"r-{group}", shares=PodShares(groups=frozenset({group})))


def reserved(device: Device, pod: Pod) -> KubeletAllocation:
    return KubeletAllocation(pod.namespace, pod.name, "main", "nvidia.com/gpu", device.uuid)


def test_a_reservation_pod_has_the_device_until_a_pod_of_its_group_is_known() -> None:
    groups, reservation = frozenset({"g1"}), reserving("g1")
    worker = a_pod("w", "worker", shares=PodShares(groups=groups, part=DeviceShare(fraction=Fraction(1, 2))))
    listed = pod_resources(reserved(FULL, reservation))
    for pods, owner, fraction in (
        ([reservation], "r-g1", 1),
        ([reservation, worker], "worker", Fraction(1, 2)),
        ([reservation, replace(worker, finished=True)], "r-g1", 1),
    ):
        (found,) = match_allocations(listed, (FULL, OTHER), Pods(pods)).allocations
        assert (found.workload.pod, found.fraction) == (owner, fraction)


def test_a_pod_with_parts_of_two_gpus_has_both() -> None:
    worker = a_pod("w", "worker", shares=PodShares(groups=frozenset({"g1", "g2"}), part=DeviceShare()))
    reservations = [reserving("g1"), reserving("g2", "runai-reservation")]
    listed = pod_resources(*map(reserved, (FULL, OTHER), reservations))
    found = match_allocations(listed, (FULL, OTHER), Pods([*reservations, worker])).allocations
    assert [(one.device.uuid, one.workload.pod) for one in found] == [
        (FULL.uuid, "worker"),
        (OTHER.uuid, "worker"),
    ]


@pytest.mark.parametrize("namespace", ["evil", "kai", "kai-resource-reservation-2", ""])
@pytest.mark.parametrize("group", ["g1", "g2"])
def test_a_user_can_neither_give_a_gpu_to_the_pods_of_a_group_nor_state_a_part_of_it(
    namespace: str, group: str
) -> None:
    """Only pods in a namespace of the scheduler reserve a GPU: each user can write the label of a group."""
    part = DeviceShare(fraction=Fraction(1, 1_000_000))
    worker = a_pod("w", "worker", shares=PodShares(groups=frozenset({"g1"}), part=part))
    reservation, miner = reserving("g1"), reserving(group, namespace)
    listed = pod_resources(reserved(FULL, reservation), reserved(OTHER, miner))
    found = match_allocations(listed, (FULL, OTHER), Pods([reservation, worker, miner])).allocations
    assert [(one.device, one.workload.pod, one.fraction) for one in found] == [
        (FULL, "worker", part.fraction),
        (OTHER, miner.name, 1),
    ]


SHARES = st.builds(
    DeviceShare,
    st.sampled_from(["", FULL.uuid, OTHER.uuid, "junk"]),
    st.sampled_from([None, Fraction(1, 4), Fraction(1)]),
    st.sampled_from([None, 1 << 30]),
)


@given(
    st.lists(st.lists(SHARES, max_size=2).map(tuple), max_size=3),
    st.sets(st.sampled_from(["g1", "g2"])),
    st.none() | SHARES,
    st.lists(st.sampled_from([f"{FULL.uuid}-1", f"{FULL.uuid}::1", OTHER.uuid, "junk"]), max_size=3),
)
def test_whatever_a_pod_states_changes_nothing_for_another(
    containers: list[tuple[DeviceShare, ...]], groups: set[str], part: DeviceShare | None, ids: list[str]
) -> None:
    worker = a_pod("u3", "c", shares=PodShares(groups=frozenset({"g1"}), part=DeviceShare(memory=1 << 30)))
    others = [a_pod("u2", "b"), worker, reserving("g1")]
    pods = Pods([a_pod(shares=PodShares(tuple(containers), frozenset(groups), part)), *others])
    held = [allocation(FULL.uuid, "b"), reserved(OTHER, others[2])]
    listed = pod_resources(*held, *(allocation(one, "a") for one in ids))
    found = match_allocations(listed, (FULL, OTHER), pods).allocations
    assert [one.device for one in found if one.workload.pod == "b"] == [FULL]
    assert [one.device for one in found if one.workload.pod == "c"] == [OTHER]
    assert all(one.fraction is None or 0 < one.fraction <= 1 for one in found)


RESERVATION = reserving("g1")
MEMBER = a_pod("w", "worker", shares=PodShares(groups=frozenset({"g1"}), part=DeviceShare(memory=1 << 30)))
HELD = pod_resources(reserved(FULL, RESERVATION), allocation(OTHER.uuid, "a"), allocation(OTHER.uuid, "b"))
# The same object at each tick.
DEVICES = (FULL, OTHER)
# Pods of which some have a GPU here, and states in which they can be.
STATES = (
    *(None, RESERVATION, MEMBER, replace(MEMBER, finished=True), a_pod("u9", "without a GPU")),
    *(a_pod(), replace(a_pod(), labels=(("team", "b"),)), replace(a_pod(), finished=True), a_pod("u1b")),
    *(replace(a_pod(), phase=""), a_pod("u2", "b")),
)


@example([[RESERVATION], [RESERVATION, MEMBER], [RESERVATION]], True)
@given(st.lists(st.lists(st.sampled_from(STATES), max_size=5), max_size=6), st.booleans())
def test_changes_of_pods_give_the_same_as_matching_from_the_start(
    indexes: list[list[Pod | None]], alive: bool
) -> None:
    matcher, ended = AllocationMatcher(PodResourcesSettings(), lambda _: alive), MatchResult().ended
    for index in indexes:
        pods = Pods(pod for pod in index if pod is not None)
        fresh = match_allocations(HELD, DEVICES, pods, has_cgroup=lambda _: alive, ended_before=ended)
        ended = fresh.ended
        assert matcher.match(HELD, DEVICES, pods) == fresh.allocations


def test_a_change_of_a_pod_without_a_gpu_keeps_the_allocations() -> None:
    matcher, pods = AllocationMatcher(PodResourcesSettings()), [a_pod(), a_pod("u2", "b")]
    first = matcher.match(HELD, DEVICES, Pods(pods))
    assert matcher.match(HELD, DEVICES, Pods([*pods, a_pod("u9", "without a GPU")])) is first
    pods[0] = replace(pods[0], labels=(("team", "b"),))
    assert matcher.match(HELD, DEVICES, Pods(pods)) is not first
