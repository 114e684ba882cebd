"""Load for soak tests: processes that come and go, failing cards, requests of clients and users."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from gpuledger.app.control_socket import exchange_with
from gpuledger.model.errors import GpuledgerError
from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess, NvmlState
from prepared import MODULE
from running import PATIENCE, Program, Server, get
from unprivileged import environment, python_for_all

LOST = 15
# A user of every machine, other than that of the nodes.
USER, USER_ID = "daemon", 1
# Those of a fleet's pages and terminals.
FLEET_PATHS = ("/", "/api/v1/fleet", "/api/v1/fleet/terms", "/health", "/nowhere")
# The requests of clients, in turn, every other one with gzip. A response grows with the sessions and hours of
# its range: where the ledger begins with two days, ranges have as many in the beginning as in the end.
PATHS = (
    "/metrics",
    "/metrics/native",
    "/metrics/dcgm",
    "/metrics/energy",
    "/metrics/smi",
    "/api/v1/snapshot",
    "/api/v1/sessions?since=1m&limit=50",
    "/api/v1/energy?since=2d&until=1d&by=owner",
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


def sample_program(server: Program, at: float) -> Sample:
    """Return resident memory, open descriptors and threads of the program."""
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
    """Four cards on the tests' NVML library; each process runs for `life` steps; cards fail at times."""

    def __init__(self, file: Path, life: int = 2) -> None:
        self.state = NvmlState(file)
        self.started = 0
        self._life = life
        self._running: set[int] = set()
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
        running = {process.pid for card in cards for process in card.processes}
        self.started += len(running - self._running)
        self._running = running
        self.state.gpus = cards
        self.state.write()

    def _pid(self, index: int, seat: int) -> int:
        # The kernel does not assign such pids.
        return 4_200_000 + (self._steps + seat) // self._life % 5000 * 100 + index * 20 + seat


def request_page(server: Server, number: int, paths: Sequence[str] = PATHS) -> int:
    """Send request `number` of a client; return its status, 0 if there was no response."""
    path = paths[number % len(paths)]
    headers = {"accept-encoding": "gzip" if number % 2 else "identity"}
    with suppress(httpx.HTTPError):
        return get(server.url + path, headers=headers).status_code
    return 0


class Users:
    """People with a session on the machine of a server: they read costs and receipts, and reserve GPUs.

    `done` counts what succeeded: costs and receipts over HTTP, receipts of USER over the control socket,
    reservations.
    """

    def __init__(self, server: Server, socket: Path) -> None:
        self._server = server
        self._socket = socket
        self.done: Counter[str] = Counter()
        self.failure = ""

    def act(self, *, runs_command: bool) -> None:
        """Do everything once; `runs_command` starts a program too. Sets `failure` if something fails."""
        try:
            self._request_receipt()
            self._reserve()
            if runs_command:
                self._read_own_receipt()
        except (AssertionError, GpuledgerError, httpx.HTTPError, subprocess.TimeoutExpired) as error:
            self.failure = repr(error)

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))

    def _request_receipt(self) -> None:
        """Request the receipt of the last session that ended, and the costs of the last quarters of an hour.

        A report reads the sessions of its range: here as many after half an hour as later.
        """
        query = "/api/v1/sessions?since=3m&state=closed&limit=50"
        ended = get(self._server.url + query).json()["sessions"]
        self._request("costs", "/api/v1/energy?since=10m&by=namespace,gpu")
        if ended:
            last = ended[-1]
            owner = f"pod:{last['namespace']}/{last['pod']}" if last["pod"] else f"pid:{last['pid']}"
            self._request("receipts", f"/api/v1/receipt?of={owner}&since=10m")

    def _reserve(self) -> None:
        """Reserve a GPU if one is free, and release it."""
        wish = {"do": "free", "window": 0, "anyway": True}
        try:
            taken = exchange_with([self._socket], {**wish, "act": "take", "seconds": 60}, PATIENCE)
        except GpuledgerError as error:
            # On a busy machine, a reading can be late.
            if "is not known: no reading" not in str(error):
                raise
            return
        if not taken.get("refused"):
            exchange_with([self._socket], {**wish, "act": "release"}, PATIENCE)
            self.done["reservations"] += 1

    def _read_own_receipt(self) -> None:
        """Read the receipt of USER over the control socket, as that user if this program is root."""
        given = ("receipt", "--mine", "--since", "10m", "--url", f"unix:{self._socket}")
        is_root = os.geteuid() == 0
        command = [python_for_all(), "-m", "gpuledger"] if is_root else [sys.executable, *MODULE[1:]]
        done = subprocess.run(
            [*command, *given],
            user=USER_ID if is_root else None,
            env=os.environ | environment(Path("/")),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        self.done["own receipts"] += done.returncode == 0

    def _request(self, what: str, path: str) -> None:
        found = get(self._server.url + path)
        # 404: nothing is in the ledger yet; 503: it reads other reports.
        assert found.status_code in (200, 404, 503), (path, found.text)
        self.done[what] += found.status_code == 200
