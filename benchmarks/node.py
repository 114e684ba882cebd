"""Measures a node: CPU and driver calls per tick, bytes and time per scrape, resident memory.

    make bench                          all sizes; writes the tables in docs/performance.md
    python benchmarks/node.py --quick   only the size of the budget

Runs on the tests' NVML library and on the simulator, and compares with nvitop-exporter on the same library.
Times depend on the machine; ratios are comparable.
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
from typing import Any

import httpx
import psutil

from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
from tables import create_parser, describe_machine, print_table

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
    """One row: CPU ms per tick and per rendered page, calls per tick, KiB per page, ms per scrape, MiB."""

    source: str
    gpus: int
    processes: int
    tick: float
    render: float
    calls: int | None
    page: float
    scrape: float
    resident: float


def nvml_state(folder: Path, gpus: int, processes: int) -> NvmlState:
    """Write NVML state with processes spread over the GPUs, half of them busy.

    Uses the pids of running processes first, then made-up ones.
    """
    alive = psutil.pids()
    cards = [NvmlGpu(name="NVIDIA H100 80GB HBM3", utilization=60) for _ in range(gpus)]
    for number in range(processes):
        pid = alive[number] if number < len(alive) else 4_000_000 + number
        busy = 10 + number % 50 if number % 2 else 0
        cards[number % gpus].processes.append(NvmlProcess(pid, 100 * MIB, sm=busy, mem=busy // 2))
    return NvmlState(folder / "state", cards).write()


def scenario(folder: Path, gpus: int, processes: int) -> Path:
    """Write a simulator scenario with the same GPUs and processes."""
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
    """Run a program until it serves metrics at `url`, and stop it at the end."""
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


def in_one_process(
    values: Mapping[str, Any], ticks: int, env: Mapping[str, str]
) -> tuple[float, float, int | None]:
    """Return what `one_node.measure_node` returns in a separate process with these variables."""
    script = [sys.executable, str(ROOT / "benchmarks" / "one_node.py"), json.dumps(values), str(ticks)]
    output = subprocess.run(script, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
    tick, render, calls = json.loads(output)
    return tick, render, calls


def measure(source: str, gpus: int, processes: int, seconds: float) -> Figures:
    """Measure one row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # With a ledger file, because ticks include writing to it.
        env = {**os.environ, "GPULEDGER_STATE_DIR": str(folder / "served")}
        if source == "nvml":
            state = nvml_state(folder, gpus, processes)
            env |= {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
            source_flag = "nvml"
        else:
            source_flag = f"simulator:{scenario(folder, gpus, processes)}"
        values = {"source": source_flag, "process.max_per_device": 512, "state_dir": str(folder / "here")}
        tick, render, calls = in_one_process(values, TICKS, env)
        port = free_port()
        url = f"http://127.0.0.1:{port}/metrics"
        command = [sys.executable, "-m", "gpuledger", "serve", "--source", source_flag]
        command += ["--process.max-per-device", "512"]
        with running([*command, "--listen-address", f"127.0.0.1:{port}"], env, url) as serving:
            page, scrape, resident = watch(url, serving, seconds)
    return Figures(source, gpus, processes, tick, render, calls, page, scrape, resident)


def measure_dcgm() -> list[str]:
    """Measure the dcgm dialect with its default fields, and return the lines of its table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = nvml_state(folder, *BUDGET)
        env = {**os.environ, "LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
        values = {"source": "nvml", "state_dir": str(folder / "here"), "dialect": ["dcgm"]}
        tick, render, calls = in_one_process(values, 5 * TICKS, env)
    assert calls is not None
    fields = [column for column in DEFAULT_COLLECTORS.columns if column.field.quantities]
    return [
        "| fields of 8 GPUs | CPU ms per tick | page rendered, ms | calls per tick | calls per GPU |",
        "|---|---|---|---|---|",
        f"| {len(fields)} | {tick:.2f} | {render:.2f} | {calls} | {calls / BUDGET[0]:.1f} |",
    ]


def watch(url: str, serving: psutil.Process, seconds: float) -> tuple[float, float, float]:
    """Return KiB per page, ms per scrape over a keep-alive connection, and resident MiB at the end."""
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
    """Return CPU ms per second (one tick per second) and resident MiB of a program without scrapes."""
    with running(command, env, url) as program:
        time.sleep(2)
        before = program.cpu_times()
        began = time.monotonic()
        time.sleep(seconds)
        after = program.cpu_times()
        spent = after.user + after.system - before.user - before.system
        return spent / (time.monotonic() - began) * 1000, program.memory_info().rss / MIB


def compare_with_peer(seconds: float, rounds: int) -> list[str]:
    """Measure gpuledger and nvitop-exporter on the same library, in turn, and return the table's lines."""
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
        measured = [
            [whole_process(command, env, url, seconds) for command, url in programs] for _ in range(rounds)
        ]
    rows = ["| program | CPU ms per tick | resident MiB |", "|---|---|---|"]
    for index, label in enumerate(("gpuledger serve", "gpuledger serve, three dialects", "nvitop-exporter")):
        cpu = median(each[index][0] for each in measured)
        memory = median(each[index][1] for each in measured)
        rows.append(f"| {label} | {cpu:.1f} | {memory:.1f} |")
    cpu_ratio = median(theirs[0] / ours[0] for ours, _, theirs in measured)
    memory_ratio = median(theirs[1] / ours[1] for ours, _, theirs in measured)
    rows.append(f"| ratio, theirs to ours | {cpu_ratio:.1f} | {memory_ratio:.2f} |")
    return rows


def table(rows: list[Figures]) -> list[str]:
    """Return the lines of the Markdown table."""
    names = ("source", "GPUs", "processes", "CPU ms per tick", "page rendered, ms", "calls per tick")
    names += ("page KiB", "scrape ms", "resident MiB")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        calls = "" if row.calls is None else row.calls
        lines.append(
            f"| {row.source} | {row.gpus} | {row.processes} | {row.tick:.2f} | {row.render:.2f} | {calls} "
            f"| {row.page:.0f} | {row.scrape:.1f} | {row.resident:.1f} |"
        )
    return lines


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--quick", action="store_true", help="only the size of the budget")
    flags.add_argument("--seconds", type=float, default=6.0, help="duration of each measurement")
    given = flags.parse_args()
    sizes = [BUDGET] if given.quick else SIZES
    rows = []
    for source in ("nvml", "simulator"):
        for gpus, processes in sizes:
            rows.append(measure(source, gpus, processes, given.seconds))
            print(table(rows[-1:])[-1], flush=True)
    peer = compare_with_peer(given.seconds, 1 if given.quick else 3)
    lines = [
        f"Measured on {describe_machine()}.",
        "",
        *table(rows),
        "",
        "8 GPUs, 64 processes, without scrapes:",
        "",
        *peer,
        "",
        "As a replacement of dcgm-exporter (`dialect: dcgm`), with its default fields and the same 64",
        "processes. Calls are all calls of a tick, including process lists and samples:",
        "",
        *measure_dcgm(),
    ]
    print_table(lines, given.write, MARKS)


if __name__ == "__main__":
    main()
