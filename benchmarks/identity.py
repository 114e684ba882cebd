"""Measures the owner lookup: 8 GPUs, 64 processes, 110 pods, all owner indexes enabled.

    python benchmarks/identity.py [--write docs/performance.md]

CPU of assigning owners to one Snapshot, as the median over the ticks: without changes, and after a change of
a pod with or without a GPU. Then the memory that remains after 10,000 pods have come and gone, each with one
process.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from uuid import UUID

from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation
from gpuledger.workloads.owner_indexes import OwnerFacts, OwnerIndexes
from gpuledger.workloads.owner_lookup import OwnerLookup
from gpuledger.workloads.pod_resources.allocation_matching import AllocationMatcher
from gpuledger.workloads.pod_resources.device_names import KubeletAllocation, PodResources
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.pods.pod import Pod, Pods
from tables import create_parser, describe_machine, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from builders import gpu, process, reading, snapshot  # noqa: E402  (after the path is set)

GPUS, EACH, PODS, TICKS, CHURN = 8, 8, 110, 500, 10_000
MARKS = ("<!-- identity: begin -->", "<!-- identity: end -->")
CARDS = [gpu(index) for index in range(GPUS)]


def uid(number: int) -> str:
    """Return a pod's UID."""
    return str(UUID(int=number))


def pod(number: int) -> Pod:
    """Return a pod with one container."""
    return Pod(uid(number), "ml", f"pod-{number}", "Running", {f"{number:064x}": "main"}, (("team", "a"),))


def resident(card: Device, number: int) -> GpuProcess:
    """Return the process of that pod's container as a source reports it, without an owner."""
    cgroup = f"0::/kubepods/burstable/pod{uid(number)}/{number:064x}\n"
    return replace(
        process(card, 1000 + number), host=HostFacts(ProcessStart("boot", number, 0.0), cgroup=cgroup)
    )


class Cluster:
    """An owner lookup with a pod index that can be replaced."""

    def __init__(self) -> None:
        self.pods = Pods(pod(number) for number in range(PODS))
        pod_resources = PodResources(
            tuple(
                KubeletAllocation(
                    "ml", f"pod-{number}", "main", "nvidia.com/gpu", f"{CARDS[number % GPUS].uuid}::{number}"
                )
                for number in range(GPUS * EACH)
            )
        )
        matcher = AllocationMatcher(PodResourcesSettings(resources=("nvidia.com/gpu",), drivers=()))

        def allocations(devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
            return matcher.match(pod_resources, devices, self.pods)

        self.lookup = OwnerLookup(directory=OwnerIndexes((), lambda: OwnerFacts(self.pods), [allocations]))


def node() -> Snapshot:
    """Return the snapshot of one tick: new GpuProcess objects each time, with the same HostFacts."""
    readings = []
    for card in CARDS:
        mine = [PROCESSES[card.index * EACH + number] for number in range(EACH)]
        readings.append(reading(card, *(replace(one) for one in mine)))
    return snapshot(*readings)


PROCESSES = [resident(CARDS[number // EACH], number) for number in range(GPUS * EACH)]


def timed(cluster: Cluster, between: Callable[[], None]) -> float:
    """Return the median CPU time of assigning owners, in ms."""
    times = []
    for _ in range(TICKS):
        seen = node()
        between()
        began = time.thread_time()
        named = cluster.lookup.assign_owners(seen)
        times.append((time.thread_time() - began) * 1000)
        assert all(one.workload.pod for one in named.processes)
    return median(times[TICKS // 5 :])


def churn(cluster: Cluster) -> tuple[int, int]:
    """Return the KiB that remain after pods came and went, and the number of cached processes."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(CHURN):
        cluster.pods = Pods([pod(number)])
        busy = reading(CARDS[0], resident(CARDS[0], number))
        cluster.lookup.assign_owners(snapshot(busy, *map(reading, CARDS[1:])))
    gc.collect()
    left = (tracemalloc.get_traced_memory()[0] - before) // 1024
    tracemalloc.stop()
    return left, cluster.lookup.cached_processes


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    given = flags.parse_args()
    cluster = Cluster()
    calm = timed(cluster, lambda: None)

    numbers = itertools.count()

    def change_other() -> None:
        cluster.pods = Pods(cluster.pods)

    def change_own() -> None:
        pods, number = list(cluster.pods), next(numbers) % (GPUS * EACH)
        pods[number] = replace(pods[number])
        cluster.pods = Pods(pods)

    other, own = timed(cluster, change_other), timed(cluster, change_own)
    left, cached = churn(cluster)
    lines = [
        f"Measured on {describe_machine()}; {GPUS} GPUs, "
        f"{GPUS * EACH} processes, {PODS} pods; every process belongs to a pod with a share of a GPU.",
        "",
        "| owner lookup of a tick | CPU ms |",
        "|---|---|",
        f"| nothing changed | {calm:.2f} |",
        f"| a pod without a GPU changed | {other:.2f} |",
        f"| a pod with a GPU changed | {own:.2f} |",
        "",
        f"After {CHURN:,} pods came and went, {cached} process is cached, "
        f"and {left} KiB more are in use than before.",
    ]
    print_table(lines, given.write, MARKS)


if __name__ == "__main__":
    main()
