"""The watches of one term are stopped together, however the term ends."""

from __future__ import annotations

import asyncio

import pytest

from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.operator.kinds import GPU_MONITOR_KIND
from gpuledger.operator.watches import ClusterWatch, KindWatch, WatchedKinds


def test_watches_that_were_started_are_stopped_if_another_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []
    stopped: list[str] = []

    def start(watch: KindWatch) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(watch.name)

    monkeypatch.setattr(KindWatch, "start", start)
    monkeypatch.setattr(KindWatch, "stop", lambda watch: stopped.append(watch.name))
    watched = WatchedKinds([GPU_MONITOR_KIND], ["gpu-monitoring"])
    cluster = ClusterWatch(
        ApiServerAccess("http://127.0.0.1:1"), watched, lambda *_: None, lambda *_: None, SystemClock()
    )
    with pytest.raises(RuntimeError, match="thread"):
        asyncio.run(cluster.run())
    assert len(started) == 3
    assert set(started) <= set(stopped)
