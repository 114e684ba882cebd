"""Who scrapes a target while the number of agents changes: never nobody, and one alone once it is settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.agent.discovery.sharding import Shard, Share
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.kubernetes.objects import read_meta, read_scale

INTERVAL = 15.0
TARGETS = [
    Target("t", f"http://10.0.0.{number}:9400/metrics", (), ScrapeSettings(INTERVAL)) for number in range(40)
]


def mine(share: Share, now: float = 0.0) -> set[str]:
    return {target.url for target in share.split(TARGETS, now).mine}


def of(*shards: Shard) -> set[str]:
    return {target.url for target in TARGETS if any(shard.has(target) for shard in shards)}


def test_an_agent_that_does_not_know_its_share_scrapes_nothing() -> None:
    assert not mine(Share())


def test_when_agents_are_added_the_old_share_is_kept_until_they_are_ready_and_an_interval_more() -> None:
    share = Share(Shard(0, 2))
    share.become(Shard(0, 3), settled=False, now=100.0)
    assert mine(share, 1000.0) == of(Shard(0, 2), Shard(0, 3))
    share.become(Shard(0, 3), settled=True, now=1000.0)
    assert mine(share, 1000.0 + INTERVAL - 0.1) == of(Shard(0, 2), Shard(0, 3))
    assert mine(share, 1000.0 + INTERVAL) == of(Shard(0, 3))


def test_when_agents_are_taken_away_the_others_begin_at_once() -> None:
    share = Share(Shard(0, 3))
    share.become(Shard(0, 1), settled=True, now=100.0)
    assert mine(share, 100.0) == of(Shard(0, 1))


def test_it_is_told_when_the_first_target_goes_over() -> None:
    share = Share(Shard(0, 1))
    share.become(Shard(0, 2), settled=False, now=100.0)
    assert share.split(TARGETS, 100.0).until is None
    share.become(Shard(0, 2), settled=True, now=200.0)
    quick = Target("t", "http://10.0.0.1:9400/metrics", (), ScrapeSettings(5.0))
    assert not Shard(0, 2).has(quick)
    assert share.split([*TARGETS, quick], 200.0).until == 205.0
    assert share.split([*TARGETS, quick], 205.0).until == 200.0 + INTERVAL


def test_a_number_that_is_taken_back_leaves_nothing_twice() -> None:
    share = Share(Shard(0, 2))
    share.become(Shard(0, 3), settled=False, now=0.0)
    share.become(Shard(0, 2), settled=True, now=5.0)
    assert list(share.former) == [Shard(0, 3)]
    assert mine(share, 5.0 + INTERVAL) == of(Shard(0, 2))
    share.forget()
    assert not share.former


SETTLED: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("all ready", {"generation": 2}, {"observedGeneration": 2, "readyReplicas": 3}, True),
    ("one is missing", {"generation": 2}, {"observedGeneration": 2, "readyReplicas": 2}, False),
    ("of the number of before", {"generation": 2}, {"observedGeneration": 1, "readyReplicas": 3}, False),
    ("more than there shall be", {"generation": 2}, {"observedGeneration": 2, "readyReplicas": 4}, True),
    ("nothing is told yet", {"generation": 1}, {}, False),
]


@pytest.mark.parametrize(
    ("metadata", "status", "settled"), [case[1:] for case in SETTLED], ids=[case[0] for case in SETTLED]
)
def test_a_stateful_set_is_settled_when_as_many_are_ready_as_there_shall_be(
    metadata: dict[str, Any], status: dict[str, Any], settled: bool
) -> None:
    told = {"metadata": {"name": "s", **metadata}, "spec": {"replicas": 3}, "status": status}
    meta = read_meta(told)
    assert meta is not None
    assert read_scale(told, meta).settled is settled


@dataclass
class Change:
    """A new count; each agent hears of it after its delay, and those that are new begin after theirs."""

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


def scrapers(shares: dict[int, Share], now: float) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {target.url: [] for target in TARGETS}
    for ordinal, share in shares.items():
        for url in mine(share, now):
            found[url].append(ordinal)
    return found


@given(st.integers(1, MOST), CHANGES)
@settings(deadline=None, max_examples=60)
def test_no_target_is_without_a_scraper_and_in_the_end_each_has_one(
    first: int, changes: list[Change]
) -> None:
    """Who leaves goes on for two seconds, within which everybody has heard of it."""
    shares = {ordinal: Share(Shard(ordinal, first)) for ordinal in range(first)}
    now = 0.0
    for change in changes:
        count = change.count
        new = set(range(count)) - set(shares)
        ready = now + max((change.starts[ordinal] for ordinal in new), default=0.0)
        events = [(now + change.delays[ordinal], "hear", ordinal) for ordinal in shares]
        events += [(now + change.starts[ordinal], "begin", ordinal) for ordinal in new]
        events += [(now + 2.0, "end", ordinal) for ordinal in shares if ordinal >= count]
        last = max(ready, now + 2.0)
        events += [(last + change.delays[ordinal], "ready", ordinal) for ordinal in range(count)]
        for at, what, ordinal in sorted(events, key=lambda event: (event[0], event[1] == "end")):
            if what == "end":
                del shares[ordinal]
            elif what == "begin":
                shares[ordinal] = Share(Shard(ordinal, count))
            else:
                settled = not new or what == "ready"
                shares[ordinal].become(Shard(ordinal, count), settled=settled, now=at)
            assert all(scrapers(shares, at).values())
        now = last + 2.0
    settled_at = now + INTERVAL
    assert all(len(owners) == 1 for owners in scrapers(shares, settled_at).values())
