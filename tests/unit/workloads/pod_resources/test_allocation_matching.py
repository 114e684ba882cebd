"""Matching of the kubelet's allocations to Devices: each becomes an Allocation or is counted by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.model.text import matches_any
from gpuledger.workloads.pod_resources.allocation_matching import (
    AllocationMatcher,
    MatchResult,
    claim_uses,
)
from gpuledger.workloads.pod_resources.allocation_matching import match_allocations as match_with_settings
from gpuledger.workloads.pod_resources.device_names import (
    FOUND_BY_CHECKPOINT,
    ClaimedDevice,
    KubeletAllocation,
    PodResources,
)
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.claims import ClaimedPart, ResourceClaims
from gpuledger.workloads.pods.gpu_shares import PodShares
from gpuledger.workloads.pods.pod import Pod, Pods, ResourceSlices

FIRST, SECOND = gpu(0, minor=0), gpu(1, minor=1)
SMALL = instance(SECOND, 7)
DEVICES = (FIRST, SECOND, SMALL)
SETTINGS = PodResourcesSettings()
match_allocations = partial(match_with_settings, devices=DEVICES, settings=SETTINGS)


def allocation(
    device_id: str = "GPU-0", pod: str = "a", resource: str = "nvidia.com/gpu"
) -> KubeletAllocation:
    return KubeletAllocation("team", pod, "main", resource, device_id)


def claim(device: str = "gpu-0", driver: str = "gpu.nvidia.com") -> KubeletAllocation:
    return KubeletAllocation(
        "team", "a", "main", claimed_device=ClaimedDevice(driver, "node", device, claim="gpus")
    )


def pod_resources(*allocated: KubeletAllocation) -> PodResources:
    return PodResources(allocated)


ONE = pod_resources(allocation())


def a_pod(uid: str = "u1", name: str = "a", **more: object) -> Pod:
    return Pod(uid, "team", name, **{"phase": "Running", **more})  # type: ignore[arg-type]  # free-form


def test_a_kubelet_allocation_becomes_an_allocation_to_the_container() -> None:
    one = match_allocations(ONE).allocations[0]
    owner = one.workload
    assert (one.device, one.resource, one.found_by) == (FIRST, "nvidia.com/gpu", "pod_resources")
    assert (owner.kind, owner.namespace, owner.pod, owner.container) == ("pod", "team", "a", "main")
    assert (owner.pod_uid, owner.missing) == ("", "")


def test_an_allocation_has_the_labels_and_controller_of_its_pod() -> None:
    pod = a_pod(
        containers={"c1": "main", "c2": "side"},
        labels=(("app", "x"),),
        controller_kind="Job",
        controller="train",
    )
    owner = match_allocations(ONE, pods=Pods([pod])).allocations[0].workload
    assert (owner.pod_uid, owner.container_id, owner.labels) == ("u1", "c1", (("app", "x"),))
    assert (owner.controller_kind, owner.controller) == ("Job", "train")


def test_the_container_id_of_a_restarted_container_is_not_guessed() -> None:
    pod = a_pod(containers={"old": "main", "new": "main"})
    assert match_allocations(ONE, pods=Pods([pod])).allocations[0].workload.container_id == ""


def test_checkpoint_allocations_find_their_pod_by_uid() -> None:
    written = PodResources(
        (KubeletAllocation(container="main", resource="nvidia.com/gpu", device_id="GPU-0", pod_uid="u1"),),
        found_by=FOUND_BY_CHECKPOINT,
    )
    named = match_allocations(written, pods=Pods([a_pod()])).allocations[0]
    assert (named.workload.pod, named.found_by, named.workload.missing) == ("a", "checkpoint", "")
    nameless = match_allocations(written).allocations[0].workload
    assert (nameless.pod, nameless.pod_uid, nameless.missing) == ("", "u1", "pod_name")


def test_a_static_pod_of_the_checkpoint_has_the_uid_of_the_api() -> None:
    """As its processes have: the checkpoint and the cgroup have the hash of its manifest."""
    hashed = "8d3b1f0e9c7a6b5d4e3f2a1b0c9d8e7f"
    written = KubeletAllocation(
        container="main", resource="nvidia.com/gpu", device_id="GPU-0", pod_uid=hashed
    )
    listed = PodResources((written,), found_by=FOUND_BY_CHECKPOINT)
    (found,) = match_allocations(listed, pods=Pods([a_pod("u1", hash=hashed)])).allocations
    assert (found.workload.pod, found.workload.pod_uid) == ("a", "u1")


def test_a_finished_pod_holds_nothing() -> None:
    outcome = match_allocations(ONE, pods=Pods([a_pod(phase="Succeeded", finished=True)]))
    assert (outcome.allocations, outcome.unmatched, outcome.ended.total()) == ((), (), 1)


@pytest.mark.parametrize(("cgroup", "kept"), [(True, 1), (False, 0), (None, 1)])
def test_without_a_phase_a_pod_without_a_cgroup_has_ended(cgroup: bool | None, kept: int) -> None:
    pods = Pods([a_pod(phase="")])
    assert len(match_allocations(ONE, pods=pods, has_cgroup=lambda _: cgroup).allocations) == kept


def test_the_cgroup_of_a_static_pod_is_found_by_its_hash() -> None:
    pods = Pods([a_pod("mirror", phase="", hash="hash")])
    assert match_allocations(ONE, pods=pods, has_cgroup=lambda uid: uid == "hash").ended.total() == 0


def test_a_new_kubelet_response_checks_the_cgroup_again() -> None:
    alive = {"u1"}
    matcher, pods = AllocationMatcher(SETTINGS, alive.__contains__), Pods([a_pod(phase="")])
    assert len(matcher.match(pod_resources(allocation()), DEVICES, pods)) == 1
    alive.clear()
    assert matcher.match(pod_resources(allocation()), DEVICES, pods) == ()


def test_the_cgroup_of_a_running_pod_is_not_checked() -> None:
    assert len(match_allocations(ONE, pods=Pods([a_pod()]), has_cgroup=lambda _: False).allocations) == 1


def test_an_ended_allocation_stays_ended_after_the_api_forgets_the_pod() -> None:
    matcher = AllocationMatcher(SETTINGS)
    first = pod_resources(allocation())
    assert len(matcher.match(first, DEVICES, Pods([a_pod()]))) == 1
    assert matcher.match(first, DEVICES, Pods([a_pod(phase="Succeeded", finished=True)])) == ()
    assert matcher.match(first, DEVICES, Pods()) == ()
    assert matcher.match(pod_resources(allocation()), DEVICES, Pods()) == (), "the kubelet still lists it"
    again = Pods([a_pod("u2")])
    assert len(matcher.match(pod_resources(allocation()), DEVICES, again)) == 1, (
        "a pod of the same name, on the same device"
    )


def test_an_allocation_that_the_kubelet_removed_can_become_active_again() -> None:
    matcher = AllocationMatcher(SETTINGS)
    matcher.match(pod_resources(allocation()), DEVICES, Pods([a_pod(phase="Failed", finished=True)]))
    matcher.match(pod_resources(), DEVICES, Pods())
    assert len(matcher.match(pod_resources(allocation()), DEVICES, Pods())) == 1


def test_the_newest_of_two_pods_with_one_name_holds_the_device() -> None:
    pods = Pods([a_pod("old", created=1.0), a_pod("new", created=2.0)])
    allocated = [
        KubeletAllocation(container="main", resource="nvidia.com/gpu", device_id=device, pod_uid=uid)
        for uid, device in (("old", "GPU-0"), ("new", "GPU-1"))
    ]
    outcome = match_allocations(PodResources(tuple(allocated), found_by=FOUND_BY_CHECKPOINT), pods=pods)
    assert [(item.workload.pod_uid, item.device) for item in outcome.allocations] == [("new", SECOND)]
    assert outcome.ended.total() == 1


def test_replicas_of_one_device_are_one_allocation_to_a_container() -> None:
    outcome = match_allocations(
        pod_resources(allocation("GPU-0::0"), allocation("GPU-0::1"), allocation("GPU-0::2", "b"))
    )
    assert [item.workload.pod for item in outcome.allocations] == ["a", "b"]
    assert outcome.repeated == 1


def test_a_claimed_device_is_found_by_uuid_or_else_by_name() -> None:
    uuids = {("gpu.nvidia.com", "node", "gpu-0"): "GPU-1"}
    by_uuid = match_allocations(pod_resources(claim()), slices=ResourceSlices(uuids)).allocations[0]
    assert (by_uuid.device, by_uuid.found_by, by_uuid.resource) == (SECOND, "dra", "gpus")
    by_name = match_allocations(pod_resources(claim())).allocations[0]
    assert (by_name.device, by_name.found_by) == (FIRST, "dra_name")


def test_other_resources_and_drivers_are_skipped_without_a_failure() -> None:
    outcome = match_allocations(
        pod_resources(
            allocation("x", resource="vendor.com/nic"), claim("channel-0", "compute-domain.nvidia.com")
        )
    )
    assert (outcome.allocations, outcome.unmatched) == ((), ())
    assert outcome.skipped == {"vendor.com/nic": 1, "compute-domain.nvidia.com": 1}


def test_unmatched_allocations_are_counted_by_the_form_of_their_names() -> None:
    outcome = match_allocations(
        pod_resources(allocation("GPU-9"), allocation("GPU-8"), allocation("nvidia9"), allocation())
    )
    assert Counter(reason.form for _, reason in outcome.unmatched) == {"uuid": 2, "nvidiaN": 1}
    assert len(outcome.allocations) == 1


def test_allocations_are_ordered_by_device_and_name() -> None:
    allocated = [
        allocation("MIG-1-7-0", "b"),
        allocation("GPU-0", "z"),
        allocation("GPU-0", "a"),
        allocation("GPU-1", "c"),
    ]
    one = match_allocations(pod_resources(*allocated))
    assert [item.workload.pod for item in one.allocations] == ["a", "z", "c", "b"]
    assert match_allocations(pod_resources(*reversed(allocated))).allocations == one.allocations


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/gpux", False),
        ("nvidia.com/mig", False),
    ],
)
def test_a_trailing_star_matches_any_ending(name: str, expected: bool) -> None:
    assert matches_any(name, ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")) is expected


def test_the_same_inputs_give_the_same_object_without_checking_cgroups() -> None:
    queried: list[str] = []
    matcher = AllocationMatcher(SETTINGS, lambda uid: not queried.append(uid))
    inputs = (pod_resources(allocation()), DEVICES, Pods([a_pod(phase="")]))
    first = matcher.match(*inputs)
    assert matcher.match(*inputs) is first
    assert (len(first), queried) == (1, ["u1"])


def test_an_equal_kubelet_response_keeps_the_result_object() -> None:
    matcher = AllocationMatcher(SETTINGS)
    first = matcher.match(pod_resources(allocation()), DEVICES)
    assert matcher.match(pod_resources(allocation()), DEVICES) is first
    assert matcher.match(pod_resources(allocation("GPU-1")), DEVICES) is not first


def test_a_device_with_a_new_index_gives_a_new_allocation() -> None:
    matcher = AllocationMatcher(SETTINGS)
    matcher.match(pod_resources(allocation()), (gpu(0),))
    moved = type(FIRST)("GPU-0", 3)
    assert matcher.match(pod_resources(allocation()), (moved,))[0].device.index == 3


KUBELET_ALLOCATIONS = st.lists(
    st.one_of(
        st.builds(
            allocation,
            st.sampled_from(
                ["GPU-0", "GPU-0::1", "GPU-1", "MIG-1-7-0", "nvidia1/gi7", "0", "GPU-9", "junk", ""]
            ),
            st.sampled_from(["a", "b", "done"]),
            st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "vendor.com/nic"]),
        ),
        st.builds(
            claim, st.sampled_from(["gpu-0", "gpu-7", "?"]), st.sampled_from(["gpu.nvidia.com", "other"])
        ),
        st.builds(allocation, st.text(max_size=12)),
    ),
    max_size=12,
)


@given(KUBELET_ALLOCATIONS)
def test_every_kubelet_allocation_is_counted_exactly_once(allocated: list[KubeletAllocation]) -> None:
    pods = Pods([a_pod(), a_pod("u2", "done", phase="Failed", finished=True)])
    outcome = match_allocations(pod_resources(*allocated), pods=pods)
    assert _total(outcome) == len(allocated)
    assert len(set(outcome.allocations)) == len(outcome.allocations)


def _total(outcome: MatchResult) -> int:
    counted = outcome.ended.total() + outcome.repeated + sum(outcome.skipped.values())
    return len(outcome.allocations) + len(outcome.unmatched) + counted


REPLICAS = {("nvidia.com/gpu", "gpu-0"): 4, ("nvidia.com/gpu", "mig-1-7-0"): 2}


@pytest.mark.parametrize(
    ("ids", "replicas", "fraction"),
    [
        (["GPU-0"], {}, Fraction(1)),
        (["GPU-0::1"], REPLICAS, Fraction(1, 4)),
        (["GPU-0::1", "GPU-0::3"], REPLICAS, Fraction(1, 2)),
        (["GPU-0::1", "GPU-0::1"], REPLICAS, Fraction(1, 4)),
        (["MIG-1-7-0::1"], REPLICAS, Fraction(1, 2)),
        (["GPU-0::1"], {}, None),
        (["GPU-0::1"], {("other", "gpu-0"): 4}, None),
    ],
)
def test_the_fraction_of_an_allocation_is_that_of_its_replicas(
    ids: list[str], replicas: dict[tuple[str, str], int], fraction: Fraction | None
) -> None:
    listed = PodResources(tuple(allocation(one) for one in ids), replicas=replicas)
    assert [one.fraction for one in match_allocations(listed).allocations] == [fraction]


def test_all_containers_of_a_pod_have_the_fraction_of_the_pod() -> None:
    """An id that an init container had before is not a second one."""
    items = [
        replace(allocation(one), container=container)
        for container, one in (("init", "GPU-0::0"), ("main", "GPU-0::0"), ("side", "GPU-0::2"))
    ]
    found = match_allocations(PodResources(tuple(items), replicas=REPLICAS)).allocations
    assert [(one.workload.container, one.fraction) for one in found] == [
        (container, Fraction(1, 2)) for container in ("init", "main", "side")
    ]


@pytest.mark.parametrize(("share", "fraction"), [("", Fraction(1)), ("s1", None)])
def test_a_claim_has_the_whole_device_but_for_a_share_of_its_capacity(
    share: str, fraction: Fraction | None
) -> None:
    claimed = ClaimedDevice("gpu.nvidia.com", "node", "gpu-0", claim="gpus", share=share)
    listed = pod_resources(KubeletAllocation("team", "a", "main", claimed_device=claimed))
    assert [one.fraction for one in match_allocations(listed).allocations] == [fraction]


def in_claim(name: str, device: str, pod: str = "a", share: str = "") -> KubeletAllocation:
    claimed = ClaimedDevice("gpu.nvidia.com", "node", device, name, share)
    return KubeletAllocation("team", pod, "main", claimed_device=claimed)


def parts(*admin: str, normal: tuple[str, ...] = ()) -> dict[tuple[str, str, str, str], ClaimedPart]:
    return {
        ("gpu.nvidia.com", "node", device, ""): ClaimedPart(device in admin, {})
        for device in (*admin, *normal)
    }


def test_devices_for_monitoring_are_no_allocations() -> None:
    listed = pod_resources(
        in_claim("all", "gpu-0", "b"), in_claim("all", "gpu-1", "b"), in_claim("one", "gpu-0")
    )
    read = {("team", "all"): parts("gpu-0", "gpu-1"), ("team", "one"): parts(normal=("gpu-0",))}
    outcome = match_allocations(listed, claims=ResourceClaims(read, waits=True))
    assert [one.workload.pod for one in outcome.allocations] == ["a"]
    assert (outcome.monitoring, outcome.is_pending) == ({("team", "all"): 2}, False)
    assert (outcome.unknown_claims, outcome.is_complete) == (frozenset(), True)
    assert outcome.problems == ()


def test_a_mig_instance_for_monitoring_is_no_allocation() -> None:
    listed = pod_resources(in_claim("all", "gpu-1-mig-0"))
    slices = ResourceSlices({("gpu.nvidia.com", "node", "gpu-1-mig-0"): SMALL.uuid})
    claims = ResourceClaims({("team", "all"): parts("gpu-1-mig-0")})
    assert len(match_allocations(listed, slices=slices).allocations) == 1
    assert match_allocations(listed, slices=slices, claims=claims).allocations == ()


def test_a_claim_that_is_not_read_yet_is_pending() -> None:
    outcome = match_allocations(pod_resources(in_claim("one", "gpu-0")), claims=ResourceClaims(waits=True))
    assert (outcome.allocations, outcome.is_pending, outcome.is_complete) == ((), True, False)


@pytest.mark.parametrize(
    ("listed", "devices", "kept"),
    [
        # A pod that has every GPU may be a monitor.
        ([in_claim("all", "gpu-0", "b"), in_claim("all", "gpu-1", "b"), in_claim("one", "gpu-0")], 2, ["a"]),
        ([in_claim("all", "gpu-0"), in_claim("all", "gpu-1")], 2, []),
        ([in_claim("one", "gpu-0"), in_claim("two", "gpu-1", "b")], 2, ["a", "b"]),
        # With one GPU, every claim has every GPU. Two of them show that one is a monitor, but not which.
        ([in_claim("one", "gpu-0")], 1, ["a"]),
        ([in_claim("one", "gpu-0"), in_claim("two", "gpu-0", "b")], 1, []),
        # Shares of the capacity are for several claims.
        ([in_claim("one", "gpu-0", share="s1"), in_claim("two", "gpu-0", "b", share="s2")], 1, ["a", "b"]),
    ],
)
def test_claims_that_cannot_be_read(listed: list[KubeletAllocation], devices: int, kept: list[str]) -> None:
    unread = ResourceClaims({item.claim_name: None for item in listed})
    outcome = match_allocations(pod_resources(*listed), devices=DEVICES[:devices], claims=unread)
    assert [one.workload.pod for one in outcome.allocations] == kept
    assert len(outcome.allocations) + outcome.monitoring.total() == len(listed)
    assert len(outcome.problems) == len(outcome.monitoring) == len(outcome.unknown_claims)
    assert outcome.is_complete is (len(kept) == len(listed))
    assert all("cannot be read" in problem for problem in outcome.problems)


def test_a_claim_of_a_new_pod_with_the_same_name_is_another_use() -> None:
    listed = pod_resources(in_claim("one", "gpu-0"))
    uses = [claim_uses(listed, SETTINGS, Pods(known)) for known in ([], [a_pod()], [a_pod("u2")])]
    assert [[use.pod for use in one] for one in uses] == [["a"], ["u1"], ["u2"]]


def test_the_matcher_says_whether_the_last_match_is_complete() -> None:
    matcher = AllocationMatcher(SETTINGS)
    listed = pod_resources(in_claim("one", "gpu-0"))
    for claims, complete in (
        (ResourceClaims(waits=True), False),
        (ResourceClaims({("team", "one"): parts(normal=("gpu-0",))}, waits=True), True),
    ):
        for _ in range(2):
            matcher.match(listed, DEVICES, claims=claims)
            assert matcher.is_complete is complete


def test_pods_that_come_and_go_on_an_unknown_device_log_one_line(caplog: pytest.LogCaptureFixture) -> None:
    matcher = AllocationMatcher(SETTINGS)
    for number in range(1000):
        listed = [allocation(f"GPU-9::{at}", f"pod-{at}") for at in range(number, number + 3)]
        matcher.match(pod_resources(*listed, allocation(pod="b")), DEVICES)
    assert caplog.messages == [
        "pod team/pod-0: its device GPU-9::0 is not known here: no device here has the UUID gpu-9 "
        "(and 2 more allocations)"
    ]


def test_each_problem_is_logged_once_with_its_pod(caplog: pytest.LogCaptureFixture) -> None:
    matcher, pods = (
        AllocationMatcher(SETTINGS),
        Pods([a_pod(shares=PodShares(problem="annotation x is ignored"))]),
    )
    for _ in range(2):
        matcher.match(pod_resources(allocation(), allocation("GPU-9", "b")), DEVICES, pods)
    assert caplog.messages == [
        "pod team/a: annotation x is ignored",
        "pod team/b: its device GPU-9 is not known here: no device here has the UUID gpu-9",
    ]
    matcher.match(pod_resources(), DEVICES, pods)
    matcher.match(pod_resources(allocation("GPU-9", "b")), DEVICES, pods)
    assert len(caplog.messages) == 3
