"""The driver asked in a process of its own: what answers, what refuses, what hangs, what crashes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpuledger.sources.nvml.probe import Answer, InstanceAnswer, ask
from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess, NvmlState, build


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlState:
    made = NvmlState(
        tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid(), sm=5)), NvmlGpu(persistence=0, accounting=1)]
    )
    monkeypatch.setenv("TEST_NVML_STATE", str(made.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build().parent))
    return made.write()


def test_everything_of_a_good_driver_is_told(state: NvmlState) -> None:
    told = ask()
    assert (told.library, told.driver_version) == (str(build()), "570.86.15")
    assert (told.done, told.missing, told.refused, told.hung, told.crashed) == (True, "", "", "", "")
    first, second = told.gpus
    assert (first.address, first.minor, first.processes) == ("00000000:01:00.0", 0, 1)
    assert (first.persistence, first.accounting, first.utilization_error) == (1, 0, "")
    assert (second.persistence, second.accounting, second.processes) == (0, 1, 0)


def test_instances_are_told_by_uuid(state: NvmlState) -> None:
    state.gpus[1] = NvmlGpu(mig=1)
    state.gpus[1].instances = [
        NvmlInstance(0, 2, uuid="MIG-a"),
        NvmlInstance(3, 5, 1, "1g.10gb", uuid="MIG-b"),
    ]
    state.write()
    gpu = ask().gpus[1]
    assert gpu.mig
    assert gpu.instances == (
        InstanceAnswer("MIG-a", 2, 0, "3g.40gb"),
        InstanceAnswer("MIG-b", 5, 1, "1g.10gb"),
    )


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
def test_a_driver_that_refuses_to_start_says_why(state: NvmlState, code: int, name: str) -> None:
    state.errors["nvmlInitWithFlags"] = code
    state.write()
    told = ask()
    assert (told.refused, told.call, told.done, told.gpus) == (name, "nvmlInitWithFlags", True, [])


def test_a_driver_without_gpus_says_so(state: NvmlState) -> None:
    state.gpus.clear()
    state.write()
    assert ask().refused == "NO_DEVICES"


@pytest.mark.parametrize("where", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPersistenceMode", "*"])
def test_a_lost_gpu_is_told_beside_the_one_that_answers(state: NvmlState, where: str) -> None:
    state.gpus[0].errors[where] = 15
    state.write()
    told = ask()
    assert {gpu.index: gpu.error for gpu in told.gpus} == {0: "GPU_IS_LOST", 1: ""}


@pytest.mark.parametrize(
    ("call", "told_as", "seconds"),
    [
        ("nvmlInitWithFlags", "nvmlInitWithFlags", 0.4),
        ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex_v2", 0.4),
        ("nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingMode of GPU 0", 0.1),
    ],
)
def test_a_call_that_hangs_is_named_and_left_behind(
    state: NvmlState, call: str, told_as: str, seconds: float
) -> None:
    state.hang = (call,)
    state.write()
    told = ask(0.1)
    assert (told.hung, told.limit, told.done, told.crashed) == (told_as, seconds, False, "")


def test_the_gpus_before_the_one_that_hangs_are_told(state: NvmlState) -> None:
    state.gpus[1].errors["*"] = 15
    state.hang = ("nvmlDeviceGetAccountingMode",)
    state.write()
    told = ask(0.2)
    assert [(gpu.index, gpu.error) for gpu in told.gpus] == [(1, "GPU_IS_LOST")]


def test_the_working_directory_gives_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: NvmlState
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(5)")
    monkeypatch.chdir(tmp_path)
    assert ask().done


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert ask().missing.startswith("libnvidia-ml.so.1: cannot open shared object file")


def test_a_library_that_is_none_is_told_as_the_loader_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    told = ask()
    assert told.library == ""
    assert "libnvidia-ml.so.1" in told.missing
    assert "No such file" not in told.missing


def script(text: str) -> Answer:
    return ask(command=(sys.executable, "-c", text))


def test_a_crash_is_told_with_the_call_and_the_signal() -> None:
    told = script('print(\'{"asking": "nvmlInit_v2"}\', flush=True); import os; os.kill(os.getpid(), 11)')
    assert (told.crashed, told.call) == ("signal 11", "nvmlInit_v2")


def test_a_python_that_cannot_be_run_is_told() -> None:
    told = ask(command=("/none/python",))
    assert (told.crashed, told.call) == ("/none/python: No such file or directory", "")


def test_what_the_library_prints_itself_is_passed_over() -> None:
    told = script("print('NVML: hello'); print('[1]'); print('{\"done\": true, \"missing\": \"gone\"}')")
    assert (told.done, told.missing, told.crashed) == (True, "gone", "")
