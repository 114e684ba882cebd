"""Sharding while the number of agents changes: every target always has a scraper, finally exactly one."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.agent.discovery.sharding import Shard, ShardAssignment
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.kubernetes.objects import parse_meta, parse_stateful_set

INTERVAL = 15.0
TARGETS = [
    Target("t", f"http://10.0.0.{number}:9400/metrics", (), ScrapeSettings(INTERVAL)) for number in range(40)
]


def own_urls(share: ShardAssignment, now: float = 0.0) -> set[str]:
    return {target.url for target in share.split_targets(TARGETS, now)[0]}


def urls_of(*shards: Shard) -> set[str]:
    return {target.url for target in TARGETS if any(shard.owns(target) for shard in shards)}


def test_an_agent_with_an_unknown_shard_scrapes_nothing() -> None:
    assert not own_urls(ShardAssignment())


def test_when_agents_are_added_the_old_shard_is_kept_until_they_are_ready_plus_an_interval() -> None:
    share = ShardAssignment(Shard(0, 2))
    share.assign(Shard(0, 3), settled=False, now=100.0)
    assert own_urls(share, 1000.0) == urls_of(Shard(0, 2), Shard(0, 3))
    share.assign(Shard(0, 3), settled=True, now=1000.0)
    assert own_urls(share, 1000.0 + INTERVAL - 0.1) == urls_of(Shard(0, 2), Shard(0, 3))
    assert own_urls(share, 1000.0 + INTERVAL) == urls_of(Shard(0, 3))


def test_when_agents_are_removed_the_others_start_at_once() -> None:
    share = ShardAssignment(Shard(0, 3))
    share.assign(Shard(0, 1), settled=True, now=100.0)
    assert own_urls(share, 100.0) == urls_of(Shard(0, 1))


def next_handover(share: ShardAssignment, targets: list[Target], now: float) -> float:
    share.next_handover = inf
    share.split_targets(targets, now)
    return share.next_handover


def test_the_time_of_the_next_handover_is_known() -> None:
    share = ShardAssignment(Shard(0, 1))
    share.assign(Shard(0, 2), settled=False, now=100.0)
    assert next_handover(share, TARGETS, 100.0) == inf
    share.assign(Shard(0, 2), settled=True, now=200.0)
    quick = Target("t", "http://10.0.0.1:9400/metrics", (), ScrapeSettings(5.0))
    assert not Shard(0, 2).owns(quick)
    assert next_handover(share, [*TARGETS, quick], 200.0) == 205.0
    assert next_handover(share, [*TARGETS, quick], 205.0) == 200.0 + INTERVAL


def test_a_reverted_shard_count_leaves_no_duplicates() -> None:
    share = ShardAssignment(Shard(0, 2))
    share.assign(Shard(0, 3), settled=False, now=0.0)
    share.assign(Shard(0, 2), settled=True, now=5.0)
    assert list(share.former_shards) == [Shard(0, 3)]
    assert own_urls(share, 5.0 + INTERVAL) == urls_of(Shard(0, 2))
    share.drop_expired()
    assert not share.former_shards


SETTLED: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("all ready", {"generation": 2}, {"observedGeneration": 2, "readyReplicas": 3}, True),
    ("one is missing", {"generation": 2}, {"observedGeneration": 2, "readyReplicas": 2}, False),
    ("status of the old generation", {"generation": 2}, {"observedGeneration": 1, "readyReplicas": 3}, False),
    ("more ready than requested", {"generation": 2}, {"observedGeneration": 2, "readyReplicas": 4}, True),
    ("no status yet", {"generation": 1}, {}, False),
]


@pytest.mark.parametrize(
    ("metadata", "status", "settled"), [case[1:] for case in SETTLED], ids=[case[0] for case in SETTLED]
)
def test_a_stateful_set_is_settled_when_all_replicas_are_ready(
    metadata: dict[str, Any], status: dict[str, Any], settled: bool
) -> None:
    item = {"metadata": {"name": "s", **metadata}, "spec": {"replicas": 3}, "status": status}
    meta = parse_meta(item)
    assert meta is not None
    assert parse_stateful_set(item, meta).settled is settled


@dataclass
class Change:
    """A new count: each agent learns of it after its delay; new agents start after their start delay."""

    count: int
    delays: list[float]
    starts: list[float]


MOST = 4
UNDER_AN_INTERVAL = st.lists(st.floats(0.0, 2.0), min_size=MOST, max_size=MOST)
CHANGES = st.lists(
    st.builds(
        Change,
        st.integers(1, MOST),
        UNDER_AN_INTERVAL,
        st.lists(st.floats(0.0, 90.0), min_size=MOST, max_size=MOST),
    ),
    min_size=1,
    max_size=4,
)


def scrapers(shares: dict[int, ShardAssignment], now: float) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {target.url: [] for target in TARGETS}
    for ordinal, share in shares.items():
        for url in own_urls(share, now):
            found[url].append(ordinal)
    return found


@given(st.integers(1, MOST), CHANGES)
def test_every_target_always_has_a_scraper_and_finally_exactly_one(first: int, changes: list[Change]) -> None:
    """A removed agent continues for two seconds, within which all others learn of the change."""
    shares = {ordinal: ShardAssignment(Shard(ordinal, first)) for ordinal in range(first)}
    now = 0.0
    for change in changes:
        count = change.count
        new = set(range(count)) - set(shares)
        ready = now + max((change.starts[ordinal] for ordinal in new), default=0.0)
        events = [(now + change.delays[ordinal], "learn", ordinal) for ordinal in shares]
        events += [(now + change.starts[ordinal], "start", ordinal) for ordinal in new]
        events += [(now + 2.0, "end", ordinal) for ordinal in shares if ordinal >= count]
        last = max(ready, now + 2.0)
        events += [(last + change.delays[ordinal], "ready", ordinal) for ordinal in range(count)]
        for at, what, ordinal in sorted(events, key=lambda event: (event[0], event[1] == "end")):
            if what == "end":
                del shares[ordinal]
            elif what == "start":
                shares[ordinal] = ShardAssignment(Shard(ordinal, count))
            else:
                settled = not new or what == "ready"
                shares[ordinal].assign(Shard(ordinal, count), settled=settled, now=at)
            assert all(scrapers(shares, at).values())
        now = last + 2.0
    settled_at = now + INTERVAL
    assert all(len(owners) == 1 for owners in scrapers(shares, settled_at).values())
