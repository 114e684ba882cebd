"""Rises of token counters: births, restarts, pods of the same name, and servers that are scraped twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.fleet.scraped import LabelResolver, ScrapedRange
from gpuledger.ledger.report.tokens.token_rises import (
    ScrapedTokens,
    TokenRise,
    TokenRises,
    pods_that_began,
)
from gpuledger.ledger.report.tokens.token_sources import DEFAULT_SOURCES, OUTPUT, TokenMetric

VLLM = TokenMetric("vllm", OUTPUT, "vllm:generation_tokens_total")
NIM = TokenMetric("nim", OUTPUT, "generation_tokens_total", 'model_name!=""')
POD = ("s", "p")
Labels = Mapping[str, str]
# A series with its least and last value; None instead of the least: it did not exist when the range began.
Level = tuple[Labels, float, float]


def server(address: str = "10.0.0.1", job: str = "e", port: int = 8000, **more: str) -> Labels:
    target = {"job": job, "instance": f"{address}:{port}", "namespace": "s", "pod": "p"}
    return {**target, "model_name": "m", **more}


def scraped(
    levels: Sequence[Level],
    *,
    born: bool = False,
    up: Sequence[Labels] = (),
    metric: TokenMetric = VLLM,
    resets: Mapping[str, float] | None = None,
) -> ScrapedTokens:
    answers = {
        "last": [(labels, last) for labels, _, last in levels],
        "least": [(labels, least) for labels, least, _ in levels],
        "alive": [] if born else [(labels, least) for labels, least, _ in levels],
        **{name: [(labels, value) for labels, _, _ in levels] for name, value in (resets or {}).items()},
    }
    targets = [({"job": labels["job"], "instance": labels["instance"]}, 1.0) for labels in up]
    return ScrapedTokens(0.0, 3600.0, {metric: answers}, up_before=targets)


def rises_of(
    *parts: ScrapedTokens,
    before: ScrapedTokens | None = None,
    ahead: ScrapedTokens | None = None,
    new: bool = False,
) -> TokenRises:
    rises = TokenRises(DEFAULT_SOURCES)
    rises.begin(before or ScrapedTokens(-1.0, 0.0, {}), ahead)
    for part in parts:
        rises.add(part, {POD} if new else ())
    return rises


def total(rises: TokenRises) -> TokenRise:
    return reduce(TokenRise.plus, rises.totals().values(), TokenRise())


def tokens(*parts: ScrapedTokens, before: ScrapedTokens | None = None, new: bool = False) -> float:
    return total(rises_of(*parts, before=before, new=new)).amount


def test_a_counter_continues_from_its_last_value_before_the_range() -> None:
    before = scraped([(server(), 0, 1000)])
    assert tokens(scraped([(server(), 1200, 3000)]), before=before) == 2000


@pytest.mark.parametrize(
    ("new", "up", "expected"),
    [
        # The pod is new, or its server was scraped before the first token: from 0.
        (True, [], 20_000),
        (False, [server()], 20_000),
        # Prometheus did not see the server before: what came before its first value is not in the range.
        (False, [], 15_000),
    ],
)
def test_a_counter_that_is_born_with_the_first_token(new: bool, up: list[Labels], expected: float) -> None:
    assert tokens(scraped([(server(), 5000, 20_000)], born=True, up=up), new=new) == expected


def test_a_restart_of_one_of_two_replicas_keeps_the_tokens_of_both() -> None:
    other = {**server(), "pod": "q", "instance": "10.0.0.2:8000"}
    before = scraped([(server(), 0, 100), (other, 0, 1000)])
    part = scraped([(server(), 110, 200), (other, 10, 50)])
    assert tokens(part, before=before) == 150


def test_a_pod_of_the_same_name_with_another_address_begins_again() -> None:
    """A StatefulSet's pod was deleted: its tokens add to those of the pod before, also if both are new."""
    first, second = (server(), 0.0, 5000.0), (server("10.0.0.2"), 0.0, 300.0)
    assert tokens(scraped([first, second], born=True), new=True) == 5300


def test_two_jobs_that_scrape_one_server_count_once() -> None:
    both: list[Level] = [(server(), 100, 900), (server(job="second"), 100, 900)]
    assert tokens(scraped(both), before=scraped([(server(), 0, 100)])) == 800


def test_labels_of_a_target_that_up_has_do_not_make_two_counters() -> None:
    first, second = server(app="x"), server(job="second", team="y")
    part = scraped([(first, 100, 900), (second, 100, 900)])
    up = [
        ({name: word for name, word in labels.items() if name != "model_name"}, 1.0)
        for labels in (first, second)
    ]
    part = ScrapedTokens(part.begins, part.ends, part.answers, targets=up)
    assert tokens(part, before=scraped([(server(), 0, 100)])) == 800


def test_ranks_and_ports_are_counters_that_add_up() -> None:
    part = scraped([(server(engine="0"), 0, 5), (server(engine="1"), 0, 7), (server(port=8001), 0, 100)])
    assert tokens(part) == 112


def together(*parts: ScrapedTokens) -> ScrapedTokens:
    """One range with the counters of all these."""
    answers = {metric: found for part in parts for metric, found in part.answers.items()}
    return ScrapedTokens(0.0, 3600.0, answers)


@pytest.mark.parametrize("born", [False, True])
def test_a_server_with_the_names_of_two_engines_counts_once(born: bool) -> None:
    """Some versions of NIM export the names of vLLM beside theirs."""
    first = together(
        scraped([(server(), 0, 10)], born=born, metric=NIM), scraped([(server(), 0, 10)], born=born)
    )
    second = together(scraped([(server(), 10, 30)], metric=NIM), scraped([(server(), 10, 30)]))
    assert tokens(first, second, new=born) == 30


NOTHING = ScrapedTokens(0.0, 3600.0, {})


@pytest.mark.parametrize(
    ("parts", "after", "tails", "expected"),
    [
        # The next day shows the other engine alone, in either order of the table.
        ([scraped([(server(), 0, 10)]), scraped([(server(), 0, 7)], metric=NIM)], NOTHING, {}, 17),
        ([scraped([(server(), 0, 7)], metric=NIM), scraped([(server(), 0, 10)])], NOTHING, {}, 17),
        # Within one range: what exists at its end shows which one was replaced.
        (
            [together(scraped([(server(), 0, 10)]), scraped([(server(), 0, 7)], metric=NIM, born=True))],
            scraped([(server(), 7, 7)], metric=NIM),
            {},
            17,
        ),
        # The same in a range that ends now.
        (
            [together(scraped([(server(), 0, 10)]), scraped([(server(), 0, 7)], metric=NIM, born=True))],
            None,
            {NIM: [(server(), 0.0)]},
            17,
        ),
        # Not known whether it was beside the other: it does not count, rather than twice.
        (
            [together(scraped([(server(), 0, 10)]), scraped([(server(), 0, 7)], metric=NIM, born=True))],
            NOTHING,
            {},
            10,
        ),
        # Once beside the other, so always the same tokens.
        (
            [
                scraped([(server(), 0, 10)]),
                together(scraped([(server(), 10, 10)]), scraped([(server(), 0, 7)], metric=NIM)),
                scraped([(server(), 7, 9)], metric=NIM),
            ],
            NOTHING,
            {},
            10,
        ),
    ],
)
def test_tokens_of_a_replaced_engine_count(
    parts: Sequence[ScrapedTokens],
    after: ScrapedTokens | None,
    tails: Mapping[TokenMetric, list[tuple[dict[str, str], float]]],
    expected: float,
) -> None:
    """A StatefulSet's pod, or a machine, that served with one engine and then with another."""
    rises = rises_of(*parts, new=True)
    rises.end(after, tails=tails)
    assert total(rises).amount == expected


def test_an_engine_without_a_model_label_is_named_by_the_engine() -> None:
    rises = TokenRises(DEFAULT_SOURCES)
    for name in ("", "undefined"):
        rises.add(scraped([({**server(port=len(name)), "model_name": name}, 0, 5)]), ())
    assert {name.model for name in rises.totals()} == {"(vllm)"}


def test_pods_began_only_if_their_gpus_were_watched_before() -> None:
    """gpuledger that was installed within the range says nothing about earlier pods."""

    def account(uuid: str, pod: str) -> tuple[Labels, float]:
        return {"uuid": uuid, "account": "owner", "namespace": "s", "pod": pod}, 1.0

    accounts = [account("GPU-0", "old"), account("GPU-0", "new"), account("GPU-1", "unknown")]
    part = ScrapedRange(
        *(0.0, 3600.0),
        {"last": [], "least": []},
        {"last": [], "least": []},
        watched={"last": [], "least": [], "alive": [({"uuid": "GPU-0"}, 1.0)]},
        gpu_time={"last": accounts, "least": [], "alive": accounts[:1]},
    )
    assert pods_that_began(part, LabelResolver()) == {("s", "new")}


# The last scrape before the range says 1000; the first one in it 1200, the last one 3000; the next one 3500.
BEFORE, AHEAD = scraped([(server(), 0, 1000)]), scraped([(server(), 1200, 1400)])
WITHIN, AFTER = scraped([(server(), 1200, 3000)]), scraped([(server(), 3500, 3700)])
RESTARTED = {"resets": 1.0, "highest": 3000.0, "increase": 2400.0, "samples": 60.0, "wider": 2600.0}
TWICE = {"resets": 2.0, "highest": 3000.0, "increase": 2400.0, "samples": 23.0, "wider": 2600.0}


@pytest.mark.parametrize(
    ("ahead", "within", "after", "tails", "expected"),
    [
        # 200 can be from before the range; 500 are counted by its end or after it.
        (AHEAD, WITHIN, AFTER, None, TokenRise(2000, 200, 500)),
        # Scrapes at the very ends of the range: exact.
        (scraped([(server(), 1000, 1400)]), WITHIN, scraped([(server(), 3000, 3700)]), None, TokenRise(2000)),
        # Nobody scraped at its start, for longer than two intervals.
        (scraped([]), WITHIN, AFTER, None, TokenRise(2000, 200, 500)),
        # It restarts in the scrapes after an end: up to the next scrape it can have counted what both have.
        (
            AHEAD,
            WITHIN,
            scraped([(server(), 40, 90)], resets={**RESTARTED, "highest": 3500.0, "wider_samples": 61.0}),
            None,
            TokenRise(2000, 200, 590),
        ),
        # It restarts between the last scrape and the next one.
        (AHEAD, WITHIN, scraped([(server(), 40, 90)]), None, TokenRise(2000, 200, 40)),
        # The range ends now: what is not scraped yet follows from the rate.
        (AHEAD, WITHIN, None, 80.0, TokenRise(2000, 200, 80)),
        (AHEAD, WITHIN, scraped([(server(), 3010, 3010)]), 80.0, TokenRise(2000, 200, 90)),
        # It ended: tokens since its last scrape are lost, which a note says.
        (AHEAD, WITHIN, scraped([]), None, TokenRise(2000, 200, 0)),
        # Several restarts: the middle of 2400 / (1 + 2.2 / 22) and 2600; half of the difference is an error.
        (
            AHEAD,
            scraped([(server(), 0, 100)], resets={**TWICE, "wider_samples": 24.0}),
            scraped([(server(), 100, 100)]),
            None,
            TokenRise((2600 + 24000 / 11) / 2, 200 + (2600 - 24000 / 11) / 2, (2600 - 24000 / 11) / 2),
        ),
    ],
)
def test_errors_at_the_ends_of_a_range_are_the_rises_to_the_next_scrapes(
    ahead: ScrapedTokens,
    within: ScrapedTokens,
    after: ScrapedTokens | None,
    tails: float | None,
    expected: TokenRise,
) -> None:
    rises = rises_of(within, before=BEFORE, ahead=ahead)
    rises.end(after, (), None if tails is None else {VLLM: [(server(), tails)]})
    assert total(rises) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("up", "over"),
    [
        # The server was scraped without a token before the range, and has some in the first scrape in it.
        ([server()], 5000),
        # Prometheus saw the server first: what it says has an unknown time, and is in no rise.
        ([], 0),
    ],
)
def test_a_counter_that_is_born_in_the_first_scrape_can_be_older_than_the_range(
    up: list[Labels], over: float
) -> None:
    first = scraped([(server(), 5000, 6000)], born=True, up=up)
    rises = rises_of(scraped([(server(), 5000, 20_000)], born=True, up=up), ahead=first)
    assert total(rises)[:2] == (20_000 if up else 15_000, over)
    assert sum(rises.missed.values()) == (0 if up else 5000)


def test_after_a_reset_the_first_value_is_at_most_the_highest() -> None:
    """A counter that was seen first at 5000, and began again at 0 within the range."""
    resets = {"resets": 1, "highest": 5000, "increase": 100, "samples": 60}
    assert sum(rises_of(scraped([(server(), 0, 100)], born=True, resets=resets)).missed.values()) == 5000


def test_a_counter_that_is_born_later_is_exact() -> None:
    part = scraped([(server(), 5000, 20_000)], born=True, up=[server()])
    assert total(rises_of(part, ahead=scraped([]))) == TokenRise(20_000)


@given(
    counted=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    first=st.integers(0, 9),
    length=st.integers(2, 60),
    every=st.sampled_from((5, 7, 10)),
)
def test_the_true_count_is_within_the_errors(counted: list[int], first: int, length: int, every: int) -> None:
    """A counter that counts at any second, and is scraped from time to time."""
    moments = [place * 10 + step % 10 for place, step in enumerate(counted)]

    def value(at: float) -> float:
        return float(sum(step for moment, step in zip(moments, counted, strict=True) if moment <= at))

    begins, ends = 20 + first, 20 + first + length

    def window(since: float, until: float) -> ScrapedTokens:
        found = [value(at) for at in range(0, 200, every) if since < at <= until]
        return scraped([(server(), found[0], found[-1])] if found else [])

    rises = rises_of(
        window(begins, ends), before=window(-1, begins), ahead=window(begins, min(begins + 2 * every, ends))
    )
    rises.end(window(ends, ends + 2 * every))
    truth = sum(step for moment, step in zip(moments, counted, strict=True) if begins < moment <= ends)
    found = total(rises)
    assert found.amount - found.over <= truth <= found.amount + found.under


def test_counters_that_restarted_or_ended_are_known() -> None:
    part = scraped([(server(), 0, 300), (server(port=8001), 0, 5), (server(port=8002), 0, 5)])
    rises = rises_of(part, before=scraped([(server(), 0, 100)]))
    rises.end(scraped([(server(), 300, 300), (server(port=8001), 5, 5)]))
    assert {name.port for name in rises.restarted()} == {"8000"}
    assert {name.port for name in rises.ended} == {"8002"}
