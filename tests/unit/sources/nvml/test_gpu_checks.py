"""GPU checks of doctor for profiling metrics and memory repairs, with given results and the test library."""

from __future__ import annotations

from ctypes import CDLL
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.nvml.gpu_checks import find_gpu_problems
from gpuledger.sources.nvml.probe import GpuProbeResult, ProbeResult, query_driver
from nvml.library import NvmlGpu, NvmlState, count, load

WORKS, FAILS, WARNING, UNKNOWN, SKIPPED = Verdict
GPU = GpuProbeResult(0, "GPU-0", profiling=True, repair_pending=False, repair_failed=False)
NOT_SUPPORTED, NO_PERMISSION, TIMEOUT = 3, 4, 10


def findings(*gpus: GpuProbeResult) -> list[Finding]:
    result = ProbeResult(gpus=[replace(gpu, index=index) for index, gpu in enumerate(gpus)])
    found = find_gpu_problems(result, (), "")
    return [each for each in found if each.check in ("gpu.profiling", "gpu.memory")]


def test_a_healthy_card_passes() -> None:
    assert [(each.check, each.verdict) for each in findings(GPU, GPU)] == [
        ("gpu.profiling", WORKS),
        ("gpu.memory", WORKS),
    ]


def test_a_card_with_unknown_results_has_no_findings() -> None:
    assert findings(GpuProbeResult(0, "GPU-0")) == []


@pytest.mark.parametrize(
    ("gpu", "verdict", "words"),
    [
        (replace(GPU, profiling=False), SKIPPED, ["before Hopper", "GPU 1", "field_supported"]),
        (replace(GPU, profiling=None, profiling_error="NO_PERMISSION"), UNKNOWN, ["GPU 1", "NO_PERMISSION"]),
        (replace(GPU, repair_pending=True), WARNING, ["next reset", "nvidia-smi --gpu-reset -i 1"]),
        (replace(GPU, repair_failed=True), FAILS, ["spare", "field diagnostic"]),
    ],
)
def test_a_problem_is_reported_only_for_the_affected_card(
    gpu: GpuProbeResult, verdict: Verdict, words: list[str]
) -> None:
    found = findings(GPU, gpu)
    (problem,) = [each for each in found if each.verdict is not WORKS]
    assert problem.verdict is verdict
    assert all(word in f"{problem.what} {problem.why} {problem.remedy}" for word in words)
    assert [each.check for each in found if each.verdict is WORKS] == ["gpu.profiling", "gpu.memory"]


def query_gpu(
    tmp_path: Path, patch: pytest.MonkeyPatch, gpu: NvmlGpu, library: CDLL | None = None
) -> GpuProbeResult:
    """Return what the driver reports of the only Gpu."""
    patch.setenv("TEST_NVML_STATE", str(NvmlState(tmp_path / "state", [gpu]).write().path))
    messages: list[dict[str, Any]] = []
    query_driver(messages.append, lambda: library or load())
    (gpus,) = [each["gpus"] for each in messages if "gpus" in each]
    (result,) = gpus
    assert isinstance(result, GpuProbeResult)
    return result


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (NvmlGpu(), (True, False, False)),
        (NvmlGpu(remap_pending=1), (True, True, False)),
        (NvmlGpu(remap_failure=1), (True, False, True)),
        (NvmlGpu(architecture=5), (False, False, None)),
        (NvmlGpu(architecture=5, retired_pending=1), (False, True, None)),
    ],
    ids=["healthy", "pending", "failed", "before Hopper", "page pending"],
)
def test_profiling_and_memory_repairs_are_queried_from_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: NvmlGpu, expected: tuple[bool | None, ...]
) -> None:
    result = query_gpu(tmp_path, monkeypatch, gpu)
    assert (result.profiling, result.repair_pending, result.repair_failed) == expected


@pytest.mark.parametrize(
    ("call", "code", "changes"),
    [
        (
            "nvmlDeviceGetPersistenceMode",
            NO_PERMISSION,
            {"persistence": None, "persistence_error": "NO_PERMISSION"},
        ),
        ("nvmlDeviceGetPersistenceMode", NOT_SUPPORTED, {"persistence": None}),
        ("nvmlDeviceGetAccountingMode", TIMEOUT, {"accounting": None, "accounting_error": "TIMEOUT"}),
        ("nvmlDeviceGetAccountingMode", NOT_SUPPORTED, {"accounting": None}),
        (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            NO_PERMISSION,
            {
                "processes": None,
                "processes_error": "GPU-0: nvmlDeviceGetComputeRunningProcesses_v3: NO_PERMISSION",
            },
        ),
        (
            "nvmlDeviceGetProcessesUtilizationInfo",
            NO_PERMISSION,
            {"utilization_error": "GPU-0: nvmlDeviceGetProcessesUtilizationInfo: NO_PERMISSION"},
        ),
        ("nvmlDeviceGetSerial", NO_PERMISSION, {}),
    ],
)
def test_a_failed_query_has_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, changes: dict[str, Any]
) -> None:
    healthy = query_gpu(tmp_path, monkeypatch, NvmlGpu(uuid="GPU-0"))
    gpu = NvmlGpu(uuid="GPU-0")
    gpu.errors = {call: code}
    assert query_gpu(tmp_path, monkeypatch, gpu) == replace(healthy, **changes)


def test_an_unreadable_mig_layout_is_the_reason_for_all_that_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = NvmlGpu()
    gpu.errors = {"nvmlDeviceGetMigMode": NO_PERMISSION}
    result = query_gpu(tmp_path, monkeypatch, gpu)
    assert (result.error, result.processes, result.accounting) == ("", None, None)
    reasons = (result.mig_error, result.processes_error, result.accounting_error, result.utilization_error)
    assert reasons == ("NO_PERMISSION",) * 4


def test_accounting_mode_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = load()
    query_gpu(tmp_path, monkeypatch, NvmlGpu(accounting=0), library)
    assert count(library, "nvmlDeviceGetAccountingMode") == 1
    assert count(library, "nvmlDeviceSetAccountingMode") == 0


def test_failed_queries_have_unknown_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = NvmlGpu()
    gpu.errors = {"nvmlGpmQueryDeviceSupport": NO_PERMISSION, "nvmlDeviceGetFieldValues": NOT_SUPPORTED}
    result = query_gpu(tmp_path, monkeypatch, gpu)
    assert (result.profiling, result.profiling_error) == (None, "NO_PERMISSION")
    assert result.repair_pending is result.repair_failed is None
