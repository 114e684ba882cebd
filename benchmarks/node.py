"""What a node costs: CPU and driver calls a tick, bytes and time a scrape, resident memory.

    make bench                          all sizes; writes the tables in docs/performance.md
    python benchmarks/node.py --quick   the size of the budget alone

Runs on the test's NVML library and on the simulator, with nvitop-exporter on the same library in the same
run. Absolute times are this machine's; ratios travel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx
import psutil

from gpuledger.dialects.dcgm.collectors import DEFAULT
from tables import machine, parser, tell

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build  # noqa: E402  (after the path is set)
from running import free_port, wait_until  # noqa: E402

SIZES = [(gpus, processes) for gpus in (1, 8, 16) for processes in (0, 8, 64, 512)]
BUDGET = (8, 64)
MIB = 1024 * 1024
TICKS = 40
MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")


@dataclass(frozen=True)
class Figures:
    """One row: CPU in ms a tick, calls a tick, KiB a page, ms a scrape, resident MiB."""

    source: str
    gpus: int
    processes: int
    tick: float
    render: float
    calls: float | None
    page: float
    scrape: float
    resident: float


# In a process of its own, so that neither sizes nor sources warm each other's caches.
IN_PROCESS = """
import json, sys, time
from statistics import median
from gpuledger.app.wiring import assemble_node
from gpuledger.dialects.catalogue import dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.outputs.metrics_pages import PageStore
from gpuledger.http.routes import Request
values = json.loads(sys.argv[1])
made = assemble_node(values)
every = dialects(DialectSettings(), "0")
names = tuple(values.get("dialect", ("process", "session", "native")))
request = Request("GET", "/metrics", "", {"accept-encoding": "gzip"})
for _ in range(5):
    made.parts.node.tick()
calls, ticks, renders = getattr(made.parts.source, "calls", None), [], []
for _ in range(int(sys.argv[2])):
    time.sleep(0.01)
    began = time.thread_time(); made.parts.node.tick(); ticks.append(time.thread_time() - began)
    # A store of its own, so that the page is made here and not within the next tick.
    serve = PageStore(every, SystemClock(), made.parts.pages.page, names).handler(names)
    began = time.thread_time(); serve(request); renders.append(time.thread_time() - began)
after = getattr(made.parts.source, "calls", None)
per_tick = None if calls is None else (after - calls) / int(sys.argv[2])
print(json.dumps([median(ticks) * 1000, median(renders) * 1000, per_tick]))
"""


def nvml_state(folder: Path, gpus: int, processes: int) -> NvmlState:
    """Processes spread over the GPUs, half of them busy; pids that exist where there are enough."""
    alive = psutil.pids()
    cards = [NvmlGpu(name="NVIDIA H100 80GB HBM3", utilization=60) for _ in range(gpus)]
    for number in range(processes):
        pid = alive[number] if number < len(alive) else 4_000_000 + number
        busy = 10 + number % 50 if number % 2 else 0
        cards[number % gpus].processes.append(NvmlProcess(pid, 100 * MIB, sm=busy, mem=busy // 2))
    return NvmlState(folder / "state", cards).write()


def scenario(folder: Path, gpus: int, processes: int) -> Path:
    """The same as a simulator's scenario."""
    shared = [processes // gpus + (index < processes % gpus) for index in range(gpus)]
    lines = ["gpus:"]
    for count in shared:
        lines += ["  - model: NVIDIA H100 80GB HBM3", "    memory: 80GB", "    processes:"]
        lines += [f"      - {{name: python3, memory: 100MB, load: {0.5 / max(count, 1):.4f}}}"] * count
        if not count:
            lines[-1] = "    processes: []"
    file = folder / "scenario.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


@contextmanager
def running(command: list[str], env: Mapping[str, str], url: str) -> Iterator[psutil.Process]:
    """A program that serves metrics."""
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        if process.poll() is not None:
            raise SystemExit(f"{command[0]} ended with {process.returncode}")
        try:
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, f"{command[0]} to answer")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def measure(source: str, gpus: int, processes: int, seconds: float) -> Figures:
    """One row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The books are part of what a tick costs.
        env = {**os.environ, "GPULEDGER_STATE_DIR": str(folder / "served")}
        if source == "nvml":
            state = nvml_state(folder, gpus, processes)
            env |= {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
            asked = "nvml"
        else:
            asked = f"simulator:{scenario(folder, gpus, processes)}"
        values = json.dumps(
            {"source": asked, "process.max_per_device": 512, "state_dir": str(folder / "here")}
        )
        script = [sys.executable, "-c", IN_PROCESS, values, str(TICKS)]
        answer = subprocess.run(script, env=env, check=True, capture_output=True, text=True).stdout
        tick, render, calls = json.loads(answer)
        port = free_port()
        url = f"http://127.0.0.1:{port}/metrics"
        command = [sys.executable, "-m", "gpuledger", "serve", "--source", asked]
        command += ["--process.max-per-device", "512"]
        with running([*command, "--listen-address", f"127.0.0.1:{port}"], env, url) as serving:
            page, scrape, resident = watch(url, serving, seconds)
    return Figures(source, gpus, processes, tick, render, calls, page, scrape, resident)


def dcgm() -> list[str]:
    """What telling DCGM's default fields costs, of 8 GPUs in dcgm-exporter's place."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = nvml_state(folder, *BUDGET)
        env = {**os.environ, "LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
        values = {"source": "nvml", "state_dir": str(folder / "here"), "dialect": ["dcgm"]}
        script = [sys.executable, "-c", IN_PROCESS, json.dumps(values), str(5 * TICKS)]
        answer = subprocess.run(script, env=env, check=True, capture_output=True, text=True).stdout
        tick, render, calls = json.loads(answer)
    fields = [column for column in DEFAULT.columns if column.field.quantities]
    return [
        "| fields of 8 GPUs | CPU ms a tick | page made, ms | calls a tick | calls a tick and GPU |",
        "|---|---|---|---|---|",
        f"| {len(fields)} | {tick:.2f} | {render:.2f} | {calls:.1f} | {calls / BUDGET[0]:.1f} |",
    ]


def watch(url: str, serving: psutil.Process, seconds: float) -> tuple[float, float, float]:
    """KiB a page, ms a scrape over a kept connection, and resident MiB at the end."""
    times = []
    with httpx.Client(trust_env=False) as client:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            began = time.perf_counter()
            response = client.get(url)
            times.append(time.perf_counter() - began)
            time.sleep(0.1)
        size = len(response.content) / 1024
    return size, median(times) * 1000, serving.memory_info().rss / MIB


def whole_process(
    command: list[str], env: Mapping[str, str], url: str, seconds: float
) -> tuple[float, float]:
    """CPU in ms a second (one tick a second), and resident MiB, of a program that nobody scrapes."""
    with running(command, env, url) as program:
        time.sleep(2)
        before = program.cpu_times()
        began = time.monotonic()
        time.sleep(seconds)
        after = program.cpu_times()
        spent = after.user + after.system - before.user - before.system
        return spent / (time.monotonic() - began) * 1000, program.memory_info().rss / MIB


def against_the_peer(seconds: float, rounds: int) -> list[str]:
    """Both on the same library, in turn."""
    with tempfile.TemporaryDirectory() as name:
        state = nvml_state(Path(name), *BUDGET)
        env = {**os.environ, "LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
        env["GPULEDGER_STATE_DIR"] = name
        ours_port, theirs_port = free_port(), free_port()
        address = f"127.0.0.1:{ours_port}"
        ours = [sys.executable, "-m", "gpuledger", "serve", "--source", "nvml", "--listen-address", address]
        peer = str(Path(sys.executable).with_name("nvitop-exporter"))
        theirs = [peer, "--bind-address", "127.0.0.1", "--port", str(theirs_port), "--interval", "1"]
        few = [*ours, "--dialect", "process,session,energy", "--kubernetes-enabled", "false"]
        at = f"http://{address}/metrics"
        programs = ((ours, at), (few, at), (theirs, f"http://127.0.0.1:{theirs_port}/metrics"))
        told = [
            [whole_process(command, env, url, seconds) for command, url in programs] for _ in range(rounds)
        ]
    rows = ["| program | CPU ms a tick | resident MiB |", "|---|---|---|"]
    for index, label in enumerate(("gpuledger serve", "gpuledger serve, three dialects", "nvitop-exporter")):
        cpu = median(each[index][0] for each in told)
        memory = median(each[index][1] for each in told)
        rows.append(f"| {label} | {cpu:.1f} | {memory:.1f} |")
    cpu_ratio = median(theirs[0] / ours[0] for ours, _, theirs in told)
    memory_ratio = median(theirs[1] / ours[1] for ours, _, theirs in told)
    rows.append(f"| ratio, theirs to ours | {cpu_ratio:.1f} | {memory_ratio:.2f} |")
    return rows


def table(rows: list[Figures]) -> list[str]:
    """Markdown."""
    names = ("source", "GPUs", "processes", "CPU ms a tick", "page made, ms", "calls a tick")
    names += ("page KiB", "scrape ms", "resident MiB")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        calls = "" if row.calls is None else f"{row.calls:.0f}"
        lines.append(
            f"| {row.source} | {row.gpus} | {row.processes} | {row.tick:.2f} | {row.render:.2f} | {calls} "
            f"| {row.page:.0f} | {row.scrape:.1f} | {row.resident:.1f} |"
        )
    return lines


def main() -> None:
    """Measure, print, and write where asked."""
    asked = parser(__doc__)
    asked.add_argument("--quick", action="store_true", help="the size of the budget alone")
    asked.add_argument("--seconds", type=float, default=6.0, help="how long each program is watched")
    given = asked.parse_args()
    sizes = [BUDGET] if given.quick else SIZES
    rows = []
    for source in ("nvml", "simulator"):
        for gpus, processes in sizes:
            rows.append(measure(source, gpus, processes, given.seconds))
            print(table(rows[-1:])[-1], flush=True)
    peer = against_the_peer(given.seconds, 1 if given.quick else 3)
    lines = [
        f"Measured on {machine()}.",
        "",
        *table(rows),
        "",
        "8 GPUs, 64 processes, nobody scraping:",
        "",
        *peer,
        "",
        "In dcgm-exporter's place (`dialect: dcgm`): its default fields, the same 64 processes; calls are",
        "all those of a tick, process lists and samples included:",
        "",
        *dcgm(),
    ]
    tell(lines, given.write, MARKS)


if __name__ == "__main__":
    main()
