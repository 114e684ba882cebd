"""A node that is kept busy for long, with processes that come and go, failing cards and clients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess, NvmlState
from running import Server, get

LOST = 15
# What clients ask, one after the other, every other with gzip. History is asked for with a bound: reading
# a whole day takes what that day has seen.
PATHS = (
    "/metrics",
    "/metrics/native",
    "/metrics/dcgm",
    "/metrics/energy",
    "/metrics/smi",
    "/api/v1/snapshot",
    "/api/v1/sessions?since=1m&limit=50",
    "/api/v1/energy?since=3d&until=2d&by=owner",
    "/api/v1/health",
    "/",
    "/health",
    "/nowhere",
)


class Sample(NamedTuple):
    """What a program holds, `at` seconds after the first look."""

    at: float
    resident: int
    descriptors: int
    threads: int


def look(server: Server, at: float) -> Sample:
    """Resident memory in KiB, open descriptors, threads."""
    process = psutil.Process(server.process.pid)
    with process.oneshot():
        return Sample(at, process.memory_info().rss // 1024, process.num_fds(), process.num_threads())


def slope(samples: Sequence[Sample]) -> float:
    """KiB of resident memory an hour, by least squares."""
    mean_at = sum(one.at for one in samples) / len(samples)
    mean_size = sum(one.resident for one in samples) / len(samples)
    spread = sum((one.at - mean_at) ** 2 for one in samples)
    rise = sum((one.at - mean_at) * (one.resident - mean_size) for one in samples)
    return 3600 * rise / spread if spread else 0.0


class Churn:
    """Four cards on the test's library; with each `step` half of the processes are others; cards fail."""

    def __init__(self, file: Path) -> None:
        self.state = NvmlState(file)
        self.started = 0
        self._steps = 0
        self.step()

    def step(self) -> None:
        """One change of the machine."""
        self._steps += 1
        cards = [NvmlGpu(uuid=f"GPU-{index}", utilization=50, activity=50.0) for index in range(4)]
        for index, card in enumerate(cards[:3]):
            card.processes = [NvmlProcess(self._pid(index, seat), sm=10 + seat) for seat in range(8)]
        cut = cards[3]
        cut.numbers["mig"] = 1
        # Every sixteenth step the card is cut anew.
        parts = (1, 2) if self._steps // 16 % 2 else (5, 6, 7)
        cut.instances = [NvmlInstance(slot, gi=gi) for slot, gi in enumerate(parts)]
        cut.processes = [NvmlProcess(self._pid(3, gi), gi=gi, ci=0) for gi in parts]
        if self._steps % 40 in (10, 11, 12):
            cards[1].errors["*"] = LOST
        self.state.gpus = cards
        self.state.write()

    def _pid(self, index: int, seat: int) -> int:
        # A process lives for two steps, and no process of this machine has such a pid.
        life = (self._steps + seat) // 2
        self.started += (self._steps + seat) % 2 == 0
        return 4_200_000 + life % 5000 * 100 + index * 20 + seat


def ask(server: Server, number: int) -> int:
    """One request of a client; its status, 0 where it got none."""
    path = PATHS[number % len(PATHS)]
    headers = {"accept-encoding": "gzip" if number % 2 else "identity"}
    with suppress(httpx.HTTPError):
        return get(server.url + path, headers=headers, timeout=20).status_code
    return 0
