"""Which pod has which device, and how much of it: the kubelet's list, completed by what pods state. Pure.

The kubelet's list alone is wrong for schedulers of fractions. HAMi and Volcano allocate the device that the
pod's annotation names, and any id to the kubelet; KAI and Run:ai let a reservation pod have the whole GPU.
Each user can write annotations and labels: those of a pod that has a whole device neither give it to other
pods nor make it smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from gpuledger.workloads.pod_resources.device_names import (
    KubeletAllocation,
    is_equal_replica,
    is_numbered_share,
    without_replica,
)
from gpuledger.workloads.pod_resources.replicas import ReplicaCounts
from gpuledger.workloads.pods.capacities import consumed_fraction
from gpuledger.workloads.pods.claims import ResourceClaims
from gpuledger.workloads.pods.gpu_shares import DeviceShare
from gpuledger.workloads.pods.placeholder import is_reserved_namespace
from gpuledger.workloads.pods.pod import Pod, Pods, ResourceSlices

FOUND_BY_ANNOTATION = "annotation"


class Holding(NamedTuple):
    """One device, or a part of it, that a pod has. `share` is the part that an annotation states."""

    item: KubeletAllocation
    pod: Pod | None
    share: DeviceShare | None = None


def find_holdings(
    live: Iterable[tuple[KubeletAllocation, Pod | None]], workers: Mapping[str, Sequence[Pod]]
) -> Iterator[Holding]:
    """What the pods have, from the kubelet's allocations, the pods that have them, and `find_workers`."""
    # By pod and resource: a container's ids and the annotation have the same order of containers.
    stated: dict[tuple[str, str], tuple[Pod, list[KubeletAllocation]]] = {}
    for item, pod in live:
        if pod is None or item.claimed_device is not None:
            yield Holding(item, pod)
        elif pod.shares.containers and is_numbered_share(item.device_id):
            stated.setdefault((pod.uid, item.resource), (pod, []))[1].append(item)
        else:
            groups = pod.shares.groups if is_reserved_namespace(pod.namespace) else ()
            served = [worker for group in groups for worker in workers.get(group, ())]
            yield from (_worker_holding(item, worker) for worker in served)
            if not served:
                yield Holding(item, pod)
    for pod, items in stated.values():
        yield from _stated_holdings(pod, items)


def find_workers(pods: Pods) -> dict[str, list[Pod]]:
    """The pods that have a part of the GPU of a group, by group."""
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.shares.part is not None and not pod.finished:
            for group in pod.shares.groups:
                found.setdefault(group, []).append(pod)
    return found


def _worker_holding(item: KubeletAllocation, worker: Pod) -> Holding:
    shares = worker.shares
    resource = shares.annotation or item.resource
    used = replace(
        item,
        namespace=worker.namespace,
        pod=worker.name,
        container=shares.container,
        resource=resource,
        pod_uid=worker.uid,
    )
    return Holding(used, worker, shares.part)


def _stated_holdings(pod: Pod, items: Sequence[KubeletAllocation]) -> Iterator[Holding]:
    ids: dict[str, set[str]] = {}
    for item in items:
        ids.setdefault(item.container, set()).add(item.device_id)
    stated = pod.shares.containers
    # Unless both agree, it is not known which container has which device; the pod is.
    agree = [len(one) for one in ids.values()] == [len(one) for one in stated]
    for container, shares in zip(ids if agree else [""] * len(stated), stated, strict=True):
        for share in shares:
            yield Holding(replace(items[0], container=container, device_id=share.uuid), pod, share)


class PartOfDevice(NamedTuple):
    """`fraction` of a Device, or `memory` (bytes) of it if no fraction is stated; None if not known."""

    fraction: Fraction | None = None
    memory: int | None = None


def held_part(
    holdings: Sequence[Holding], replicas: ReplicaCounts, claims: ResourceClaims, slices: ResourceSlices
) -> PartOfDevice:
    """The part of one device that these holdings of one resource by one pod are together, at most 1.

    What several containers share counts once: an id of the device plugin, a device of a claim.
    """
    if len(holdings) == 1 and holdings[0].share is None:
        # Nearly all are so, and the sum of fractions is slow.
        return PartOfDevice(_fraction(holdings[0].item, replicas, claims, slices))
    shared = {(one.item.device_id, one.item.claimed_device): one for one in holdings if one.share is None}
    parts = [PartOfDevice(_fraction(one.item, replicas, claims, slices)) for one in shared.values()]
    parts += [PartOfDevice(one.share.fraction, one.share.memory) for one in holdings if one.share is not None]
    fractions = [one.fraction for one in parts if one.fraction is not None]
    if len(fractions) == len(parts):
        return PartOfDevice(min(sum(fractions, Fraction(0)), Fraction(1)))
    memory = [one.memory for one in parts if one.memory is not None and one.fraction is None]
    return PartOfDevice(memory=sum(memory) if len(memory) == len(parts) else None)


def _fraction(
    item: KubeletAllocation, replicas: ReplicaCounts, claims: ResourceClaims, slices: ResourceSlices
) -> Fraction | None:
    """The part that one id of a device plugin, or one device of a claim, is of its Device."""
    if (claimed := item.claimed_device) is not None:
        device = (claimed.driver, claimed.pool, claimed.device)
        part = claims.find(item.claim_name, device, claimed.share)
        if part is not None and part.consumed:
            return consumed_fraction(part.consumed, slices.capacities.get(device, {}))
        return None if claimed.share else Fraction(1)
    name = without_replica(item.device_id)
    if name == item.device_id.strip().lower():
        return Fraction(1)
    count = replicas.get((item.resource, name))
    return Fraction(1, count) if count and is_equal_replica(item.device_id) else None
