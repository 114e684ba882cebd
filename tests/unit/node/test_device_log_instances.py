"""The log messages about MIG instances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance, reading, snapshot
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.device_log import InstanceLog

ONE, OTHER = instance(gpu(0), 2, 0), instance(gpu(0), 9, 0)


def logged(*seen: Snapshot | None, caplog: pytest.LogCaptureFixture) -> list[str]:
    log = InstanceLog()
    with caplog.at_level("DEBUG"):
        for one in seen:
            log.update(one)
    return [record.getMessage() for record in caplog.records]


def snapshot_of(*devices: object) -> Snapshot:
    return snapshot(*(reading(one) for one in (gpu(0), *devices)))


def test_each_instance_is_logged_with_its_uuid_profile_and_labels(caplog: pytest.LogCaptureFixture) -> None:
    one = replace(ONE, index=1, profile="3g.40gb")
    assert logged(snapshot_of(one), caplog=caplog) == [
        f"MIG instance {one.uuid}: GPU 0, gi 2, ci 0, profile 3g.40gb; "
        'label gpu="0_2_0", or "0_1_0" with mig_label: device'
    ]


def test_instances_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    logged(snapshot_of(ONE), snapshot_of(OTHER), caplog=caplog)
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


def test_an_unchanged_instance_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert len(logged(snapshot_of(ONE), snapshot_of(ONE), None, snapshot_of(ONE), caplog=caplog)) == 1


def test_a_removed_and_an_added_instance_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    first, come, gone = logged(snapshot_of(ONE), snapshot_of(OTHER), caplog=caplog)
    assert ONE.uuid in first
    assert OTHER.uuid in come
    assert gone.startswith(f"MIG instance is gone: {ONE.uuid}")


def test_instances_of_an_incomplete_list_are_not_logged_as_gone(caplog: pytest.LogCaptureFixture) -> None:
    failed = replace(snapshot(), devices_failed=True)
    assert len(logged(snapshot_of(ONE), failed, snapshot_of(ONE), caplog=caplog)) == 1


def test_a_gpu_without_instances_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(snapshot_of(), caplog=caplog) == []


def test_a_new_device_index_logs_the_new_label(caplog: pytest.LogCaptureFixture) -> None:
    lines = logged(snapshot_of(replace(ONE, index=0)), snapshot_of(replace(ONE, index=2)), caplog=caplog)
    assert [line.rpartition("or ")[2].split()[0] for line in lines] == ['"0_0_0"', '"0_2_0"']
