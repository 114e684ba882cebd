"""How many GPUs there are, and how many there should be."""

from __future__ import annotations

import pytest

from builders import gpu, instance, reading, snapshot
from gpuledger.model.snapshot import Snapshot
from gpuledger.node.device_log import Census


def having(*indexes: int) -> Snapshot:
    return snapshot(*(reading(gpu(index)) for index in indexes))


def said(expected: int, *seen: Snapshot | None, caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    census = Census(expected)
    with caplog.at_level("INFO"):
        for one in seen:
            census.take(one)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_the_right_number_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert said(2, having(0, 1), having(0, 1), caplog=caplog) == []


def test_whoever_expects_nothing_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert said(0, having(), having(0, 1), having(0), caplog=caplog) == []


def test_another_number_is_said_once_with_those_that_are_there(caplog: pytest.LogCaptureFixture) -> None:
    assert said(4, having(0, 1, 3), having(0, 1, 3), caplog=caplog) == [
        (
            "WARNING",
            "3 GPUs are read (0, 1, 3), and --gpu-count says 4: `gpuledger doctor` says what is missing",
        )
    ]


def test_each_change_is_said_and_so_is_the_end_of_it(caplog: pytest.LogCaptureFixture) -> None:
    lines = said(2, having(0), having(), having(0, 1), having(0, 1), having(0, 1, 2), caplog=caplog)
    assert [line.split(",")[0] for _, line in lines] == [
        "1 GPUs are read (0)",
        "0 GPUs are read (none)",
        "the 2 GPUs of --gpu-count are read again",
        "3 GPUs are read (0",
    ]


def test_instances_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    whole = gpu(0)
    cut = snapshot(reading(whole), reading(instance(whole, 1)), reading(instance(whole, 2)))
    assert said(1, cut, caplog=caplog) == []


def test_what_could_not_be_listed_is_no_number(caplog: pytest.LogCaptureFixture) -> None:
    assert said(2, None, snapshot(reading(gpu(0)), devices_failed=True), caplog=caplog) == []
