"""Probing the driver in a separate process: results, errors, hanging calls, crashes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpuledger.sources.nvml.probe import ProbeResult, probe_driver
from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess, NvmlState, build


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlState:
    made = NvmlState(
        tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=5)), NvmlGpu(persistence=0, accounting=1)]
    )
    monkeypatch.setenv("TEST_NVML_STATE", str(made.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build().parent))
    return made.write()


def test_a_healthy_driver_is_reported_completely(state: NvmlState) -> None:
    result = probe_driver()
    assert (result.library, result.driver_version) == (str(build()), "570.86.15")
    assert (result.done, result.missing, result.refused, result.hung, result.crashed) == (
        True,
        "",
        "",
        "",
        "",
    )
    first, second = result.gpus
    assert (first.address, first.minor, first.processes) == ("00000000:01:00.0", 0, 1)
    assert (first.persistence, first.accounting, first.utilization_error) == (1, 0, "")
    assert (second.persistence, second.accounting, second.processes) == (0, 1, 0)


def test_instances_are_reported_with_uuid(state: NvmlState) -> None:
    state.gpus[1] = NvmlGpu(mig=1)
    state.gpus[1].instances = [
        NvmlInstance(0, 2, uuid="MIG-a"),
        NvmlInstance(3, 5, 1, "1g.10gb", uuid="MIG-b"),
    ]
    state.write()
    gpu = probe_driver().gpus[1]
    assert gpu.mig
    assert [(each.uuid, each.instance, each.profile) for each in gpu.instances] == [
        ("MIG-a", "2_0", "3g.40gb"),
        ("MIG-b", "5_1", "1g.10gb"),
    ]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (4, "NO_PERMISSION"),
        (8, "INSUFFICIENT_POWER"),
        (9, "DRIVER_NOT_LOADED"),
        (15, "GPU_IS_LOST"),
        (18, "LIB_RM_VERSION_MISMATCH"),
        (999, "UNKNOWN"),
        (77, "NVML_77"),
    ],
)
def test_an_error_at_the_start_of_the_driver_is_reported(state: NvmlState, code: int, name: str) -> None:
    state.errors["nvmlInitWithFlags"] = code
    state.write()
    result = probe_driver()
    assert (result.refused, result.call, result.done, result.gpus) == (name, "nvmlInitWithFlags", True, [])


def test_a_driver_without_gpus_is_reported(state: NvmlState) -> None:
    state.gpus.clear()
    state.write()
    assert probe_driver().refused == "NO_DEVICES"


@pytest.mark.parametrize("where", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPersistenceMode", "*"])
def test_a_lost_gpu_is_reported_beside_the_one_that_answers(state: NvmlState, where: str) -> None:
    state.gpus[0].errors[where] = 15
    state.write()
    result = probe_driver()
    assert {gpu.index: gpu.error for gpu in result.gpus} == {0: "GPU_IS_LOST", 1: ""}


@pytest.mark.parametrize(
    ("call", "reported_as", "seconds"),
    [
        ("nvmlInitWithFlags", "nvmlInitWithFlags", 0.4),
        ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex_v2", 0.4),
        ("nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingMode of GPU 0", 0.1),
        ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMaxMigDeviceCount of GPU 1", 0.1),
    ],
)
def test_a_hanging_call_is_named_and_abandoned(
    state: NvmlState, call: str, reported_as: str, seconds: float
) -> None:
    state.gpus[1] = NvmlGpu(mig=1)
    state.hang = (call,)
    state.write()
    result = probe_driver(0.1)
    assert (result.hung, result.limit, result.done, result.crashed) == (reported_as, seconds, False, "")


def test_the_working_directory_is_not_on_the_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: NvmlState
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(5)")
    monkeypatch.chdir(tmp_path)
    assert probe_driver().done


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert probe_driver().missing.startswith("libnvidia-ml.so.1: cannot open shared object file")


def test_an_invalid_library_is_reported_with_the_loaders_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    result = probe_driver()
    assert result.library == ""
    assert "libnvidia-ml.so.1" in result.missing
    assert "No such file" not in result.missing


def script(*lines: str) -> ProbeResult:
    setup = (
        "import os, sys",
        "from multiprocessing.connection import Connection",
        "pipe = Connection(int(sys.argv[-1]))",
    )
    return probe_driver(command=(sys.executable, "-c", "\n".join((*setup, *lines))))


def test_a_crash_is_reported_with_call_and_signal() -> None:
    result = script("pipe.send({'call': 'nvmlInit_v2'})", "os.kill(os.getpid(), 11)")
    assert (result.crashed, result.call) == ("signal 11", "nvmlInit_v2")


def test_a_crash_within_a_message_is_reported() -> None:
    # The length of the message is 16 bytes, but only one follows.
    write = "os.write(pipe.fileno(), bytes([0, 0, 0, 16, 1]))"
    result = script("pipe.send({'call': 'nvmlInit_v2'})", write, "os._exit(3)")
    assert (result.crashed, result.call) == ("exit code 3", "nvmlInit_v2")


def test_a_missing_python_interpreter_is_reported() -> None:
    result = probe_driver(command=("/none/python",))
    assert (result.crashed, result.call) == ("/none/python: No such file or directory", "")


def test_output_of_the_library_itself_is_ignored() -> None:
    result = script("os.write(1, b'NVML: hello')", "pipe.send({'done': True, 'missing': 'gone'})")
    assert (result.done, result.missing, result.crashed) == (True, "gone", "")
