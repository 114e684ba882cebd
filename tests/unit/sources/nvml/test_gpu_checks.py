"""What doctor says of profiling metrics and of worn memory: by table, and of the test library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.nvml.gpu_checks import health_findings
from gpuledger.sources.nvml.probe import GpuAnswer, examine
from nvml.library import NvmlGpu, NvmlState, load

WORKS, FAILS, WARNING, UNKNOWN, SKIPPED = Verdict
GPU = GpuAnswer(0, "GPU-0", profiling=True, repair_pending=False, repair_failed=False)
NOT_SUPPORTED, NO_PERMISSION = 3, 4


def findings(*gpus: GpuAnswer) -> list[Finding]:
    return list(health_findings([replace(gpu, index=index) for index, gpu in enumerate(gpus)]))


def test_a_good_card_works() -> None:
    assert [(each.check, each.verdict) for each in findings(GPU, GPU)] == [
        ("gpu.profiling", WORKS),
        ("gpu.memory", WORKS),
    ]


def test_of_a_card_that_told_nothing_there_is_nothing_to_say() -> None:
    assert findings(GpuAnswer(0, "GPU-0")) == []


@pytest.mark.parametrize(
    ("gpu", "verdict", "words"),
    [
        (replace(GPU, profiling=False), SKIPPED, ["before Hopper", "GPU 1", "field_supported"]),
        (replace(GPU, profiling=None, profiling_error="NO_PERMISSION"), UNKNOWN, ["GPU 1", "NO_PERMISSION"]),
        (replace(GPU, repair_pending=True), WARNING, ["next reset", "nvidia-smi --gpu-reset -i 1"]),
        (replace(GPU, repair_failed=True), FAILS, ["spare", "field diagnostic"]),
    ],
)
def test_what_is_wrong_with_one_card_is_said_of_it_alone(
    gpu: GpuAnswer, verdict: Verdict, words: list[str]
) -> None:
    found = findings(GPU, gpu)
    (odd,) = [each for each in found if each.verdict is not WORKS]
    assert odd.verdict is verdict
    assert all(word in f"{odd.what} {odd.why} {odd.remedy}" for word in words)
    assert [each.check for each in found if each.verdict is WORKS] == ["gpu.profiling", "gpu.memory"]


def asked(tmp_path: Path, patch: pytest.MonkeyPatch, gpu: NvmlGpu) -> dict[str, object]:
    """What the driver is heard to say of the only Gpu."""
    patch.setenv("TEST_NVML_STATE", str(NvmlState(tmp_path / "state", [gpu]).write().path))
    told: list[dict[str, object]] = []
    examine(told.append, lambda: load())
    (answer,) = [each["gpu"] for each in told if "gpu" in each]
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (NvmlGpu(), (True, False, False)),
        (NvmlGpu(remap_pending=1), (True, True, False)),
        (NvmlGpu(remap_failure=1), (True, False, True)),
        (NvmlGpu(architecture=5), (False, False, None)),
        (NvmlGpu(architecture=5, retired_pending=1), (False, True, None)),
    ],
    ids=["well", "pending", "failed", "before Hopper", "page pending"],
)
def test_the_driver_is_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: NvmlGpu, expected: tuple[bool | None, ...]
) -> None:
    told = asked(tmp_path, monkeypatch, gpu)
    assert (told["profiling"], told["repair_pending"], told["repair_failed"]) == expected


def test_what_the_driver_does_not_tell_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = NvmlGpu()
    gpu.errors = {"nvmlGpmQueryDeviceSupport": NO_PERMISSION, "nvmlDeviceGetFieldValues": NOT_SUPPORTED}
    told = asked(tmp_path, monkeypatch, gpu)
    assert (told["profiling"], told["profiling_error"]) == (None, "NO_PERMISSION")
    assert told["repair_pending"] is told["repair_failed"] is None
