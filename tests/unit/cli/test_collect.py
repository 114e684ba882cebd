"""A single reading of `collect` with a hanging driver or an internal error."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from gpuledger.app.node_assembly import NodeParts
from gpuledger.cli import collect
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import SourceInfo
from gpuledger.workloads.owner_indexes import OwnerIndexes

INFO = SourceInfo("nvml")


def parts(tick: object) -> NodeParts:
    state = NodeState(unix=0.0, source=INFO)
    stand_in = SimpleNamespace(
        node=SimpleNamespace(tick=tick),
        source=SimpleNamespace(info=INFO, close=lambda: None),
        pages=SimpleNamespace(encode_text=lambda names: (state, b"")),
        owner_indexes=OwnerIndexes(),
    )
    return cast("NodeParts", stand_in)


def test_a_reading_that_hangs_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "READING_TIMEOUT", 0.01)
    released = threading.Event()
    try:
        with pytest.raises(SourceUnavailable, match=r"no reading for 0\.01 s: nvml does not answer"):
            collect._read_once(parts(released.wait), ("process",))
    finally:
        released.set()


def test_a_failed_reading_is_not_written() -> None:
    with pytest.raises(GpuledgerError, match="please report the log lines above"):
        collect._read_once(parts(lambda: None), ("process",))
