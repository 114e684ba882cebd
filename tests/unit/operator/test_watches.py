"""The watches of a term are stopped together; kinds that the API server no longer serves are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused
from gpuledger.operator.kinds import GPU_MONITOR_KIND
from gpuledger.operator.operator import GpuMonitorOperator
from gpuledger.operator.render_context import OperatorIdentity, RenderContext
from gpuledger.operator.settings import OperatorSettings
from gpuledger.operator.watches import ClusterWatch, KindWatch


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
    cluster = ClusterWatch(
        ApiServerAccess("http://127.0.0.1:1"),
        [GPU_MONITOR_KIND],
        ["gpu-monitoring"],
        lambda *_: None,
        lambda *_: None,
        SystemClock(),
    )
    with pytest.raises(RuntimeError, match="thread"):
        asyncio.run(cluster.run())
    assert len(started) == 3
    assert set(started) <= set(stopped)


@pytest.mark.parametrize("status", [403, 404])
def test_a_kind_counts_as_refused_while_it_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    answers: dict[str, list[bytes] | None] = {}

    @contextmanager
    def get(_: ApiClient, _path: str, query: dict[str, str], **_more: object) -> Iterator[list[bytes]]:
        answer = answers["watch" if "watch" in query else "list"]
        if answer is None:
            raise ApiServerRefused("refused", status)
        yield answer

    monkeypatch.setattr(ApiClient, "get", get)
    access = ApiServerAccess("http://127.0.0.1:1")
    watch = KindWatch(access, GPU_MONITOR_KIND, "", lambda *_: None, SystemClock())
    listed = [b'{"metadata": {"resourceVersion": "1"}, "items": []}']
    # The CRD vanishes: first the watch is refused, then every list. A refused watch alone is no problem,
    # because lists still show changes.
    steps = [(listed, [], False), (None, None, False), (None, None, True), (listed, None, False)]
    for answers["list"], answers["watch"], refused in steps:
        watch._list_and_watch()
        assert watch.refused is refused


def test_a_crd_that_vanishes_during_a_term_is_reported_as_not_served() -> None:
    identity = OperatorIdentity(ApiServerAccess("http://127.0.0.1:1"), "n", "me")
    operator = GpuMonitorOperator(identity, RenderContext(), OperatorSettings(), SystemClock())
    operator._served = {"GpuMonitor": True, "WhatapAgent": True}
    watch = SimpleNamespace(refused_kinds={"WhatapAgent"})
    operator._term = SimpleNamespace(monitors=(), owned=(), watch=watch)  # type: ignore[assignment]
    assert operator.view().served == {"GpuMonitor": True, "WhatapAgent": False}
