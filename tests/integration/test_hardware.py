"""The hardware test and `gpuledger selftest`, on test libraries of NVML and CUDA in place of a driver."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cuda import library as cuda
from hardware.cuda_work import TARGETS, Compute, Cuda, Memory, NotUsable, work
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import PATIENCE, gpuledger, wait_until

TESTS = Path(__file__).parents[1]
RUN = TESTS / "hardware" / "run.py"
SMI = f"{sys.executable} {TESTS / 'nvml' / 'nvidia_smi.py'}"
INVALID_CONTEXT = 201


@pytest.fixture
def state(tmp_path: Path) -> NvmlState:
    return NvmlState(tmp_path / "state", [NvmlGpu(), NvmlGpu(power=80_000)]).write()


def variables(state: NvmlState, *libraries: Path, **more: str) -> dict[str, str]:
    folders = ":".join(str(library.parent) for library in libraries)
    return {"LD_LIBRARY_PATH": folders, "TEST_NVML_STATE": str(state.path), "NO_COLOR": "1", **more}


def command(state: NvmlState) -> list[str]:
    """The hardware test as a developer runs it, with short phases."""
    out = state.path.parent / "out"
    return [
        sys.executable,
        str(RUN),
        f"--out={out}",
        "--seconds=1",
        "--processes=3",
        f"--nvidia-smi={SMI}",
    ]


def hardware(
    state: NvmlState, *arguments: str, libraries: Sequence[Path], **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the hardware test to its end."""
    return subprocess.run(
        [*command(state), *arguments],
        env={**os.environ, **variables(state, *libraries), **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def path_with_mps(state: NvmlState) -> str:
    """PATH with a daemon of MPS that starts and stops, and notes both."""
    folder = state.path.parent / "bin"
    folder.mkdir()
    daemon = folder / "nvidia-cuda-mps-control"
    log = state.path.parent / "mps"
    daemon.write_text(f'#!/bin/sh\n[ "$1" = -d ] && echo start >> {log} || cat >> {log}\n')
    daemon.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_known_loads_are_seen_and_reported(state: NvmlState) -> None:
    folder = state.path.parent / "processes"
    folder.mkdir()
    # The newer library refreshes counters every 100 ms, as drivers do.
    libraries = (build("newer"), cuda.build())
    with cuda.in_step(state, folder) as variables_of_loads:
        done = hardware(state, libraries=libraries, **variables_of_loads, PATH=path_with_mps(state))
    assert (done.returncode, done.stderr) == (0, "")
    report = (state.path.parent / "out" / "report.md").read_text()
    for text in (
        "| energy by process | 100% of",
        "| processes of the load | 3 of 3 listed, types C, with their pids and memory |",
        "| utilization of the load | 50%, expected 30% to 75% |",
        "| profiling metrics of the load | dram_activity is 80%, expected at least 30% |",
        "refreshed about every 100 ms",
        "complete, also if they are longer than the first buffer",
        "| MPS | 0 server(s), 2 client(s), 2 with own utilization |",
        "| processes of the load | 2 of 2 listed, types M, with their pids and memory |",
        "## Numbers of GPU 0",
    ):
        assert text in report, text
    assert "GPU-0000" not in report
    assert (state.path.parent / "mps").read_text().split() == ["start", "quit"]
    recording = state.path.parent / "out" / "recording.jsonl.gz"
    done = gpuledger("doctor", "--listen-address", "127.0.0.1:0", "--source", f"replay:{recording}")
    assert "simulated or recorded data" in done.stdout


def test_without_cuda_the_driver_is_tested_all_the_same(state: NvmlState, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    done = hardware(state, libraries=(build(), tmp_path / "libcuda.so.1"))
    assert done.returncode == 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert "it cannot run here: libcuda.so.1 cannot be loaded" in report


def test_a_load_that_crashes_is_a_finding(state: NvmlState, tmp_path: Path) -> None:
    # The test library aborts if it cannot write its log.
    done = hardware(state, libraries=(build(), cuda.build()), TEST_CUDA_LOG="/dev/full")
    assert done.returncode == 0
    assert "it cannot run here: it ended with exit code -6" in (tmp_path / "out" / "report.md").read_text()


def test_a_test_that_is_stopped_leaves_its_report_and_no_process(state: NvmlState, tmp_path: Path) -> None:
    folder, report = tmp_path / "processes", tmp_path / "out" / "report.md"
    folder.mkdir()
    more = {**variables(state, build(), cuda.build()), "TEST_CUDA_PROCESSES": str(folder)}
    with subprocess.Popen(command(state), env={**os.environ, **more}, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: any(folder.iterdir()), "a load")
        before = report.read_text()
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert "# Without a load" in before
    assert cuda.working(folder) == []


def test_without_a_driver_it_says_why(state: NvmlState, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"not a library")
    done = hardware(state, libraries=(tmp_path / "libnvidia-ml.so.1",))
    assert done.returncode == 77
    assert done.stderr.startswith("this machine cannot run the hardware test: libnvidia-ml.so.1 not found")


def selftest(state: NvmlState, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    flags = ("--for", "1s", "--nvidia-smi-command", SMI)
    return gpuledger("selftest", *flags, *arguments, env=variables(state, build(), **more))


def test_selftest_passes_and_writes_a_report(state: NvmlState, tmp_path: Path) -> None:
    state.gpus[0].processes = [NvmlProcess(os.getpid(), sm=40)]
    state.write()
    done = selftest(state, "--json", "--report", str(tmp_path / "report.md"))
    document = json.loads(done.stdout)
    found = {finding["check"]: finding["verdict"] for finding in document["findings"]}
    assert (done.returncode, document["summary"]["fails"]) == (0, 0), done.stdout
    assert found["driver.answers"] == found["selftest.observation"] == found["selftest.nvidia_smi"] == "works"
    report = (tmp_path / "report.md").read_text()
    assert "## Findings" in report
    assert "| power.draw [W] | 100.00 W | 100.00 W | yes |" in report


def test_a_number_that_differs_from_nvidia_smi_fails(state: NvmlState) -> None:
    done = selftest(state, TEST_SMI_WRONG="gpu_temp=99 C")
    assert done.returncode == 1
    assert "temperature of nvidia-smi and gpuledger, in 5 tries: 99 and 40 (GPU 0)" in done.stdout
    assert "Start with: numbers of nvidia-smi." in done.stdout


def test_selftest_without_a_driver_names_the_cause_once(state: NvmlState) -> None:
    state.errors["nvmlInitWithFlags"] = 9
    state.write()
    done = selftest(state)
    assert done.returncode == 1
    assert "the kernel module nvidia is not loaded" in done.stdout
    assert done.stdout.count("because of: kernel driver") == 1


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_CUDA_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def loaded(tmp_path: Path, log: Path) -> Iterator[Cuda]:
    """The test library with fresh state: a copy, because a loaded library keeps its state."""
    copy = tmp_path / "libcuda.so.1"
    copy.write_bytes(cuda.build().read_bytes())
    yield Cuda(lambda _: ctypes.CDLL(str(copy)))


def test_the_calls_of_a_load_are_those_of_the_driver_api(loaded: Cuda, log: Path) -> None:
    device = loaded.open_device()
    block = loaded.allocate(1 << 20)
    compute, memory = Compute(loaded, device), Memory(loaded, block, 1 << 20)
    compute.calibrate()
    memory.step()
    assert work(compute.step, 0.01, 1.0)[0] >= 1
    calls = log.read_text().split()
    begin = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"]
    compiled = ["cuMemAlloc_v2", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuDeviceGetAttribute"]
    assert calls[:9] == begin + compiled
    assert set(calls[9:]) == {"cuLaunchKernel", "cuCtxSynchronize", "cuMemcpyDtoD_v2"}


def test_a_call_without_a_context_is_named(loaded: Cuda) -> None:
    with pytest.raises(NotUsable, match="cuMemAlloc_v2: CUDA_ERROR_INVALID_CONTEXT"):
        loaded.allocate(4)


@pytest.mark.parametrize(("least", "loads"), [("50", 1), ("75", 2), ("90", 4)])
def test_a_driver_without_old_targets_gets_a_newer_one(
    loaded: Cuda, log: Path, monkeypatch: pytest.MonkeyPatch, least: str, loads: int
) -> None:
    monkeypatch.setenv("TEST_CUDA_LEAST", least)
    loaded.open_device()
    loaded.compile("compute")
    assert log.read_text().split().count("cuModuleLoadDataEx") == loads


def test_a_compiler_that_refuses_everything_says_why(loaded: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CUDA_LEAST", "999")
    loaded.open_device()
    with pytest.raises(NotUsable) as refused:
        loaded.compile("compute")
    assert str(refused.value).count("CUDA_ERROR_INVALID_PTX ptxas fatal : target sm_") == len(TARGETS)
