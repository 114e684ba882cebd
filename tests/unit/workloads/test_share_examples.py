"""From what schedulers write to GPU time: the worked examples of shared devices.

Each example is a price of 1 per second and 60 seconds: the accounts by allocation, then those by residence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest

from gpuledger.model import quantities as q
from gpuledger.model.devices import Gpu
from gpuledger.model.session import ALLOCATION, RESIDENCE
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation, Workload
from gpuledger.workloads.device_index import DeviceRef
from gpuledger.workloads.memory_fractions import MemoryFractions
from gpuledger.workloads.pod_resources.allocation_matching import AllocationMatcher
from gpuledger.workloads.pod_resources.device_names import ClaimedDevice, KubeletAllocation, PodResources
from gpuledger.workloads.pod_resources.replicas import count_replicas
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.capacities import parse_capacities
from gpuledger.workloads.pods.claims import NO_CLAIMS, ResourceClaims, parse_claim
from gpuledger.workloads.pods.pod import NO_SLICES, Pods, ResourceSlices, parse_pod
from gpuledger.workloads.slurm.gres_conf import gpu_numbering, parse_gres_conf
from gpuledger.workloads.slurm.gres_shares import GresFiles, job_fraction
from gpuledger.workloads.slurm.job_identity import ProcessIdentity
from gpuledger.workloads.slurm.jobs import SlurmJob, SlurmJobs, slurm_allocations
from pods_server import a_pod
from time_helpers import Books, Runs, Truth, assert_time_balances, in_seconds, job, pod

CARD = Gpu("GPU-31b00003-0000-4000-8000-000000000001", 0, minor=0)
GIB = 1 << 30
NVIDIA, HAMI = "gpu.nvidia.com", "hami-core-gpu.project-hami.io"
SETTINGS = PodResourcesSettings()


@dataclass
class Cluster:
    """What the kubelet, the API server and slurmd say. Pods are in the namespace ml, unless they reserve."""

    listed: Sequence[KubeletAllocation] = ()
    pods: Sequence[Any] = ()
    replicas: int = 0
    claims: dict[str, list[dict[str, Any]]] | None = None
    slices: ResourceSlices = NO_SLICES
    jobs: Sequence[SlurmJob] = ()
    memory: float | None = None
    matcher: AllocationMatcher = field(default_factory=lambda: AllocationMatcher(SETTINGS))

    def allocations(self, snapshot: Snapshot) -> tuple[Allocation, ...]:
        ids = [("nvidia.com/gpu", f"{CARD.uuid}::{number}") for number in range(self.replicas)]
        resources = PodResources(tuple(self.listed), replicas=count_replicas(ids))
        pods = Pods(found for one in self.pods if (found := parse_pod(one)))
        claims = NO_CLAIMS
        if self.claims is not None:
            claims = ResourceClaims(
                {
                    ("ml", name): parse_claim({"status": {"allocation": {"devices": {"results": results}}}})
                    for name, results in self.claims.items()
                },
                waits=True,
            )
        found = self.matcher.match(resources, (CARD,), pods, self.slices, claims)
        readings = [replace(one, values={q.MEMORY_TOTAL: self.memory or 0.0}) for one in snapshot.readings]
        return (
            *MemoryFractions().complete(found, readings),
            *slurm_allocations(SlurmJobs(self.jobs), [CARD]),
        )


def has(name: str, tail: str = "", container: str = "main", namespace: str = "ml") -> KubeletAllocation:
    return KubeletAllocation(namespace, name, container, "nvidia.com/gpu", CARD.uuid + tail)


def by_claim(name: str, claim: str, container: str = "main", share: str = "") -> KubeletAllocation:
    return KubeletAllocation(
        "ml", name, container, claimed_device=ClaimedDevice(NVIDIA, "n1", "gpu-0", claim, share)
    )


def result(**more: Any) -> dict[str, Any]:
    return {"driver": NVIDIA, "pool": "n1", "device": "gpu-0", **more}


def known(name: str, annotations: dict[str, str] | None = None, namespace: str = "ml", **labels: str) -> Any:
    meta = {
        "annotations": annotations or {},
        "labels": {key.replace("_", "-"): one for key, one in labels.items()},
    }
    return {
        **a_pod(f"uid-{name}", name, namespace, containers={"main": f"containerd://{name}"}, **meta),
        "spec": {"containers": [{"name": "main"}]},
    }


def hami(name: str, memory: int, cores: int, uuid: str = CARD.uuid) -> Any:
    return known(name, {"hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,{memory},{cores}:;"})


def volcano(name: str, memory: int, cores: int) -> Any:
    return known(name, {"volcano.sh/vgpu-ids-new": f"{CARD.uuid},NVIDIA,{memory},{cores}:"})


def kai(name: str, annotation: str, value: str) -> Any:
    return known(name, {annotation: value}, runai_gpu_group="g1")


KAI = "kai-resource-reservation"
RESERVES = has("gpu-reservation-n1-zz9", container="resource-reservation", namespace=KAI)
RESERVATION = known("gpu-reservation-n1-zz9", namespace=KAI, runai_gpu_group="g1")
SHARED = {("gpu.nvidia.com", "n1", "gpu-0"): {"memory": Fraction(80 * GIB)}}


def share(name: str, size: str) -> dict[str, Any]:
    return result(shareID=name, consumedCapacity={"memory": size})


def slurm_job(
    number: str, shards: int | None, gres: str = "Name=gpu File=/dev/nvidia0\nName=shard Count=4"
) -> SlurmJob:
    environment = {"SLURM_JOB_GPUS": "0"} | ({"SLURM_SHARDS_ON_NODE": str(shards)} if shards else {})
    files = GresFiles(parse_gres_conf(gres))
    process = ProcessIdentity(1, environment, first=True)
    numbers = [DeviceRef("number", "0")]
    part = job_fraction([process], files, "n1", gpu_numbering(files.gres, "n1"), numbers)
    return SlurmJob(number, user="mira", devices=(DeviceRef("minor", "0"),), fraction=part)


A, B, C, D, P, Q = map(pod, "ABCDPQ")


def case(name: str, cluster: Cluster, runs: Sequence[Workload], allocation: str, residence: str) -> Any:
    return pytest.param(cluster, runs, allocation, residence, id=name)


CASES = [
    case(
        "T2 four replicas",
        Cluster([has(name, f"::{at}") for at, name in enumerate("ABCD")], replicas=4),
        [A, B, C, D],
        "A 15, B 15, C 15, D 15",
        "A 15, B 15, C 15, D 15",
    ),
    case("T3 one of four replicas", Cluster([has("A", "::0")], replicas=4), [A], "A 15, idle 45", "A 60"),
    case("T4 replicas never known", Cluster([has("A", "::0")]), [A], "A 60", "A 60"),
    case(
        "T9 HAMi by cores",
        Cluster([has("A", "-3"), has("B", "-17")], [hami("A", 1, 25), hami("B", 1, 50)]),
        [A, B],
        "A 15, B 30, idle 15",
        "A 30, B 30",
    ),
    case(
        "HAMi by memory",
        Cluster(
            [has("A", "-3"), has("B", "-17")], [hami("A", 20480, 0), hami("B", 40960, 0)], memory=80 * GIB
        ),
        [A, B],
        "A 15, B 30, idle 15",
        "A 30, B 30",
    ),
    case(
        "HAMi by memory, the size of the GPU is not known",
        Cluster([has("A", "-3"), has("B", "-17")], [hami("A", 20480, 0), hami("B", 40960, 0)]),
        [A, B],
        "A 30, B 30",
        "A 30, B 30",
    ),
    case(
        "HAMi, one pod in two containers",
        Cluster(
            [has("A", "-3"), has("A", "-4", "side")],
            [
                known(
                    "A",
                    {"hami.io/vgpu-devices-allocated": f"{CARD.uuid},NVIDIA,1,25:;{CARD.uuid},NVIDIA,1,15:;"},
                )
            ],
        ),
        [A],
        "A 24, idle 36",
        "A 60",
    ),
    case(
        "HAMi without the API server",
        Cluster([has("A", "-3"), has("B", "-17")], replicas=10),
        [A, B],
        "A 30, B 30",
        "A 30, B 30",
    ),
    case(
        "HAMi, another GPU than the kubelet's",
        Cluster([has("A", "-3")], [hami("A", 1, 25, "GPU-31b00003-0000-4000-8000-000000000009")]),
        [],
        "idle 60",
        "idle 60",
    ),
    case(
        "HAMi, an annotation that makes no sense",
        Cluster([has("A", "-3"), has("B", "-17")], [hami("A", 1, 125), hami("B", 1, 50)]),
        [A, B],
        "A 30, B 30",
        "A 30, B 30",
    ),
    case(
        "T10 fractions of 60 %",
        Cluster([has("A", "-3"), has("B", "-17")], [hami("A", 1, 60), hami("B", 1, 60)]),
        [A, B],
        "A 30, B 30",
        "A 30, B 30",
    ),
    case(
        "Volcano",
        Cluster([replace(has("A", "-0"), resource="volcano.sh/vgpu-number")], [volcano("A", 1, 25)]),
        [A],
        "A 15, idle 45",
        "A 60",
    ),
    case(
        "T11 one Slurm shard of four", Cluster(jobs=[slurm_job("7", 1)]), [job("7")], "7 15, idle 45", "7 60"
    ),
    case("Slurm, a whole GPU", Cluster(jobs=[slurm_job("7", None)]), [job("7")], "7 60", "7 60"),
    case(
        "Slurm, shards of unknown size",
        Cluster(jobs=[slurm_job("7", 1, ""), slurm_job("8", 1, "")]),
        [job("7")],
        "7 30, 8 30",
        "7 60",
    ),
    case(
        "T17 KAI",
        Cluster([RESERVES], [RESERVATION, kai("A", "gpu-fraction", "0.5")]),
        [A],
        "A 30, idle 30",
        "A 60",
    ),
    case(
        "KAI, a fraction that runs nothing",
        Cluster(
            [RESERVES],
            [RESERVATION, kai("A", "gpu-fraction", "0.5"), kai("B", "gpu-memory", "20480")],
            memory=80 * GIB,
        ),
        [A],
        "A 30, B 15, idle 15",
        "A 60",
    ),
    case(
        "KAI, a fraction that makes no sense",
        Cluster(
            [RESERVES],
            [RESERVATION, kai("A", "gpu-fraction", "0.5"), kai("B", "gpu-fraction", "most")],
        ),
        [A, B],
        "A 30, B 30",
        "A 30, B 30",
    ),
    case(
        "a whole GPU with the label of another pod's group",
        Cluster([has("B")], [known("B", runai_gpu_group="g1"), kai("A", "gpu-fraction", "0.5")]),
        [B],
        "B 60",
        "B 60",
    ),
    case(
        "T18 adminAccess",
        Cluster([by_claim("A", "all")], claims={"all": [result(adminAccess=True)]}),
        [],
        "idle 60",
        "idle 60",
    ),
    case(
        "adminAccess beside a working pod",
        Cluster(
            [by_claim("A", "one"), by_claim("B", "all")],
            claims={"one": [result()], "all": [result(adminAccess=True)]},
        ),
        [],
        "A 60",
        "idle 60",
    ),
    case(
        "one claim with a normal request and one for monitoring",
        Cluster([by_claim("A", "both")], claims={"both": [result(adminAccess=True), result()]}),
        [],
        "A 60",
        "idle 60",
    ),
    case("claims cannot be read", Cluster([by_claim("A", "one")]), [], "A 60", "idle 60"),
    case(
        "a claim is not read yet", Cluster([by_claim("A", "one")], claims={}), [], "unobserved 60", "idle 60"
    ),
    case(
        "claims cannot be read, and one of two is for monitoring",
        Cluster([by_claim("A", "one"), by_claim("B", "two")]),
        [A],
        "unobserved 60",
        "A 60",
    ),
    case(
        "a share of the capacity beside a claim that is not read yet",
        Cluster(
            [by_claim("A", "a", share="s1"), by_claim("B", "b", share="s2")],
            claims={"a": [share("s1", "20Gi")]},
            slices=ResourceSlices({}, {}, SHARED),
        ),
        [A],
        "A 15, unobserved 45",
        "A 60",
    ),
    case(
        "consumable capacity",
        Cluster(
            [by_claim("A", "a", share="s1"), by_claim("B", "b", share="s2")],
            claims={"a": [share("s1", "20Gi")], "b": [share("s2", "40Gi")]},
            slices=ResourceSlices({}, {}, SHARED),
        ),
        [A],
        "A 15, B 30, idle 15",
        "A 60",
    ),
    case(
        "HAMi by DRA",
        Cluster(
            [
                KubeletAllocation(
                    "ml", "A", "cuda", claimed_device=ClaimedDevice(HAMI, "n1", "hami-gpu-0", "half", "s1")
                )
            ],
            claims={
                "half": [
                    {
                        "driver": HAMI,
                        "pool": "n1",
                        "device": "hami-gpu-0",
                        "request": "gpu",
                        "shareID": "s1",
                        "consumedCapacity": {"cores": "50", "memory": "10Gi"},
                    }
                ]
            },
            slices=ResourceSlices(
                {(HAMI, "n1", "hami-gpu-0"): CARD.uuid},
                {},
                {
                    (HAMI, "n1", "hami-gpu-0"): parse_capacities(
                        {"cores": {"value": "100"}, "memory": {"value": "23028Mi"}}
                    )
                },
            ),
        ),
        [A],
        "A 30, idle 30",
        "A 60",
    ),
    case(
        "T21 two unknown fractions",
        Cluster(
            [has("A", "-1"), has("B", "-2"), has("C", "-3")],
            [hami("A", 1, 50), hami("B", 0, 0), hami("C", 0, 0)],
        ),
        [A, B, C],
        "A 30, B 15, C 15",
        "A 20, B 20, C 20",
    ),
    case(
        "T29 another container of the pod",
        Cluster([has("P", "::0", "c1")], replicas=4),
        [pod("P", "c2")],
        "P 15, idle 45",
        "P 60",
    ),
    case(
        "T30 a shared claim",
        Cluster(
            [by_claim("P", "one", "c1"), by_claim("P", "one", "c2"), by_claim("Q", "one")],
            claims={"one": [result()]},
        ),
        [pod("P", "c1"), pod("P", "c2"), Q],
        "P 30, Q 30",
        "P 30, Q 30",
    ),
    case(
        "T31a two of four replicas",
        Cluster([has("P", "::0"), has("P", "::2"), has("Q", "::3")], replicas=4),
        [P, Q],
        "P 30, Q 15, idle 15",
        "P 30, Q 30",
    ),
    case(
        "T31b 60 %, 60 % and unknown",
        Cluster(
            [has("A", "-1"), has("B", "-2"), has("C", "-3")],
            [hami("A", 1, 60), hami("B", 1, 60), hami("C", 0, 0)],
        ),
        [A, B, C],
        "A 20, B 20, C 20",
        "A 20, B 20, C 20",
    ),
]


def post(cluster: Cluster, truth: Truth, ticks: Sequence[int]) -> Callable[[str], dict[str, int]]:
    books, since = Books(), -1.0
    for at in ticks:
        snapshot = truth.snapshot(at, since)
        found, complete = cluster.allocations(snapshot), cluster.matcher.is_complete
        books.post(replace(snapshot, allocations=found, allocations_complete=complete))
        since = at
    assert_time_balances(books)
    return books.seconds


@pytest.mark.parametrize(("cluster", "runs", "allocation", "residence"), CASES)
def test_time_of_shared_devices(
    cluster: Cluster, runs: Sequence[Workload], allocation: str, residence: str
) -> None:
    seconds = post(cluster, Truth(CARD, runs=[Runs(owner) for owner in runs]), range(0, 61, 5))
    assert seconds(ALLOCATION) == in_seconds(allocation)
    assert seconds(RESIDENCE) == in_seconds(residence)


def test_t32_what_allocations_leave_of_a_list_that_cannot_be_read_is_unobserved() -> None:
    truth = Truth(CARD, runs=[Runs(A)], unlisted=[(15, 105)])
    seconds = post(Cluster([has("A", "::0")], replicas=4), truth, range(0, 121, 5))
    assert seconds(ALLOCATION) == in_seconds("A 30, idle 22.5, unobserved 67.5")
    assert seconds(RESIDENCE) == in_seconds("A 30, unobserved 90")
