"""GPU checks of doctor for profiling metrics and health, with given results and the test library."""

from __future__ import annotations

from ctypes import CDLL
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.gpu_problems import GpuProblem
from gpuledger.sources.nvml.gpu_checks import find_gpu_problems
from gpuledger.sources.nvml.probe import GpuProbeResult, ProbeResult, query_driver
from nvml.library import NvmlGpu, NvmlState, count, load

WORKS, FAILS, WARNING, UNKNOWN, SKIPPED = Verdict
GPU = GpuProbeResult(0, "GPU-0", profiling=True, judged=("row_remap_failure",))
NARROW = GpuProblem("pcie_width", "warning", "PCIe x4 of x16", "uses 4 of 16 lanes", "reseat the card")
BROKEN = GpuProblem("row_remap_failure", "failure", "Memory", "has a bad row", "replace the card")
NOT_SUPPORTED, NO_PERMISSION, TIMEOUT = 3, 4, 10


def findings(*gpus: GpuProbeResult) -> list[Finding]:
    result = ProbeResult(gpus=[replace(gpu, index=index) for index, gpu in enumerate(gpus)])
    found = find_gpu_problems(result, (), "")
    return [each for each in found if each.check in ("gpu.profiling", "gpu.health")]


def test_a_healthy_card_passes() -> None:
    assert [(each.check, each.verdict) for each in findings(GPU, GPU)] == [
        ("gpu.profiling", WORKS),
        ("gpu.health", WORKS),
    ]


def test_a_card_with_unknown_results_has_no_findings() -> None:
    assert findings(GpuProbeResult(0, "GPU-0")) == []


@pytest.mark.parametrize(
    ("gpu", "verdict", "words"),
    [
        (replace(GPU, profiling=False), SKIPPED, ["before Hopper", "GPU 1", "field_supported"]),
        (replace(GPU, profiling=None, profiling_error="NO_PERMISSION"), UNKNOWN, ["GPU 1", "NO_PERMISSION"]),
        (replace(GPU, problems=(NARROW,)), WARNING, ["GPU 1", "it uses 4 of 16 lanes", "reseat"]),
        (replace(GPU, problems=(BROKEN,)), FAILS, ["GPU 1", "it has a bad row", "replace the card"]),
    ],
)
def test_a_problem_is_reported_only_for_the_affected_card(
    gpu: GpuProbeResult, verdict: Verdict, words: list[str]
) -> None:
    found = findings(GPU, gpu)
    (problem,) = [each for each in found if each.verdict is not WORKS]
    assert problem.verdict is verdict
    assert all(word in f"{problem.what} {problem.why} {problem.remedy}" for word in words)
    assert [each.check for each in found if each.verdict is WORKS] == ["gpu.profiling", "gpu.health"]


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
        (NvmlGpu(), (True, [])),
        (NvmlGpu(remap_pending=1), (True, ["row_remap_pending"])),
        (NvmlGpu(remap_failure=1), (True, ["row_remap_failure"])),
        (NvmlGpu(architecture=5), (False, [])),
        (NvmlGpu(architecture=5, retired_pending=1), (False, ["retired_pages_pending"])),
        (NvmlGpu(pcie_width=4), (True, ["pcie_width"])),
        (NvmlGpu(pcie_width=8, pcie_width_max=8), (True, [])),
        (NvmlGpu(pcie_generation=3, utilization=90), (True, ["pcie_generation"])),
        (NvmlGpu(pcie_generation=1, pstate=8), (True, [])),
        (NvmlGpu(nvlinks_down=0b10), (True, ["nvlink"])),
        (NvmlGpu(recovery=2), (True, ["recovery_action"])),
        (NvmlGpu(ecc_uncorrected_volatile=3), (True, ["ecc_uncorrected"])),
        (NvmlGpu(clock_event_reasons=0x48), (True, ["thermal_throttling"])),
        (NvmlGpu(clock_event_reasons=0x88), (True, ["power_brake_throttling"])),
    ],
)
def test_profiling_and_health_are_queried_from_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: NvmlGpu, expected: tuple[bool, list[str]]
) -> None:
    result = query_gpu(tmp_path, monkeypatch, gpu)
    assert (result.profiling, [problem.kind for problem in result.problems]) == expected


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
    assert not {"row_remap_failure", "recovery_action"} & set(result.judged)
