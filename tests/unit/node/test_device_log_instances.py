"""The lines about MIG instances in the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, instance, reading, snapshot
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.device_log import InstanceLog

ONE, OTHER = instance(gpu(0), 2, 0), instance(gpu(0), 9, 0)


def said(*seen: Snapshot | None, caplog: pytest.LogCaptureFixture) -> list[str]:
    log = InstanceLog()
    with caplog.at_level("INFO"):
        for one in seen:
            log.take(one)
    return [record.getMessage() for record in caplog.records]


def having(*devices: object) -> Snapshot:
    return snapshot(*(reading(one) for one in (gpu(0), *devices)))


def test_each_instance_is_named_with_its_place_profile_and_labels(caplog: pytest.LogCaptureFixture) -> None:
    one = replace(ONE, index=1, profile="3g.40gb")
    assert said(having(one), caplog=caplog) == [
        f"MIG instance {one.uuid}: GPU 0, gi 2, ci 0, profile 3g.40gb; "
        'label gpu="0_2_0", or "0_1_0" with mig_label: device'
    ]


def test_what_stays_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    assert len(said(having(ONE), having(ONE), None, having(ONE), caplog=caplog)) == 1


def test_an_instance_that_goes_and_one_that_comes_are_said(caplog: pytest.LogCaptureFixture) -> None:
    first, come, gone = said(having(ONE), having(OTHER), caplog=caplog)
    assert ONE.uuid in first
    assert OTHER.uuid in come
    assert gone.startswith(f"MIG instance is gone: {ONE.uuid}")


def test_devices_that_could_not_be_listed_are_not_gone(caplog: pytest.LogCaptureFixture) -> None:
    failed = replace(snapshot(), devices_failed=True)
    assert len(said(having(ONE), failed, having(ONE), caplog=caplog)) == 1


def test_a_gpu_without_instances_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert said(having(), caplog=caplog) == []


def test_another_order_of_the_drivers_devices_is_another_label(caplog: pytest.LogCaptureFixture) -> None:
    lines = said(having(replace(ONE, index=0)), having(replace(ONE, index=2)), caplog=caplog)
    assert [line.rpartition("or ")[2].split()[0] for line in lines] == ['"0_0_0"', '"0_2_0"']
