"""What it costs to know whose each process is: 8 GPUs, 64 processes, 110 pods, everything on.

    python benchmarks/identity.py [--write docs/performance.md]

CPU of naming one Snapshot, median over the ticks: while nothing changes, and after the map of pods changed.
Then 10,000 pods come and go, each with one process: what is left in memory.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from uuid import UUID

from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess, HostFacts, Start
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import Allocation
from gpuledger.workloads.naming import Workloads
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.pod_resources.allocations import Allocations
from gpuledger.workloads.pod_resources.devices import Grant, PodResources
from gpuledger.workloads.pods.pod import Pod, Pods
from tables import machine, parser, tell

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from builders import gpu, process, reading, snapshot  # noqa: E402  (after the path is set)

GPUS, EACH, PODS, TICKS, CHURN = 8, 8, 110, 500, 10_000
MARKS = ("<!-- identity: begin -->", "<!-- identity: end -->")
CARDS = [gpu(index) for index in range(GPUS)]


def uid(number: int) -> str:
    """A pod's UID."""
    return str(UUID(int=number))


def pod(number: int) -> Pod:
    """One with one container."""
    return Pod(uid(number), "ml", f"pod-{number}", "Running", {f"{number:064x}": "main"}, (("team", "a"),))


def resident(card: Device, number: int) -> GpuProcess:
    """The process of that pod's container, as the source tells it: not named."""
    cgroup = f"0::/kubepods/burstable/pod{uid(number)}/{number:064x}\n"
    return replace(process(card, 1000 + number), host=HostFacts(Start("boot", number, 0.0), cgroup=cgroup))


class Cluster:
    """Maps whose values can be swapped."""

    def __init__(self) -> None:
        self.pods = Pods(pod(number) for number in range(PODS))
        told = PodResources(
            tuple(
                Grant(
                    "ml", f"pod-{number}", "main", "nvidia.com/gpu", f"{CARDS[number % GPUS].uuid}::{number}"
                )
                for number in range(GPUS * EACH)
            )
        )
        allocations = Allocations(resources=("nvidia.com/gpu",), drivers=())

        def handed(devices: tuple[Device, ...]) -> tuple[Allocation, ...]:
            return allocations.of(told, devices, self.pods)

        self.names = Workloads(knowledge=OwnerIndexes((), lambda: self.pods, [handed]))


def node() -> Snapshot:
    """One tick: the source makes new processes each time, about the same hosts."""
    readings = []
    for card in CARDS:
        mine = [PEOPLE[card.index * EACH + number] for number in range(EACH)]
        readings.append(reading(card, *(replace(one) for one in mine)))
    return snapshot(*readings)


PEOPLE = [resident(CARDS[number // EACH], number) for number in range(GPUS * EACH)]


def timed(cluster: Cluster, between: Callable[[], None]) -> float:
    """Median CPU of naming, in ms."""
    times = []
    for _ in range(TICKS):
        seen = node()
        between()
        began = time.thread_time()
        named = cluster.names.name(seen)
        times.append((time.thread_time() - began) * 1000)
        assert all(one.workload.pod for one in named.processes)
    return median(times[TICKS // 5 :])


def churn(cluster: Cluster) -> tuple[int, int]:
    """KiB left by pods that came and went, and processes remembered after them."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(CHURN):
        cluster.pods = Pods([pod(number)])
        cluster.names.name(snapshot(reading(CARDS[0], resident(CARDS[0], number))))
    gc.collect()
    left = (tracemalloc.get_traced_memory()[0] - before) // 1024
    tracemalloc.stop()
    return left, cluster.names.remembered


def main() -> None:
    """Measure, print, and write where asked."""
    asked = parser(__doc__)
    given = asked.parse_args()
    cluster = Cluster()
    calm = timed(cluster, lambda: None)

    def swap() -> None:
        cluster.pods = Pods(cluster.pods)

    swapped = timed(cluster, swap)
    left, remembered = churn(cluster)
    lines = [
        f"Measured on {machine()}; {GPUS} GPUs, "
        f"{GPUS * EACH} processes, {PODS} pods, every process a pod's with a share of a GPU.",
        "",
        "| naming a tick | CPU ms |",
        "|---|---|",
        f"| nothing changed | {calm:.2f} |",
        f"| the map of pods changed | {swapped:.2f} |",
        "",
        f"After {CHURN:,} pods that came and went {remembered} process is remembered; "
        f"{left} KiB more are in use than before the first.",
    ]
    tell(lines, given.write, MARKS)


if __name__ == "__main__":
    main()
