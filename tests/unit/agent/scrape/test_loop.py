"""Scrape loops and the scrape pool: which blocks are delivered, and when."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection
from dataclasses import fields, replace
from urllib.parse import urljoin

import pytest

from gpuledger.agent.agent import AgentView
from gpuledger.agent.deliver.records import Block
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.agent.discovery.discovery import Discovery
from gpuledger.agent.families import SPECS, agent_families
from gpuledger.agent.relabel.rules import RelabelRule, RelabelRules
from gpuledger.agent.scrape.loop import ReceiverRouting, ScrapeLoop, ScrapeSchedule
from gpuledger.agent.scrape.pool import ScrapePool
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.agent.scrape.settings import ScrapeSettings
from gpuledger.agent.status_page import agent_routes, render_status_page
from gpuledger.exposition.text import encode_text
from gpuledger.host.clock import SystemClock
from gpuledger.http.routes import Request, Response
from gpuledger.operator.status import TargetCounts
from gpuledger.operator.targets import parse_prometheus_targets
from running import PATIENCE, promtool_check
from scraped_blocks import ALL, Accepted, scraped, target
from scripted_target import Answer, scripted
from write_request import series_of


def test_a_scrape_is_one_block_with_its_report_series() -> None:
    accepted = scraped([Answer("a 1\nb 2\n")])
    values = accepted.values()
    assert values.pop("scrape_duration_seconds") is not None
    assert values == {
        "a": 1.0,
        "b": 2.0,
        "up": 1.0,
        "scrape_samples_scraped": 2.0,
        "scrape_samples_post_metric_relabeling": 2.0,
        "scrape_series_added": 2.0,
    }
    (block,) = accepted.blocks
    assert (block.samples, block.oldest, block.newest) == (7, 1_700_000_000_000, 1_700_000_000_000)


def test_a_failed_scrape_is_down_and_marks_its_series_stale() -> None:
    accepted = scraped([Answer("a 1\n"), Answer("", status=500), Answer("a 1\n")])
    second = accepted.values(1)
    assert (second["a"], second["up"]) == (None, 0.0)
    assert (accepted.values(2)["a"], accepted.values(2)["up"]) == (1.0, 1.0)


def test_all_blocks_of_a_target_have_the_same_shard() -> None:
    assert len({block.shard for block in scraped([Answer("a 1\n")] * 3).blocks}) == 1


def test_a_sample_with_an_explicit_timestamp_keeps_it() -> None:
    scrape, own = scraped([Answer("a 1 1600000000123\nold 1 -5\nb 1\n")]).blocks
    times = {
        dict(labels)["__name__"]: time
        for block in (scrape, own)
        for labels, ((_, time),) in series_of(block.payload)
    }
    assert (times["a"], times["old"], times["b"]) == (1_600_000_000_123, -5, 1_700_000_000_000)
    assert (scrape.oldest, scrape.newest) == (1_700_000_000_000, 1_700_000_000_000)
    # In a separate block: a receiver that rejects it rejects its whole request.
    assert (own.samples, own.oldest, own.newest) == (2, -5, 1_600_000_000_123)
    assert own.shard == scrape.shard


def test_receivers_with_different_rules_get_separate_blocks() -> None:
    drop = RelabelRules((RelabelRule(action="drop", source_labels=("__name__",), regex="a|scrape_.*"),))
    other = WriteRelabeling((("cluster", "c"),), drop)
    routing = ReceiverRouting(
        WriteRelabeling((("cluster", "c"),)), frozenset({"plain"}), ((other, frozenset({"less"})),)
    )
    accepted = scraped([Answer("a 1\nb 2 1600000000000\nc 3\n"), Answer("a 1\n")], routing=routing)
    assert accepted.receivers == [{"plain"}, {"plain"}, {"less"}, {"less"}, {"plain"}, {"less"}]
    assert (accepted.values(2), accepted.values(3)) == ({"c": 3.0, "up": 1.0}, {"b": 2.0})
    assert accepted.values(5) == {"c": None, "up": 1.0}
    assert all(("cluster", "c") in labels for labels, _ in series_of(accepted.blocks[2].payload))


ROUTED = ReceiverRouting(
    WriteRelabeling(),
    frozenset({"plain"}),
    (
        (
            WriteRelabeling((), RelabelRules((RelabelRule(action="labeldrop", regex="job"),))),
            frozenset({"other"}),
        ),
    ),
)


def test_a_receiver_with_different_rules_gets_all_series_again_after_failures() -> None:
    page = Answer("".join(f"a{number} {number}\n" for number in range(200)))
    failed = Answer("", status=500)
    accepted = scraped([page, failed, failed, page], routing=ROUTED)
    assert accepted.receivers[-1] == {"other"}
    assert accepted.values() == accepted.values(-2)
    assert len(accepted.values()) == 205


def test_rejected_pages_with_new_series_each_time_do_not_grow_memory() -> None:
    good = [Answer('a{pod="0"} 1\nb 1 1700000000000\n')]
    rejected = [
        Answer("".join(f'a{{pod="{number}-{each}"}} 1\n' for each in range(50))) for number in range(20)
    ]
    pages, accepted, kept = [*good, *rejected, *good], Accepted(), list[int]()

    async def run(port: int) -> None:
        loop = ScrapeLoop(
            target(port, ScrapeSettings(interval=1.0, sample_limit=9)), ROUTED, accepted.accept, SystemClock()
        )
        for number in range(22):
            await loop.scrape(1_700_000_000_000 + number)
            kept.append(loop.state.kept_bytes)
        loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: pages.pop(0)) as server:
        asyncio.run(run(server.port))
    assert max(kept[10:]) <= max(kept[:10])
    assert accepted.receivers[-2:] == [{"other"}] * 2
    assert {"a", "up"} <= set(accepted.values(-2))
    assert set(accepted.values()) == {"b"}


def test_a_receiver_with_different_rules_gets_staleness_markers_for_newly_dropped_series() -> None:
    accepted = Accepted()
    drop = RelabelRules((RelabelRule(action="drop", source_labels=("__name__",), regex="a"),))

    async def run(port: int) -> None:
        before = ScrapeLoop(target(port), ROUTED, accepted.accept, SystemClock())
        await before.scrape(1_700_000_000_000)
        changed = target(port, ScrapeSettings(interval=1.0, metric_relabeling=drop))
        after = ScrapeLoop(changed, ROUTED, accepted.accept, SystemClock())
        after.inherit(before)
        await after.scrape(1_700_000_001_000)
        before.close()
        after.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\nb 2\n")) as server:
        asyncio.run(run(server.port))
    assert accepted.receivers[-1] == {"other"}
    assert accepted.values()["a"] is None


@pytest.mark.parametrize(
    ("page", "honored"),
    [("DCGM_FI_DEV_GPU_TEMP", True), ("# HELP x y\ngpuledger_build_info", True), ("node_load1", False)],
)
def test_by_default_labels_of_gpu_exporters_are_honored(page: str, honored: bool) -> None:
    accepted = scraped([Answer(page + '{job="mine"} 1\n')])
    labels = [dict(labels) for labels, _ in series_of(accepted.blocks[0].payload)]
    assert any(found["job"] == "mine" for found in labels) is honored


def test_extra_metrics_are_exported_when_enabled() -> None:
    settings = ScrapeSettings(interval=1.0, timeout=0.5, sample_limit=9, extra_metrics=True)
    values = scraped([Answer("a 1\n")], settings).values()
    assert (values["scrape_timeout_seconds"], values["scrape_sample_limit"]) == (0.5, 9.0)
    assert values["scrape_body_size_bytes"] == 4.0


def test_a_removed_target_is_marked_stale_later_and_a_changed_one_continues() -> None:
    quick = ScrapeSettings(interval=1.0, timeout=1.0)
    fewer = replace(
        quick,
        metric_relabeling=RelabelRules((RelabelRule(action="drop", source_labels=("__name__",), regex="a"),)),
    )
    accepted = Accepted()

    async def until(condition: str, wanted: float | None) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(
                accepted.values(at).get(condition, 7.0) == wanted for at in range(len(accepted.blocks))
            ):
                await asyncio.sleep(0.01)

    async def run(port: int) -> None:
        pool = ScrapePool(accepted.accept, SystemClock())
        pool.set_targets([target(port, quick)], ALL)
        await until("a", 1.0)
        pool.set_targets([target(port, fewer)], ALL)
        await until("a", None)
        assert not any(accepted.values(at).get("b", 2.0) is None for at in range(len(accepted.blocks)))
        pool.set_targets([], ALL)
        await until("b", None)
        assert accepted.values()["up"] is None
        await pool.stop()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\nb 2\n")) as server:
        asyncio.run(run(server.port))


def test_equal_targets_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        pool = ScrapePool(Accepted().accept, SystemClock())
        for _ in range(3):
            pool.set_targets([target(1), target(1)], ALL)
        assert len(pool.loops) == 1
        await pool.stop()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        "duplicate target http://127.0.0.1:1/metrics of t: equal URL and labels"
    ]


def test_a_clock_in_1970_gives_timestamps_in_1970() -> None:
    accepted = Accepted()

    async def run(port: int) -> None:
        loop = ScrapeLoop(target(port), ALL, accepted.accept, SystemClock())
        await loop.scrape(1_000)
        loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\n")) as server:
        asyncio.run(run(server.port))
    (block,) = accepted.blocks
    assert accepted.values()["a"] == 1.0
    assert {moment for _, ((_, moment),) in series_of(block.payload)} == {1_000}
    assert (block.oldest, block.newest) == (1_000, 1_000)


def test_a_failure_to_queue_samples_is_logged_once_and_scraping_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    accepted = Accepted()
    tried = 0

    def accept(block: Block, receivers: Collection[str] | None) -> None:
        nonlocal tried
        tried += 1
        if tried <= 3:
            raise MemoryError
        accepted.accept(block, receivers)

    async def run(port: int) -> None:
        pool = ScrapePool(accept, SystemClock())
        pool.set_targets([target(port, ScrapeSettings(interval=0.1, timeout=0.1))], ALL)
        async with asyncio.timeout(PATIENCE):
            while not accepted.blocks:
                await asyncio.sleep(0.01)
        await pool.stop()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\n")) as server:
        asyncio.run(run(server.port))
    assert caplog.text.count("could not be queued for delivery") == 1


def test_scrape_times_are_spread_over_the_interval_and_evenly_spaced() -> None:
    times = [ScrapeSchedule(15.0, digest).next_time(1_000_000.0) for digest in range(0, 15_000, 1000)]
    assert len(set(times)) == 15
    assert max(times) - min(times) == 14_000
    schedule = ScrapeSchedule(15.0, 7)
    first = schedule.next_time(1_000_000.0)
    assert schedule.next_time(first / 1000 - 0.001, first) == first + 15_000
    assert schedule.next_time(first / 1000 + 40.0, first) == first + 45_000


def test_a_slightly_late_scrape_gets_the_scheduled_timestamp() -> None:
    schedule = ScrapeSchedule(15.0, 0)
    assert schedule.timestamp(15_000, 15.0015) == 15_000
    assert schedule.timestamp(15_000, 15.0025) == 15_002


def view_of(loops: list[ScrapeLoop], *receivers: ReceiverState) -> AgentView:
    totals = {loop.target.group: loop.totals for loop in loops}
    discovery = Discovery(None, SystemClock())
    return AgentView(1_700_000_100.0, tuple(loops), totals, receivers, 2, "", 1.0, discovery)


def test_the_status_page_and_metrics_show_a_failing_target() -> None:
    loop = ScrapeLoop(target(1), ALL, Accepted().accept, SystemClock())
    asyncio.run(loop.scrape(1_700_000_000_000))
    page = render_status_page(replace(view_of([loop]), error="agent.yaml: <b>"))
    assert "down (no valid response)<br>cannot connect: connection refused" in page
    assert "100 s ago" in page
    assert "&lt;b&gt;" in page
    text = encode_text(agent_families(view_of([loop]))).decode()
    assert 'gpuledger_agent_targets{group="t",state="down"} 1\n' in text
    assert 'gpuledger_agent_scrape_failures_total{group="t",reason="request"} 1\n' in text
    assert promtool_check(text) == (0, [])


def test_the_targets_api_reports_a_down_target_like_prometheus() -> None:
    loops = [ScrapeLoop(target(1), ALL, Accepted().accept, SystemClock()) for _ in range(2)]
    asyncio.run(loops[0].scrape(1_700_000_000_000))
    answer = agent_routes(lambda: view_of(loops)).respond(Request("GET", "/api/v1/targets", "state=active"))
    assert isinstance(answer, Response)
    assert answer.content_type == "application/json"
    down, unknown = json.loads(answer.body)["data"]["activeTargets"]
    assert (down["health"], down["scrapePool"], down["scrapeUrl"]) == ("down", "t", loops[0].target.url)
    assert down["lastError"] == "cannot connect: connection refused"
    assert down["lastScrape"] == "2023-11-14T22:13:20Z"
    assert (unknown["health"], unknown["lastError"]) == ("unknown", "")
    assert parse_prometheus_targets(answer.body) == TargetCounts(
        2, 0, 1, f"{loops[0].target.url}: {down['lastError']}"
    )


@pytest.mark.parametrize("refreshing", [True, False], ids=["refreshing", "still"])
def test_links_of_the_status_page_work_behind_any_proxy_prefix(
    refreshing: bool,
) -> None:
    page = render_status_page(view_of([]), refreshing=refreshing)
    here = "https://proxy/agents/0/" + ("" if refreshing else "?still")
    links = [urljoin(here, link) for link in re.findall(r'href="([^"]*)"', page)]
    below = ["metrics", "-/healthy", "-/ready", "?still" if refreshing else ""]
    assert links == [f"https://proxy/agents/0/{path}" for path in below]


def test_a_long_error_is_shortened_and_escaped_on_the_status_page() -> None:
    loop = ScrapeLoop(target(1), ALL, Accepted().accept, SystemClock())
    loop.state.up, loop.state.error = False, "<html> " * 500
    page = render_status_page(view_of([loop]))
    assert page.count("&lt;html&gt;") < 30
    assert "<html> " not in page


def test_a_receiver_that_rejects_everything_is_down_and_in_the_page_summary() -> None:
    quiet = ReceiverState(
        **dict.fromkeys(("name", "url", "last_error"), "r"),
        **dict.fromkeys([field.name for field in fields(ReceiverState) if field.type == "int"], 0),
        **dict.fromkeys(("oldest", "newest_accepted", "newest_sent", "last_success", "last_error_at")),
        failing=False,
        refusing=False,
    )
    view = view_of([], quiet, replace(quiet, name="deaf", refusing=True, dropped={"rejected": 1234}))
    page = render_status_page(view)
    assert (
        "<strong>1</strong> of 2 receivers are failing; <strong>1,234</strong> samples were dropped." in page
    )
    assert "rejecting<br>" in page
    text = encode_text(agent_families(view)).decode()
    assert 'gpuledger_agent_receiver_up{receiver="r"} 1\n' in text
    assert 'gpuledger_agent_receiver_up{receiver="deaf"} 0\n' in text
    assert "receivers are failing" not in render_status_page(view_of([], quiet))


def test_every_family_is_declared_once() -> None:
    names = [spec.name for spec in SPECS]
    assert len(names) == len(set(names))
