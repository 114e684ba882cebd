"""From what the kubelet says to Allocations: every grant ends as one, or says why not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import gpu, instance
from gpuledger.model.text import is_wanted
from gpuledger.workloads.pod_resources.allocations import Allocated, Allocations, allocate
from gpuledger.workloads.pod_resources.devices import CHECKPOINT, Claimed, Grant, PodResources
from gpuledger.workloads.pods.pod import Pod, Pods

FIRST, SECOND = gpu(0, minor=0), gpu(1, minor=1)
SMALL = instance(SECOND, 7)
DEVICES = (FIRST, SECOND, SMALL)


def grant(device_id: str = "GPU-0", pod: str = "a", resource: str = "nvidia.com/gpu") -> Grant:
    return Grant("team", pod, "main", resource, device_id)


def claim(device: str = "gpu-0", driver: str = "gpu.nvidia.com") -> Grant:
    return Grant("team", "a", "main", claimed=Claimed(driver, "node", device, claim="gpus"))


def told(*grants: Grant) -> PodResources:
    return PodResources(grants)


def a_pod(uid: str = "u1", name: str = "a", **more: object) -> Pod:
    return Pod(uid, "team", name, **{"phase": "Running", **more})  # type: ignore[arg-type]  # free-form


def test_a_grant_is_an_allocation_to_the_container() -> None:
    one = allocate(told(grant()), DEVICES).allocations[0]
    owner = one.workload
    assert (one.device, one.resource, one.found_by) == (FIRST, "nvidia.com/gpu", "pod_resources")
    assert (owner.kind, owner.namespace, owner.pod, owner.container) == ("pod", "team", "a", "main")
    assert (owner.pod_uid, owner.missing) == ("", "")


def test_what_is_known_of_the_pod_is_told_with_it() -> None:
    pod = a_pod(
        containers={"c1": "main", "c2": "side"},
        labels=(("app", "x"),),
        controller_kind="Job",
        controller="train",
    )
    owner = allocate(told(grant()), DEVICES, Pods([pod])).allocations[0].workload
    assert (owner.pod_uid, owner.container_id, owner.labels) == ("u1", "c1", (("app", "x"),))
    assert (owner.controller_kind, owner.controller) == ("Job", "train")


def test_of_a_restarted_container_no_id_is_guessed() -> None:
    pod = a_pod(containers={"old": "main", "new": "main"})
    assert allocate(told(grant()), DEVICES, Pods([pod])).allocations[0].workload.container_id == ""


def test_a_checkpoint_is_named_by_the_uid_of_its_pod() -> None:
    written = PodResources(
        (Grant(container="main", resource="nvidia.com/gpu", device_id="GPU-0", pod_uid="u1"),),
        found_by=CHECKPOINT,
    )
    named = allocate(written, DEVICES, Pods([a_pod()])).allocations[0]
    assert (named.workload.pod, named.found_by, named.workload.missing) == ("a", "checkpoint", "")
    nameless = allocate(written, DEVICES).allocations[0].workload
    assert (nameless.pod, nameless.pod_uid, nameless.missing) == ("", "u1", "pod_name")


def test_a_finished_pod_holds_nothing() -> None:
    outcome = allocate(told(grant()), DEVICES, Pods([a_pod(phase="Succeeded", finished=True)]))
    assert (outcome.allocations, outcome.unmatched, outcome.ended) == ((), (), 1)


@pytest.mark.parametrize(("cgroup", "kept"), [(True, 1), (False, 0), (None, 1)])
def test_without_a_phase_a_missing_cgroup_says_that_a_pod_is_gone(cgroup: bool | None, kept: int) -> None:
    pods = Pods([a_pod(phase="")])
    assert len(allocate(told(grant()), DEVICES, pods, has_cgroup=lambda _: cgroup).allocations) == kept


def test_the_cgroup_of_a_static_pod_bears_its_hash() -> None:
    pods = Pods([a_pod("mirror", phase="", hash="hash")])
    assert allocate(told(grant()), DEVICES, pods, has_cgroup=lambda uid: uid == "hash").ended == 0


def test_the_next_answer_of_the_kubelet_asks_for_the_cgroup_again() -> None:
    alive = {"u1"}
    keeper, pods = Allocations(has_cgroup=alive.__contains__), Pods([a_pod(phase="")])
    assert len(keeper.of(told(grant()), DEVICES, pods)) == 1
    alive.clear()
    assert keeper.of(told(grant()), DEVICES, pods) == ()


def test_a_pod_that_runs_is_not_asked_for_its_cgroup() -> None:
    assert len(allocate(told(grant()), DEVICES, Pods([a_pod()]), has_cgroup=lambda _: False).allocations) == 1


def test_a_finished_pod_that_the_api_forgets_before_the_kubelet_does_not_hold_again() -> None:
    allocations = Allocations()
    first = told(grant())
    assert len(allocations.of(first, DEVICES, Pods([a_pod()]))) == 1
    assert allocations.of(first, DEVICES, Pods([a_pod(phase="Succeeded", finished=True)])) == ()
    assert allocations.of(first, DEVICES, Pods()) == ()
    assert allocations.of(told(grant()), DEVICES, Pods()) == (), "the kubelet's next answer has it still"
    again = Pods([a_pod("u2")])
    assert len(allocations.of(told(grant()), DEVICES, again)) == 1, (
        "a pod of the same name, on the same device"
    )


def test_a_grant_that_the_kubelet_took_back_may_come_again() -> None:
    allocations = Allocations()
    allocations.of(told(grant()), DEVICES, Pods([a_pod(phase="Failed", finished=True)]))
    allocations.of(told(), DEVICES, Pods())
    assert len(allocations.of(told(grant()), DEVICES, Pods())) == 1


def test_of_two_pods_of_one_name_the_newest_holds() -> None:
    pods = Pods([a_pod("old", created=1.0), a_pod("new", created=2.0)])
    grants = [
        Grant(container="main", resource="nvidia.com/gpu", device_id=device, pod_uid=uid)
        for uid, device in (("old", "GPU-0"), ("new", "GPU-1"))
    ]
    outcome = allocate(PodResources(tuple(grants), found_by=CHECKPOINT), DEVICES, pods)
    assert [(one.workload.pod_uid, one.device) for one in outcome.allocations] == [("new", SECOND)]
    assert outcome.ended == 1


def test_replicas_of_one_device_are_one_allocation_to_a_container() -> None:
    outcome = allocate(told(grant("GPU-0::0"), grant("GPU-0::1"), grant("GPU-0::2", "b")), DEVICES)
    assert [one.workload.pod for one in outcome.allocations] == ["a", "b"]
    assert outcome.repeated == 1


def test_a_device_of_a_claim_is_found_by_its_uuid_or_says_that_it_was_its_name() -> None:
    uuids = {("gpu.nvidia.com", "node", "gpu-0"): "GPU-1"}
    by_uuid = allocate(told(claim()), DEVICES, uuids=uuids).allocations[0]
    assert (by_uuid.device, by_uuid.found_by, by_uuid.resource) == (SECOND, "dra", "gpus")
    by_name = allocate(told(claim()), DEVICES).allocations[0]
    assert (by_name.device, by_name.found_by) == (FIRST, "dra_name")


def test_other_resources_and_drivers_are_no_gpus_and_no_failures() -> None:
    outcome = allocate(
        told(grant("x", resource="vendor.com/nic"), claim("channel-0", "compute-domain.nvidia.com")), DEVICES
    )
    assert (outcome.allocations, outcome.unmatched) == ((), ())
    assert outcome.others == {"vendor.com/nic": 1, "compute-domain.nvidia.com": 1}


def test_a_grant_without_a_device_is_counted_by_the_form_of_its_name() -> None:
    outcome = allocate(told(grant("GPU-9"), grant("GPU-8"), grant("nvidia9"), grant()), DEVICES)
    assert outcome.forms == {"uuid": 2, "nvidiaN": 1}
    assert len(outcome.allocations) == 1


def test_allocations_come_in_order_of_devices_and_names() -> None:
    grants = [grant("MIG-1-7-0", "b"), grant("GPU-0", "z"), grant("GPU-0", "a"), grant("GPU-1", "c")]
    one = allocate(told(*grants), DEVICES)
    assert [item.workload.pod for item in one.allocations] == ["a", "z", "c", "b"]
    assert allocate(told(*reversed(grants)), DEVICES).allocations == one.allocations


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("nvidia.com/gpux", False),
        ("nvidia.com/mig", False),
    ],
)
def test_a_trailing_star_stands_for_any_ending(name: str, wanted: bool) -> None:
    assert is_wanted(name, ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")) is wanted


def test_the_same_inputs_give_the_same_object_without_looking() -> None:
    asked: list[str] = []
    keeper = Allocations(has_cgroup=lambda uid: not asked.append(uid))
    inputs = (told(grant()), DEVICES, Pods([a_pod(phase="")]))
    first = keeper.of(*inputs)
    assert keeper.of(*inputs) is first
    assert (len(first), asked) == (1, ["u1"])


def test_a_new_answer_that_says_the_same_keeps_the_object() -> None:
    keeper = Allocations()
    first = keeper.of(told(grant()), DEVICES)
    assert keeper.of(told(grant()), DEVICES) is first
    assert keeper.of(told(grant("GPU-1")), DEVICES) is not first


def test_a_device_that_changed_its_index_is_told_anew() -> None:
    keeper = Allocations()
    keeper.of(told(grant()), (gpu(0),))
    moved = type(FIRST)("GPU-0", 3)
    assert keeper.of(told(grant()), (moved,))[0].device.index == 3


GRANTS = st.lists(
    st.one_of(
        st.builds(
            grant,
            st.sampled_from(
                ["GPU-0", "GPU-0::1", "GPU-1", "MIG-1-7-0", "nvidia1/gi7", "0", "GPU-9", "junk", ""]
            ),
            st.sampled_from(["a", "b", "done"]),
            st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "vendor.com/nic"]),
        ),
        st.builds(
            claim, st.sampled_from(["gpu-0", "gpu-7", "?"]), st.sampled_from(["gpu.nvidia.com", "other"])
        ),
        st.builds(grant, st.text(max_size=12)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=80)
@given(GRANTS)
def test_every_grant_ends_somewhere(grants: list[Grant]) -> None:
    pods = Pods([a_pod(), a_pod("u2", "done", phase="Failed", finished=True)])
    outcome = allocate(told(*grants), DEVICES, pods)
    assert _ends(outcome) == len(grants)
    assert len(set(outcome.allocations)) == len(outcome.allocations)


def _ends(outcome: Allocated) -> int:
    counted = outcome.ended + outcome.repeated + sum(outcome.others.values())
    return len(outcome.allocations) + len(outcome.unmatched) + counted
