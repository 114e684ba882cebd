"""The hardware test as a test of pytest: `python -m pytest tests/hardware`. Skipped without an NVIDIA GPU."""

from __future__ import annotations

import os
import shlex

import pytest

from gpuledger.model.checks import Verdict
from hardware.run import run


def test_the_numbers_of_this_machine_are_right() -> None:
    code, findings, why = run(shlex.split(os.environ.get("GPULEDGER_HARDWARE", "")))
    if why:
        pytest.skip(f"this machine cannot run the hardware test: {why}")
    assert [f"{one.what}: {one.why}" for one in findings if one.verdict is Verdict.FAILS] == []
    assert code == 0
