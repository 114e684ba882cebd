"""The test library works with nvidia-ml-py and with another exporter."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import PATIENCE

SCRIPT = """
import json, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(1)
print(json.dumps({
    "uuid": pynvml.nvmlDeviceGetUUID(handle),
    "power": pynvml.nvmlDeviceGetPowerUsage(handle),
    "used": pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used,
    "bus": pynvml.nvmlDeviceGetPciInfo(handle).busId,
    "processes": [(p.pid, p.usedGpuMemory) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)],
    "samples": sorted({(s.pid, s.smUtil) for s in pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, 0)}),
    "fields": [(f.fieldId, f.nvmlReturn) for f in pynvml.nvmlDeviceGetFieldValues(handle, [83, 82, 99])],
}))
"""


@pytest.fixture
def environment(tmp_path):
    state = NvmlState(tmp_path / "state", [NvmlGpu(), NvmlGpu(power=321_000)])
    state.gpus[1].processes = [
        NvmlProcess(os.getpid(), memory=2 << 30, sm=25),
        NvmlProcess(os.getppid(), memory=3 << 30, sm=35),
    ]
    state.write()
    return os.environ | {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}


def test_nvidia_ml_py_reads_the_test_library(environment):
    script = [sys.executable, "-c", SCRIPT]
    output = json.loads(
        subprocess.run(script, env=environment, capture_output=True, check=True, text=True).stdout
    )
    mine, parent = os.getpid(), os.getppid()
    assert output == {
        "uuid": "GPU-00000000-0000-0000-0000-000000000001",
        "power": 321_000,
        "used": 1 << 30,
        "bus": "00000000:02:00.0",
        "processes": [[mine, 2 << 30], [parent, 3 << 30]],
        "samples": sorted([[mine, 25], [parent, 35]]),
        "fields": [[83, 0], [82, 0], [99, 3]],
    }


def test_the_source_finds_the_test_library_like_any_driver(environment):
    script = (
        "from gpuledger.sources.nvml.library import NvmlLibrary\n"
        "library = NvmlLibrary(); library.start(); print(library.query_text('nvmlSystemGetDriverVersion')[1])"
    )
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == "570.86.15"


def test_nvitop_exporter_reports_its_gpus_and_processes(environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port)]
    command += ["--interval", "0.3"]
    exporter = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        page = ""
        until = time.monotonic() + PATIENCE
        while "process_gpu_memory_MiB{" not in page and time.monotonic() < until:
            assert exporter.poll() is None
            try:
                url = f"http://127.0.0.1:{port}/metrics"
                page = urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
            except urllib.error.URLError:
                time.sleep(0.05)
    finally:
        exporter.terminate()
        exporter.wait(PATIENCE)
    assert re.search(r'gpu_memory_total_MiB\{[^}]*index="1"[^}]*\} 81920.0', page)
    assert re.search(rf'process_gpu_memory_MiB\{{[^}}]*pid="{os.getpid()}"[^}}]*\}} 2048.0', page)
