"""Pods, containers and lists of runtimes, and the owner that is resolved from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from builders import gpu, process
from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.containers.container import RuntimeList
from gpuledger.workloads.owner_resolution import (
    DeviceEvidence,
    OwnerFacts,
    PodAtWork,
    pod_at_work,
    resolve_owner,
)
from gpuledger.workloads.pods.pod import NO_PODS, Pod, Pods

GPU = gpu(0)
UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
FOUND = Workload(kind="pod", pod_uid=UID, container_id=ID, user="root", found_by="cgroup", missing="pod_name")
TRAINER = Pod(
    UID,
    "ml",
    "train-0",
    containers={ID: "main"},
    labels=(("team", "nlp"),),
    controller_kind="Job",
    controller="train",
)
KNOWN, NONE = Pods([TRAINER]), Pods()
# UIDs and container ids of other pods.
STRANGER = ("a8f5f167-f44f-4964-b6c9-98f2a5d3e901", "b" * 64)
OUTER = ("0f0f0f0f-0001-4001-8001-00000000000a", "a" * 64)
MINE = (UID, ID)


def owner(
    found: Workload | tuple[Workload, ...],
    pods: Pods = NO_PODS,
    allocations: Sequence[Allocation] = (),
    *,
    beside: Sequence[PodAtWork] = (),
    runtimes: Sequence[RuntimeList] = (),
    computes: bool = True,
    names_pods: bool = True,
    started: float = 0.0,
) -> Workload:
    """The owner of a process; `beside` are the pods of other processes on its Device."""
    owners = found if isinstance(found, tuple) else (found,)
    own = pod_at_work(owners)
    working = frozenset([*beside, *([] if own is None else [own])])
    facts = OwnerFacts(pods, runtimes=tuple(runtimes), names_pods=names_pods)
    one = replace(process(GPU, types="C" if computes else "G"), host=HostFacts(ProcessStart("b", 1, started)))
    return resolve_owner(owners, facts, DeviceEvidence(allocations, working), one)


def unnamed(ids: PodAtWork) -> Workload:
    return replace(FOUND, pod_uid=ids[0], container_id=ids[1])


def allocated(pod: str = "train-0", container: str = "main", uid: str = "") -> Allocation:
    holder = Workload(kind="pod", namespace="ml", pod=pod, container=container, pod_uid=uid)
    return Allocation(GPU, holder, "pod_resources", "nvidia.com/gpu")


def names(one: Workload) -> tuple[str, str, str, str, str]:
    return (one.namespace, one.pod, one.container, one.found_by, one.missing)


TWO_PODS = (allocated(), allocated("train-1"))
ONLY = (allocated(),)
RESERVED = replace(
    allocated(),
    workload=Workload("pod", "kai-resource-reservation", "gpu-reservation-n1-zz9", "resource-reservation"),
)
CLUSTER = Pod(OUTER[0], "tenants", "vc-server-0", containers={OUTER[1]: "k3s"})


def inner(one: Workload) -> tuple[str, str, str, str]:
    return (one.pod_uid, one.container_id, one.inner_pod_uid, one.inner_container_id)


def container(container_id: str, **more: str) -> Workload:
    return Workload(
        kind="container",
        container_id=container_id,
        runtime="docker",
        user="root",
        found_by="cgroup",
        missing="container_name",
        **more,
    )


BOX, SHORT = container("c" * 64), "c" * 12
STARTED = 1000.0
DOCKER = RuntimeList({"c" * 64: "web"}, read_at=STARTED + 10)
EMPTY = RuntimeList({}, read_at=STARTED + 10)
UNREAD = RuntimeList({}, tried=False, success=False)
REFUSED = RuntimeList({}, success=False)
OTHERS = Pods([CLUSTER])
