"""Rises of token counters: births, restarts, pods of the same name, and servers that are scraped twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gpuledger.ledger.report.fleet.scraped import LabelResolver, ScrapedRange
from gpuledger.ledger.report.tokens.token_rises import ScrapedTokens, TokenRises, pods_that_began
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


def tokens(
    *parts: ScrapedTokens, before: ScrapedTokens | None = None, new: bool = False
) -> tuple[float, float]:
    rises = TokenRises(DEFAULT_SOURCES)
    rises.begin(before or ScrapedTokens(-1.0, 0.0, {}))
    for part in parts:
        rises.add(part, {POD} if new else ())
    found = rises.totals().values()
    return sum(rise.amount for rise in found), sum(rise.error for rise in found)


def test_a_counter_continues_from_its_last_value_before_the_range() -> None:
    before = scraped([(server(), 0, 1000)])
    assert tokens(scraped([(server(), 1200, 3000)]), before=before) == (2000, 0)


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
    assert tokens(scraped([(server(), 5000, 20_000)], born=True, up=up), new=new) == (expected, 0)


def test_a_restart_of_one_of_two_replicas_keeps_the_tokens_of_both() -> None:
    other = {**server(), "pod": "q", "instance": "10.0.0.2:8000"}
    before = scraped([(server(), 0, 100), (other, 0, 1000)])
    part = scraped([(server(), 110, 200), (other, 10, 50)])
    assert tokens(part, before=before) == (150, 0)


def test_a_pod_of_the_same_name_with_another_address_begins_again() -> None:
    """A StatefulSet's pod was deleted: its tokens add to those of the pod before, also if both are new."""
    first, second = (server(), 0.0, 5000.0), (server("10.0.0.2"), 0.0, 300.0)
    assert tokens(scraped([first, second], born=True), new=True) == (5300, 0)


def test_two_jobs_that_scrape_one_server_count_once() -> None:
    both: list[Level] = [(server(), 100, 900), (server(job="second"), 100, 900)]
    assert tokens(scraped(both), before=scraped([(server(), 0, 100)])) == (800, 0)


def test_labels_of_a_target_that_up_has_do_not_make_two_counters() -> None:
    first, second = server(app="x"), server(job="second", team="y")
    part = scraped([(first, 100, 900), (second, 100, 900)])
    up = [
        ({name: word for name, word in labels.items() if name != "model_name"}, 1.0)
        for labels in (first, second)
    ]
    part = ScrapedTokens(part.begins, part.ends, part.answers, targets=up)
    assert tokens(part, before=scraped([(server(), 0, 100)])) == (800, 0)


def test_ranks_and_ports_are_counters_that_add_up() -> None:
    part = scraped([(server(engine="0"), 0, 5), (server(engine="1"), 0, 7), (server(port=8001), 0, 100)])
    assert tokens(part) == (112, 0)


def test_a_server_with_the_names_of_two_engines_counts_once() -> None:
    """Some versions of NIM export the names of vLLM beside theirs."""
    assert tokens(scraped([(server(), 0, 10)], metric=NIM), scraped([(server(), 0, 10)])) == (10, 0)


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
