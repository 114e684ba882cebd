"""Builds the test libcuda.so.1, and keeps the test NVML library in step with the processes that use it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from nvml.library import FLAGS, NvmlProcess, NvmlState
from nvml.library import SOURCE as LIBRARY_SOURCE

SOURCE = Path(__file__).with_name("libcuda.c")
# The driver needs some memory for each context.
CONTEXT_BYTES = 500 << 20


def build() -> Path:
    """Return the library's path; compile it if the source is newer. Safe to call from several processes."""
    target = LIBRARY_SOURCE.parent / "build" / "cuda" / "libcuda.so.1"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_suffix(f".{os.getpid()}")
        flags = [flag.replace("libnvidia-ml.so.1", "libcuda.so.1") for flag in FLAGS]
        subprocess.run(["cc", *flags, str(SOURCE), "-o", str(aside)], check=True)
        aside.replace(target)
    return target


@dataclass(frozen=True, slots=True)
class Working:
    """A process of cuda_work.py as its command line describes it, and whether it is a client of MPS."""

    pid: int
    load: str
    busy: float
    mebibytes: int
    mps: bool


def working(folder: Path) -> list[Working]:
    """The living processes that hold a context of the test library."""
    found = []
    for file in folder.iterdir():
        process = Path("/proc", file.name)
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")[:-1]
            mps = b"CUDA_MPS_PIPE_DIRECTORY=" in (process / "environ").read_bytes()
        except OSError:
            continue
        if words:  # A zombie has none.
            options = dict(zip(words[:-1], words[1:], strict=True))  # noqa: RUF007  (also in the middle of a pair)
            busy = 0.0 if options["--load"] == "hold" else float(options.get("--busy", "1"))
            mebibytes = int(options["--mebibytes"])
            found.append(Working(int(file.name), options["--load"], busy, mebibytes, mps))
    return found


def apply(state: NvmlState, processes: list[Working]) -> None:
    """Let the first GPU of the test NVML library, or its first instance, do what these processes do."""
    gpu = state.gpus[0]
    total = sum(process.busy for process in processes)
    engine = min(total, 1.0)
    gpu.processes = [
        NvmlProcess(
            process.pid,
            CONTEXT_BYTES + (process.mebibytes << 20),
            "M" if process.mps else "C",
            *((gpu.instances[0].gi, gpu.instances[0].ci) if gpu.instances else ()),
            sm=round(100 * process.busy / max(total, 1.0)),
        )
        for process in sorted(processes, key=lambda process: process.pid)
    ]
    gpu.activity = 100 * engine
    gpu.numbers["utilization"] = round(100 * engine)
    gpu.numbers["power"] = gpu.numbers["power_instant"] = round(100_000 + 500_000 * engine)
    gpu.numbers["memory_used"] = (1 << 30) + sum(process.memory for process in gpu.processes)
    copies = any(process.load == "memory" for process in processes)
    gpu.answers["gpm.10"] = 80.0 if copies else 1.0
    state.write()


@contextmanager
def in_step(state: NvmlState, folder: Path) -> Iterator[dict[str, str]]:
    """Inside the block, the state of the test NVML library follows the processes in `folder`.

    Yields the variables for these processes. Each waits for its place in that state.
    """
    over = Event()

    def follow() -> None:
        before: list[Working] | None = None
        while not over.wait(0.05):
            now = working(folder)
            if now != before:
                apply(state, now)
                before = now
                for process in now:
                    (folder / str(process.pid)).write_text("listed")

    thread = Thread(target=follow, name="GPU of the tests", daemon=True)
    thread.start()
    try:
        yield {"TEST_CUDA_PROCESSES": str(folder), "TEST_CUDA_WAIT": "1"}
    finally:
        over.set()
        thread.join()
