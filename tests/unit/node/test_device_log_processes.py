"""The log message about processes without series."""

from __future__ import annotations

import pytest

from builders import gpu, process
from gpuledger.model.session import LedgerState
from gpuledger.node.device_log import OmittedProcessLog


def test_processes_without_series_are_logged_once_for_each_device(caplog: pytest.LogCaptureFixture) -> None:
    omitted_log = OmittedProcessLog()
    first, second = (process(gpu(), pid).key for pid in (1, 2))
    for omitted in ({}, {"GPU-0": frozenset()}, {"GPU-0": frozenset({first, second})}):
        omitted_log.update(LedgerState(omitted=omitted))
    omitted_log.update(LedgerState(omitted={"GPU-0": frozenset({first}), "GPU-1": frozenset({second})}))
    assert [record.getMessage().partition(" beyond")[0] for record in caplog.records] == [
        "GPU-0: 2 processes",
        "GPU-1: 1 processes",
    ]
