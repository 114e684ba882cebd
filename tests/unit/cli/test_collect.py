"""What one look of `collect` does when the driver does not come back, or the program is wrong."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from gpuledger.app.wiring import Parts
from gpuledger.cli import collect
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import SourceInfo
from gpuledger.workloads.owner_indexes import OwnerIndexes

INFO = SourceInfo("nvml")


def parts(tick: object) -> Parts:
    page = NodeState(unix=0.0, source=INFO)
    stand_in = SimpleNamespace(
        node=SimpleNamespace(tick=tick),
        source=SimpleNamespace(info=INFO, close=lambda: None),
        pages=SimpleNamespace(text=lambda names: (page, b"")),
        maps=OwnerIndexes(),
    )
    return cast("Parts", stand_in)


def test_a_reading_that_does_not_come_back_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "PATIENCE", 0.01)
    released = threading.Event()
    try:
        with pytest.raises(SourceUnavailable, match=r"no reading for 0\.01 s: nvml does not answer"):
            collect._read_once(parts(released.wait), ("process",))
    finally:
        released.set()


def test_a_reading_that_was_never_made_is_not_told_as_one() -> None:
    with pytest.raises(GpuledgerError, match="please report it"):
        collect._read_once(parts(lambda: None), ("process",))
