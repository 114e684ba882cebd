"""Several nodes in one table of `top`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any

import pytest

from gpuledger.app.top_feeds import SeveralNodesFeed, merge_snapshots
from gpuledger.model.errors import GpuledgerError
from gpuledger.terminal.settings import NodeAccessSettings
from gpuledger.terminal.snapshot import parse_snapshot
from scripted_target import Answer, Target, scripted
from unit.terminal.support import device, process, snapshot


def body(node: str, *gpus: str) -> dict[str, Any]:
    made = snapshot(devices=[device(gpu) for gpu in gpus], processes=[process(1, gpu) for gpu in gpus])
    return {**made, "node": node}


def test_gpus_and_processes_have_the_name_of_their_node() -> None:
    merged = parse_snapshot(merge_snapshots([("gpu-1", body("box", "0", "1")), ("gpu-2", body("box", "0"))]))
    assert [row.place for row in merged.devices] == ["gpu-1:0", "gpu-1:1", "gpu-2:0"]
    assert [row.place for row in merged.processes] == ["gpu-1:0", "gpu-1:1", "gpu-2:0"]
    # Simulated nodes have equal UUIDs.
    assert len({row.device_key for row in merged.devices}) == 3
    assert (merged.node, merged.healthy, merged.readings) == ("gpu-1, gpu-2", True, True)


def test_what_differs_between_nodes_is_not_that_of_the_first() -> None:
    def of(node: str, **source: Any) -> tuple[str, dict[str, Any]]:
        return node, {**body(node, "0"), "source": {"name": "nvml", **source}}

    real, newer = of("a", driver_version="570.1", simulated=False), of("b", driver_version="580.2")
    simulated = of("c", driver_version="570.1", simulated=True, detail="workstation")
    merged = parse_snapshot(merge_snapshots([real, newer, simulated]))
    assert (merged.driver_version, merged.source) == ("570.1, 580.2", "nvml")
    assert (merged.simulated, merged.detail) == (True, "workstation")


def test_the_status_names_the_node_that_is_ill() -> None:
    ill = {**body("gpu-2", "0"), "status": {"text": "stalled", "healthy": False, "readings": True}}
    merged = parse_snapshot(merge_snapshots([("gpu-1", body("gpu-1", "0")), ("gpu-2", ill)]))
    assert (merged.status, merged.healthy) == ("gpu-2: stalled", False)


@pytest.fixture
def nodes() -> Iterator[list[Target]]:
    with ExitStack() as stack:

        def serve(name: str, run: str) -> Target:
            answer = Answer(
                json.dumps(body(name, "0")), "application/json", headers=(("ETag", f'W/"{run}-1"'),)
            )
            return stack.enter_context(scripted(lambda _: answer))

        yield [serve("gpu-1", "1"), serve("gpu-2", "2"), serve("gpu-1", "1")]


def feed_of(*ports: int) -> SeveralNodesFeed:
    return SeveralNodesFeed([f"http://127.0.0.1:{port}" for port in ports], NodeAccessSettings())


def test_a_node_that_is_gone_costs_only_its_rows_and_is_named(nodes: list[Target]) -> None:
    feed = feed_of(nodes[0].port, 1, nodes[1].port)
    try:
        found = parse_snapshot(feed.snapshot())
        assert [row.place for row in found.devices] == ["gpu-1:0", "gpu-2:0"]
        (remark,) = feed.remarks()
        assert "http://127.0.0.1:1 cannot be reached" in remark
    finally:
        feed.close()


def test_two_urls_of_one_node_count_once(nodes: list[Target]) -> None:
    feed = feed_of(nodes[0].port, nodes[2].port, nodes[1].port)
    try:
        assert [row.place for row in parse_snapshot(feed.snapshot()).devices] == ["gpu-1:0", "gpu-2:0"]
    finally:
        feed.close()


@pytest.mark.parametrize(
    ("gone", "places"),
    [
        (["", "1", ""], [["box:0", "box#2:7"], ["box#2:7"], ["box:0", "box#2:7"]]),
        (["", "2", ""], [["box:0", "box#2:7"], ["box:0"], ["box:0", "box#2:7"]]),
        (["1", "", "2"], [["box:7"], ["box#2:0", "box:7"], ["box#2:0"]]),
    ],
)
def test_nodes_with_equal_names_keep_their_numbers_while_one_is_gone(
    gone: list[str], places: list[list[str]]
) -> None:
    away = [""]

    def serve(run: str, gpu: str) -> AbstractContextManager[Target]:
        text, headers = json.dumps(body("box", gpu)), (("ETag", f'W/"{run}-1"'),)
        answer = Answer(text, "application/json", headers=headers)
        return scripted(lambda _: Answer("", status=503) if away == [run] else answer)

    found = []
    with serve("1", "0") as one, serve("2", "7") as two, closing(feed_of(one.port, two.port)) as feed:
        for away[0] in gone:
            found.append([row.place for row in parse_snapshot(feed.snapshot()).devices])
    assert found == places


def test_without_any_node_the_first_reason_is_the_error() -> None:
    feed = feed_of(1)
    with pytest.raises(GpuledgerError, match="cannot be reached"):
        feed.snapshot()
    feed.close()
