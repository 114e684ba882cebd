"""Load for soak tests: processes that come and go, failing cards, and client requests."""

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
# The requests of clients, in turn, every other one with gzip. History is limited to a minute, because a day's
# response grows with the number of sessions of that day.
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
    """Resources of a program, `at` seconds after the first sample; `resident` in KiB."""

    at: float
    resident: int
    descriptors: int
    threads: int


def sample_program(server: Server, at: float) -> Sample:
    """Return resident memory, open descriptors and threads of the server."""
    process = psutil.Process(server.process.pid)
    with process.oneshot():
        return Sample(at, process.memory_info().rss // 1024, process.num_fds(), process.num_threads())


def slope(samples: Sequence[Sample]) -> float:
    """Return the growth of resident memory in KiB per hour, by least squares."""
    mean_at = sum(one.at for one in samples) / len(samples)
    mean_size = sum(one.resident for one in samples) / len(samples)
    spread = sum((one.at - mean_at) ** 2 for one in samples)
    rise = sum((one.at - mean_at) * (one.resident - mean_size) for one in samples)
    return 3600 * rise / spread if spread else 0.0


class Churn:
    """Four cards on the tests' NVML library; `step` replaces half of the processes; cards fail at times."""

    def __init__(self, file: Path) -> None:
        self.state = NvmlState(file)
        self.started = 0
        self._steps = 0
        self.step()

    def step(self) -> None:
        """Change the machine once."""
        self._steps += 1
        cards = [NvmlGpu(uuid=f"GPU-{index}", utilization=50, activity=50.0) for index in range(4)]
        for index, card in enumerate(cards[:3]):
            card.processes = [NvmlProcess(self._pid(index, seat), sm=10 + seat) for seat in range(8)]
        cut = cards[3]
        cut.numbers["mig"] = 1
        # Every sixteenth step changes the card's MIG layout.
        parts = (1, 2) if self._steps // 16 % 2 else (5, 6, 7)
        cut.instances = [NvmlInstance(slot, gi=gi) for slot, gi in enumerate(parts)]
        cut.processes = [NvmlProcess(self._pid(3, gi), gi=gi, ci=0) for gi in parts]
        if self._steps % 40 in (10, 11, 12):
            cards[1].errors["*"] = LOST
        self.state.gpus = cards
        self.state.write()

    def _pid(self, index: int, seat: int) -> int:
        # A process lives for two steps. The kernel does not assign such pids.
        life = (self._steps + seat) // 2
        self.started += (self._steps + seat) % 2 == 0
        return 4_200_000 + life % 5000 * 100 + index * 20 + seat


def request_page(server: Server, number: int) -> int:
    """Send request `number` of a client; return its status, 0 if there was no response."""
    path = PATHS[number % len(PATHS)]
    headers = {"accept-encoding": "gzip" if number % 2 else "identity"}
    with suppress(httpx.HTTPError):
        return get(server.url + path, headers=headers).status_code
    return 0
