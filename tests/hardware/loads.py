"""Known loads: processes that run cuda_work.py on one device, and an MPS daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

WORK = Path(__file__).with_name("cuda_work.py")
# A first start on a machine loads libraries and compiles the kernel; MPS starts a server as well.
START_LIMIT = 90.0
STOP_LIMIT = 20.0
MPS_CONTROL = "nvidia-cuda-mps-control"


class LoadFailed(Exception):
    """A load did not start; the text says why."""


class Load:
    """One process with a known load on the device. `pid` is that of this pid namespace."""

    def __init__(self, device: str, environment: Mapping[str, str], *arguments: str) -> None:
        variables = {**os.environ, **environment, "CUDA_VISIBLE_DEVICES": device}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORK), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self.arguments = arguments
        self.pid = self._process.pid
        self._lines: list[dict[str, Any]] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.append(json.loads(line))

    def wait_until_ready(self) -> None:
        """Wait until the process holds the device. Raises LoadFailed."""
        deadline = time.monotonic() + START_LIMIT
        while not self._lines and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        ended = self._process.poll()
        if ended is not None:
            self._reader.join(STOP_LIMIT)
        if self._lines and self._lines[0]["state"] == "ready":
            return
        if self._lines:
            why = self._lines[0].get("why", self._lines[0]["state"])
        elif ended is None:
            why = f"no answer in {START_LIMIT:g} s"
        else:
            assert self._process.stderr is not None
            last = self._process.stderr.read().strip().splitlines()[-1:]
            why = ": ".join([f"it ended with exit code {ended}", *last])
        self.stop()
        raise LoadFailed(why)

    def stop(self) -> dict[str, Any]:
        """End the process; return what it reported about its work, if it had finished. Never raises."""
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                return {}  # It hangs in the driver, and keeps its pipes open.
        self._reader.join(STOP_LIMIT)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return next((line for line in self._lines if line["state"] == "done"), {})


@contextmanager
def running(
    device: str, loads: Sequence[Sequence[str]], environment: Mapping[str, str] | None = None
) -> Iterator[list[Load]]:
    """Run these loads at the same time; all hold the device inside the block. Raises LoadFailed."""
    started: list[Load] = []
    try:
        for arguments in loads:
            started.append(Load(device, environment or {}, *arguments))  # noqa: PERF401  (one that fails stops all)
        for load in started:
            load.wait_until_ready()
        yield started
    finally:
        for load in started:
            load.stop()


def why_no_mps() -> str:
    """Why no MPS daemon can be started here; empty if one can. Another daemon is never touched."""
    if shutil.which(MPS_CONTROL) is None:
        return f"{MPS_CONTROL} is not installed"
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or Path("/tmp/nvidia-mps").exists():
        return "an MPS daemon may run already (CUDA_MPS_PIPE_DIRECTORY or /tmp/nvidia-mps)"
    return ""


@contextmanager
def mps_daemon(device: str) -> Iterator[dict[str, str]]:
    """Start an MPS daemon in a temporary directory, and stop it. Yields the variables of its clients.

    It needs no change of the GPU's compute mode. Raises LoadFailed.
    """
    with tempfile.TemporaryDirectory(prefix="gpuledger-mps-") as folder:
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in pipes.values():
            Path(path).mkdir()
        variables = {**os.environ, **pipes, "CUDA_VISIBLE_DEVICES": device}
        errors = Path(folder, "errors")
        # A file: the daemon may keep a pipe open, and its end would not come.
        with errors.open("wb") as file:
            started = subprocess.run(
                [MPS_CONTROL, "-d"],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                timeout=START_LIMIT,
                check=False,
            )
        if started.returncode:
            why = errors.read_text("utf-8", "replace").strip() or started.returncode
            raise LoadFailed(f"{MPS_CONTROL} -d: {why}")
        try:
            # The server sees the one device of the daemon as device 0.
            yield pipes
        finally:
            subprocess.run(
                [MPS_CONTROL], input="quit\n", env=variables, capture_output=True, text=True,
                timeout=START_LIMIT, check=False,
            )  # fmt: skip
