"""One target over time, and targets that come and go: what is handed over, and when."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import Collection
from dataclasses import fields, replace
from urllib.parse import urljoin

import pytest

from gpuledger.agent.agent import AgentView
from gpuledger.agent.deliver.records import Block
from gpuledger.agent.deliver.state import ReceiverState
from gpuledger.agent.families import SPECS, agent_families
from gpuledger.agent.pages import render, routes_of
from gpuledger.agent.relabel.rule import Relabelling, Rule
from gpuledger.agent.scrape.labelling import Delivery
from gpuledger.agent.scrape.loop import Beat, Deliveries, TargetLoop
from gpuledger.agent.scrape.pool import Pool
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.exposition.remote_write import STALE
from gpuledger.exposition.text import encode_text
from gpuledger.host.clock import SystemClock
from gpuledger.http.routes import Request, Response
from gpuledger.operator.status import Targets
from gpuledger.operator.targets import read_prometheus
from running import promtool_check
from scripted_target import Answer, scripted
from write_request import series_of

ALL = Deliveries(Delivery())
Told = dict[str, float | None]


class Taken:
    """What was handed over, block by block: series by name (None: ended), and for whom."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.receivers: list[Collection[str] | None] = []

    def accept(self, block: Block, receivers: Collection[str] | None) -> None:
        self.blocks.append(block)
        self.receivers.append(receivers)

    def told(self, number: int = -1) -> Told:
        found: Told = {}
        for labels, ((value, _),) in series_of(self.blocks[number].payload):
            found[dict(labels)["__name__"]] = None if value == STALE else struct.unpack("<d", value)[0]
        return found


def target(port: int, settings: ScrapeSettings | None = None) -> Target:
    url = f"http://127.0.0.1:{port}/metrics"
    return Target("t", url, (("instance", "i"), ("job", "t")), settings or ScrapeSettings(interval=1.0))


def scraped(
    pages: list[Answer], settings: ScrapeSettings | None = None, deliveries: Deliveries = ALL
) -> Taken:
    """Each page scraped once."""
    taken, left = Taken(), list(pages)

    async def run(port: int) -> None:
        loop = TargetLoop(target(port, settings), deliveries, taken.accept, SystemClock())
        for number in range(len(pages)):
            await loop.scrape(1_700_000_000_000 + number)
        loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: left.pop(0)) as one:
        asyncio.run(run(one.port))
    return taken


def test_a_scrape_is_one_block_with_what_tells_of_it() -> None:
    taken = scraped([Answer("a 1\nb 2\n")])
    told = taken.told()
    assert told.pop("scrape_duration_seconds") is not None
    assert told == {
        "a": 1.0,
        "b": 2.0,
        "up": 1.0,
        "scrape_samples_scraped": 2.0,
        "scrape_samples_post_metric_relabeling": 2.0,
        "scrape_series_added": 2.0,
    }
    (block,) = taken.blocks
    assert (block.samples, block.oldest, block.newest) == (7, 1_700_000_000_000, 1_700_000_000_000)


def test_a_failed_scrape_is_down_and_ends_what_was_told() -> None:
    taken = scraped([Answer("a 1\n"), Answer("", status=500), Answer("a 1\n")])
    second = taken.told(1)
    assert (second["a"], second["up"]) == (None, 0.0)
    assert (taken.told(2)["a"], taken.told(2)["up"]) == (1.0, 1.0)


def test_all_blocks_of_a_target_have_the_same_shard() -> None:
    assert len({block.shard for block in scraped([Answer("a 1\n")] * 3).blocks}) == 1


def test_a_sample_with_its_own_time_is_told_at_it() -> None:
    scrape, own = scraped([Answer("a 1 1600000000123\nold 1 -5\nb 1\n")]).blocks
    times = {
        dict(labels)["__name__"]: time
        for block in (scrape, own)
        for labels, ((_, time),) in series_of(block.payload)
    }
    assert (times["a"], times["old"], times["b"]) == (1_600_000_000_123, -5, 1_700_000_000_000)
    assert (scrape.oldest, scrape.newest) == (1_700_000_000_000, 1_700_000_000_000)
    # By itself, since a receiver may refuse it, and then refuses what came with it.
    assert (own.samples, own.oldest, own.newest) == (2, -5, 1_600_000_000_123)
    assert own.shard == scrape.shard


def test_receivers_with_other_rules_get_their_own_block() -> None:
    drop = Relabelling((Rule(action="drop", source_labels=("__name__",), regex="a|scrape_.*"),))
    other = Delivery((("cluster", "c"),), drop)
    deliveries = Deliveries(
        Delivery((("cluster", "c"),)), frozenset({"plain"}), ((other, frozenset({"less"})),)
    )
    taken = scraped([Answer("a 1\nb 2 1600000000000\nc 3\n"), Answer("a 1\n")], deliveries=deliveries)
    assert taken.receivers == [{"plain"}, {"plain"}, {"less"}, {"less"}, {"plain"}, {"less"}]
    assert (taken.told(2), taken.told(3)) == ({"c": 3.0, "up": 1.0}, {"b": 2.0})
    assert taken.told(5) == {"c": None, "up": 1.0}
    assert all(("cluster", "c") in labels for labels, _ in series_of(taken.blocks[2].payload))


ROUTED = Deliveries(
    Delivery(),
    frozenset({"plain"}),
    ((Delivery((), Relabelling((Rule(action="labeldrop", regex="job"),))), frozenset({"other"})),),
)


def test_a_receiver_with_other_rules_gets_everything_again_after_failures() -> None:
    page = Answer("".join(f"a{number} {number}\n" for number in range(200)))
    failed = Answer("", status=500)
    taken = scraped([page, failed, failed, page], deliveries=ROUTED)
    assert taken.receivers[-1] == {"other"}
    assert taken.told() == taken.told(-2)
    assert len(taken.told()) == 205


def test_a_page_that_is_refused_with_other_series_each_time_takes_no_more_and_more_memory() -> None:
    told = [Answer('a{pod="0"} 1\nb 1 1700000000000\n')]
    refused = [
        Answer("".join(f'a{{pod="{number}-{each}"}} 1\n' for each in range(50))) for number in range(20)
    ]
    pages, taken, kept = [*told, *refused, *told], Taken(), list[int]()

    async def run(port: int) -> None:
        loop = TargetLoop(
            target(port, ScrapeSettings(interval=1.0, sample_limit=9)), ROUTED, taken.accept, SystemClock()
        )
        for number in range(22):
            await loop.scrape(1_700_000_000_000 + number)
            kept.append(loop.state.kept_bytes)
        loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: pages.pop(0)) as one:
        asyncio.run(run(one.port))
    assert max(kept[10:]) <= max(kept[:10])
    assert taken.receivers[-2:] == [{"other"}] * 2
    assert {"a", "up"} <= set(taken.told(-2))
    assert set(taken.told()) == {"b"}


def test_a_receiver_with_other_rules_gets_the_end_of_what_new_rules_drop() -> None:
    taken = Taken()
    drop = Relabelling((Rule(action="drop", source_labels=("__name__",), regex="a"),))

    async def run(port: int) -> None:
        before = TargetLoop(target(port), ROUTED, taken.accept, SystemClock())
        await before.scrape(1_700_000_000_000)
        changed = target(port, ScrapeSettings(interval=1.0, relabelling=drop))
        after = TargetLoop(changed, ROUTED, taken.accept, SystemClock())
        after.inherit(before)
        await after.scrape(1_700_000_001_000)
        before.close()
        after.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\nb 2\n")) as one:
        asyncio.run(run(one.port))
    assert taken.receivers[-1] == {"other"}
    assert taken.told()["a"] is None


@pytest.mark.parametrize(
    ("page", "honored"),
    [("DCGM_FI_DEV_GPU_TEMP", True), ("# HELP x y\ngpuledger_build_info", True), ("node_load1", False)],
)
def test_without_a_word_a_gpu_exporters_labels_stand(page: str, honored: bool) -> None:
    taken = scraped([Answer(page + '{job="mine"} 1\n')])
    labels = [dict(labels) for labels, _ in series_of(taken.blocks[0].payload)]
    assert any(found["job"] == "mine" for found in labels) is honored


def test_extra_metrics_are_told_when_asked_for() -> None:
    settings = ScrapeSettings(interval=1.0, timeout=0.5, sample_limit=9, extra_metrics=True)
    told = scraped([Answer("a 1\n")], settings).told()
    assert (told["scrape_timeout_seconds"], told["scrape_sample_limit"]) == (0.5, 9.0)
    assert told["scrape_body_size_bytes"] == 4.0


def test_a_target_that_is_taken_out_ends_after_a_while_and_a_changed_one_goes_on() -> None:
    quick = ScrapeSettings(interval=0.1, timeout=0.1)
    fewer = replace(
        quick, relabelling=Relabelling((Rule(action="drop", source_labels=("__name__",), regex="a"),))
    )
    taken = Taken()

    async def until(condition: str, wanted: float | None) -> None:
        async with asyncio.timeout(30):
            while not any(taken.told(at).get(condition, 7.0) == wanted for at in range(len(taken.blocks))):
                await asyncio.sleep(0.01)

    async def run(port: int) -> None:
        pool = Pool(taken.accept, SystemClock())
        pool.become([target(port, quick)], ALL)
        await until("a", 1.0)
        pool.become([target(port, fewer)], ALL)
        await until("a", None)
        assert not any(taken.told(at).get("b", 2.0) is None for at in range(len(taken.blocks)))
        pool.become([], ALL)
        await until("b", None)
        assert taken.told()["up"] is None
        await pool.stop()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\nb 2\n")) as one:
        asyncio.run(run(one.port))


def test_targets_that_are_equal_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        pool = Pool(Taken().accept, SystemClock())
        for _ in range(3):
            pool.become([target(1), target(1)], ALL)
        assert len(pool.loops) == 1
        await pool.stop()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        "http://127.0.0.1:1/metrics of t is there twice with equal labels"
    ]


def test_a_clock_in_1970_tells_its_own_time() -> None:
    taken = Taken()

    async def run(port: int) -> None:
        loop = TargetLoop(target(port), ALL, taken.accept, SystemClock())
        await loop.scrape(1_000)
        loop.close()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\n")) as one:
        asyncio.run(run(one.port))
    (block,) = taken.blocks
    assert taken.told()["a"] == 1.0
    assert {moment for _, ((_, moment),) in series_of(block.payload)} == {1_000}
    assert (block.oldest, block.newest) == (1_000, 1_000)


def test_a_scrape_that_cannot_be_handed_over_is_not_the_last_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = Taken()
    tried = 0

    def accept(block: Block, receivers: Collection[str] | None) -> None:
        nonlocal tried
        tried += 1
        if tried <= 3:
            raise MemoryError
        taken.accept(block, receivers)

    async def run(port: int) -> None:
        pool = Pool(accept, SystemClock())
        pool.become([target(port, ScrapeSettings(interval=0.1, timeout=0.1))], ALL)
        async with asyncio.timeout(30):
            while not taken.blocks:
                await asyncio.sleep(0.01)
        await pool.stop()
        await asyncio.sleep(0)

    with scripted(lambda path: Answer("a 1\n")) as one:
        asyncio.run(run(one.port))
    assert caplog.text.count("could not be handed over") == 1


def test_beats_are_spread_and_evenly_apart() -> None:
    beats = [Beat(15.0, digest).next(1_000_000.0) for digest in range(0, 15_000, 1000)]
    assert len(set(beats)) == 15
    assert max(beats) - min(beats) == 14_000
    beat = Beat(15.0, 7)
    first = beat.next(1_000_000.0)
    assert beat.next(first / 1000 - 0.001, first) == first + 15_000
    assert beat.next(first / 1000 + 40.0, first) == first + 45_000


def test_a_timestamp_is_the_beats_own_when_it_is_hardly_late() -> None:
    beat = Beat(15.0, 0)
    assert beat.timestamp(15_000, 15.0015) == 15_000
    assert beat.timestamp(15_000, 15.0025) == 15_002


def view_of(loops: list[TargetLoop], *receivers: ReceiverState) -> AgentView:
    totals = {loop.target.group: loop.totals for loop in loops}
    return AgentView(1_700_000_100.0, tuple(loops), totals, receivers, 2, "", 1.0)


def test_the_agents_own_page_and_metrics_tell_of_a_target_that_fails() -> None:
    loop = TargetLoop(target(1), ALL, Taken().accept, SystemClock())
    asyncio.run(loop.scrape(1_700_000_000_000))
    page = render(replace(view_of([loop]), error="agent.yaml: <b>"))
    assert "down at the endpoint<br>cannot connect: connection refused" in page
    assert "100 s ago" in page
    assert "&lt;b&gt;" in page
    text = encode_text(agent_families(view_of([loop]))).decode()
    assert 'gpuledger_agent_targets{group="t",state="down"} 1\n' in text
    assert 'gpuledger_agent_scrape_failures_total{group="t",reason="request"} 1\n' in text
    assert promtool_check(text) == (0, [])


def test_programs_are_told_in_prometheuss_words_why_a_target_is_down() -> None:
    loops = [TargetLoop(target(1), ALL, Taken().accept, SystemClock()) for _ in range(2)]
    asyncio.run(loops[0].scrape(1_700_000_000_000))
    answer = routes_of(lambda: view_of(loops)).respond(Request("GET", "/api/v1/targets", "state=active"))
    assert isinstance(answer, Response)
    assert answer.content_type == "application/json"
    down, unknown = json.loads(answer.body)["data"]["activeTargets"]
    assert (down["health"], down["scrapePool"], down["scrapeUrl"]) == ("down", "t", loops[0].target.url)
    assert down["lastError"] == "cannot connect: connection refused"
    assert down["lastScrape"] == "2023-11-14T22:13:20Z"
    assert (unknown["health"], unknown["lastError"]) == ("unknown", "")
    assert read_prometheus(answer.body) == Targets(2, 0, 1, f"{loops[0].target.url}: {down['lastError']}")


@pytest.mark.parametrize("refreshing", [True, False], ids=["refreshing", "still"])
def test_links_of_the_page_lead_to_the_agents_own_pages_below_whatever_prefix_a_proxy_has(
    refreshing: bool,
) -> None:
    page = render(view_of([]), refreshing=refreshing)
    here = "https://proxy/agents/0/" + ("" if refreshing else "?still")
    links = [urljoin(here, link) for link in re.findall(r'href="([^"]*)"', page)]
    below = ["metrics", "-/healthy", "-/ready", "?still" if refreshing else ""]
    assert links == [f"https://proxy/agents/0/{path}" for path in below]


def test_a_whole_document_as_an_error_is_cut_on_the_page_and_escaped() -> None:
    loop = TargetLoop(target(1), ALL, Taken().accept, SystemClock())
    loop.state.up, loop.state.error = False, "<html> " * 500
    page = render(view_of([loop]))
    assert page.count("&lt;html&gt;") < 30
    assert "<html> " not in page


def test_a_receiver_that_refuses_everything_is_not_up_and_the_page_begins_with_it() -> None:
    quiet = ReceiverState(
        **dict.fromkeys(("name", "url", "last_error"), "r"),
        **dict.fromkeys([field.name for field in fields(ReceiverState) if field.type == "int"], 0),
        **dict.fromkeys(("oldest", "newest_accepted", "newest_sent", "last_success", "last_error_at")),
        failing=False,
        refusing=False,
    )
    view = view_of([], quiet, replace(quiet, name="deaf", refusing=True, dropped={"rejected": 1234}))
    page = render(view)
    assert (
        "<strong>1</strong> of 2 receivers take nothing; <strong>1,234</strong> samples were dropped." in page
    )
    assert "refusing<br>" in page
    text = encode_text(agent_families(view)).decode()
    assert 'gpuledger_agent_receiver_up{receiver="r"} 1\n' in text
    assert 'gpuledger_agent_receiver_up{receiver="deaf"} 0\n' in text
    assert "take nothing" not in render(view_of([], quiet))


def test_every_family_is_declared_once() -> None:
    names = [spec.name for spec in SPECS]
    assert len(names) == len(set(names))
