"""The log messages about an unexpected number of GPUs."""

from __future__ import annotations

import pytest

from builders import gpu, instance, reading, snapshot
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.device_log import GpuCountLog


def snapshot_of(*indexes: int) -> Snapshot:
    return snapshot(*(reading(gpu(index)) for index in indexes))


def logged(expected: int, *seen: Snapshot | None, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    gpu_count_log = GpuCountLog(expected)
    with caplog.at_level("INFO"):
        for one in seen:
            gpu_count_log.update(one)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_the_expected_number_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(2, snapshot_of(0, 1), snapshot_of(0, 1), caplog=caplog) == []


def test_without_an_expected_number_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(0, snapshot_of(), snapshot_of(0, 1), snapshot_of(0), caplog=caplog) == []


def test_a_differing_number_is_logged_once_with_the_gpus_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert logged(4, snapshot_of(0, 1, 3), snapshot_of(0, 1, 3), caplog=caplog) == [
        (
            "WARNING",
            "3 GPUs are read (0, 1, 3), but --gpu-count expects 4: "
            "run `gpuledger doctor` to see what is missing",
        )
    ]


def test_each_change_of_the_number_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = logged(
        2,
        snapshot_of(0),
        snapshot_of(),
        snapshot_of(0, 1),
        snapshot_of(0, 1),
        snapshot_of(0, 1, 2),
        caplog=caplog,
    )
    assert [line.split(",")[0] for _, line in lines] == [
        "1 GPUs are read (0)",
        "0 GPUs are read (none)",
        "all 2 GPUs expected by --gpu-count are read again",
        "3 GPUs are read (0",
    ]


def test_instances_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    whole = gpu(0)
    cut = snapshot(reading(whole), reading(instance(whole, 1)), reading(instance(whole, 2)))
    assert logged(1, cut, caplog=caplog) == []


def test_an_incomplete_list_of_gpus_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(2, None, snapshot(reading(gpu(0)), devices_failed=True), caplog=caplog) == []
