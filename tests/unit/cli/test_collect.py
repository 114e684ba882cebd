"""A single reading of `collect` with a hanging driver or an internal error."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpuledger.app.node_parts import NodeParts
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


@pytest.mark.parametrize(
    ("every", "given", "hold"),
    [(5.0, None, 35.0), (60.0, None, 90.0), (300.0, None, 330.0), (60.0, 5.0, 90.0), (60.0, 120.0, 120.0)],
)
def test_a_new_series_is_in_a_file_as_0_for_at_least_half_a_minute(
    every: float, given: float | None, hold: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, object] = {}

    def stop(values: dict[str, object], *_: object, **__: object) -> None:
        seen.update(values)
        raise GpuledgerError("enough")

    monkeypatch.setattr(collect, "assemble_parts", stop)
    flags = ["--source", "simulator", "--textfile-dir", str(tmp_path), "--every", f"{every:g}s"]
    with pytest.raises(GpuledgerError, match="enough"):
        collect.run([*flags, *([] if given is None else ["--energy.zero-hold", f"{given:g}s"])])
    assert seen["energy.zero_hold"] == hold
