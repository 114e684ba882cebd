"""The agent's own metrics: what it scrapes, what it could not, and what waits to be delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.agent.discovery.selection import STEPS
from gpuledger.model.family import Family, FamilySpec, MetricType, single

if TYPE_CHECKING:
    # The catalogue of families is told without the packages of the agent, too.
    from gpuledger.agent.agent import AgentView
    from gpuledger.agent.deliver.state import ReceiverState
    from gpuledger.agent.scrape.state import GroupTotals

_LOOPS: Final = "the agent's scrape loops"
_CLUSTER: Final = "the cluster's API server"
_SENDERS: Final = "the agent's remote-write queues"

BUILD = FamilySpec("gpuledger_agent_build_info", "info", "1, with the version.", ("version",), source=_LOOPS)
CONFIG_OK = FamilySpec(
    "gpuledger_agent_config_last_reload_success",
    "gauge",
    "1 when the configuration could be used as it was read last; 0 keeps the last good one.",
    source="configuration",
)
CONFIG_AT = FamilySpec(
    "gpuledger_agent_config_last_reload_success_timestamp_seconds",
    "gauge",
    "Unix time at which the configuration in force was taken.",
    unit="seconds",
    source="configuration",
)
TARGETS = FamilySpec(
    "gpuledger_agent_targets",
    "gauge",
    "Targets by what their last scrape came to: up, down, or unknown before the first.",
    ("group", "state"),
    source=_LOOPS,
)
DROPPED_TARGETS = FamilySpec(
    "gpuledger_agent_targets_dropped",
    "gauge",
    "Targets of the configuration that its relabelConfigs drop.",
    source="configuration",
)
SELECTED = FamilySpec(
    "gpuledger_agent_selected",
    "gauge",
    "What came past each step on the way to be a target: namespaces (namespace), pods or services (labels, "
    "running), addresses (port, relabelling), and of this shard's targets (scraped) those whose endpoint "
    "gave a page (endpoint) that could be taken (scrape).",
    ("group", "step"),
    source=_CLUSTER,
)
WATCH_UP = FamilySpec(
    "gpuledger_agent_watch_up",
    "gauge",
    "0 while the API server does not tell of these objects; what was known before is used on.",
    ("watch",),
    source=_CLUSTER,
)
WATCHED = FamilySpec(
    "gpuledger_agent_watch_objects", "gauge", "Objects that are known.", ("watch",), source=_CLUSTER
)
SHARDS = FamilySpec(
    "gpuledger_agent_shard_count",
    "gauge",
    "How many agents share the targets; absent where this one is alone.",
    source=_CLUSTER,
)
SERIES = FamilySpec(
    "gpuledger_agent_series",
    "gauge",
    "Samples of the last scrape of each target that were left by metric relabelling, summed.",
    ("group",),
    source=_LOOPS,
)
CACHE = FamilySpec(
    "gpuledger_agent_cache_bytes",
    "gauge",
    "What is kept of the last pages, most of it packed where agent.page_memory is used up.",
    ("group",),
    unit="bytes",
    source=_LOOPS,
)


def _spec(name: str, about: str, label: str, source: str) -> FamilySpec:
    bare = name.removesuffix("_total")
    kind: MetricType = "gauge" if bare == name else "counter"
    unit = next((unit for unit in ("seconds", "bytes") if bare.endswith(f"_{unit}")), "")
    return FamilySpec(f"gpuledger_agent_{name}", kind, about, (label,), unit, source)


_OF_GROUPS: Final[tuple[tuple[str, str, Callable[[GroupTotals], float]], ...]] = (
    ("scrapes_total", "Scrapes that were tried.", lambda totals: totals.scrapes),
    (
        "scrape_seconds_total",
        "Seconds that scrapes took, waiting for the target included.",
        lambda totals: totals.seconds,
    ),
    (
        "missed_scrapes_total",
        "Times at which a target was due while its scrape before was still running.",
        lambda totals: totals.missed,
    ),
    (
        "samples_total",
        "Samples handed over to be delivered, staleness markers and scrape_* included.",
        lambda totals: totals.delivered,
    ),
    (
        "duplicate_samples_total",
        "Samples left out because a series was there already on the same page.",
        lambda totals: totals.duplicates,
    ),
)
FAILURES = FamilySpec(
    "gpuledger_agent_scrape_failures_total",
    "counter",
    "Scrapes that gave no samples: request (no answer, or not a good one), body_limit, page (cannot be read, "
    "or is beyond a limit), internal.",
    ("group", "reason"),
    source=_LOOPS,
)

_OF_RECEIVERS: Final[tuple[tuple[str, str, Callable[[ReceiverState], float | None]], ...]] = (
    (
        "queue_samples",
        "Samples that were accepted and are neither delivered nor dropped.",
        lambda state: state.queued_samples,
    ),
    ("queue_bytes", "The same in bytes, compressed.", lambda state: state.queued_bytes),
    ("queue_disk_bytes", "What the queue's files take.", lambda state: state.disk_bytes),
    (
        "queue_memory_bytes",
        "What waits in memory because the disk does not take it.",
        lambda state: state.memory_bytes,
    ),
    (
        "queue_oldest_timestamp_seconds",
        "When the oldest of what waits was accepted, unix time; absent when nothing waits.",
        lambda state: state.oldest,
    ),
    (
        "delivered_timestamp_seconds",
        "The youngest timestamp that was delivered, unix time; absent before the first.",
        lambda state: state.newest_sent,
    ),
    (
        "receiver_last_success_timestamp_seconds",
        "Unix time of the last request that the receiver took; absent before the first.",
        lambda state: state.last_success,
    ),
    (
        "receiver_up",
        "0 while the last request to the receiver failed, or was refused as a whole.",
        lambda state: float(not (state.failing or state.refusing)),
    ),
    ("shards", "Queues that are delivered side by side.", lambda state: state.shards),
    (
        "accepted_samples_total",
        "Samples that were put into the queue.",
        lambda state: state.accepted_samples,
    ),
    ("delivered_samples_total", "Samples that the receiver took.", lambda state: state.sent_samples),
    (
        "delivered_bytes_total",
        "Bytes of the requests that the receiver took, compressed.",
        lambda state: state.sent_bytes,
    ),
    (
        "retried_samples_total",
        "Samples that were sent in vain and were to be sent again, each time counted.",
        lambda state: state.retried_samples,
    ),
)
_GROUP_COUNTERS: Final = tuple(
    (_spec(name, about, "group", _LOOPS), read) for name, about, read in _OF_GROUPS
)
_RECEIVER: Final = tuple(
    (_spec(name, about, "receiver", _SENDERS), read) for name, about, read in _OF_RECEIVERS
)
DROPPED = FamilySpec(
    "gpuledger_agent_dropped_samples_total",
    "counter",
    "Accepted samples that are lost, by reason.",
    ("receiver", "reason"),
    source=_SENDERS,
)
REQUESTS = FamilySpec(
    "gpuledger_agent_requests_total",
    "counter",
    "Requests to the receiver by what became of them: an HTTP status, or the kind of failure.",
    ("receiver", "result"),
    source=_SENDERS,
)

SPECS: Final = (
    *(BUILD, CONFIG_OK, CONFIG_AT, TARGETS, DROPPED_TARGETS),
    *(SELECTED, WATCH_UP, WATCHED, SHARDS, SERIES, CACHE),
    *(spec for spec, _ in _GROUP_COUNTERS),
    FAILURES,
    *(spec for spec, _ in _RECEIVER),
    *(DROPPED, REQUESTS),
)


def agent_families(view: AgentView) -> Iterator[Family]:
    """All families of one moment."""
    yield single(BUILD, 1, __version__)
    yield single(CONFIG_OK, float(not view.error))
    yield single(CONFIG_AT, view.configured)
    yield single(DROPPED_TARGETS, view.dropped)
    yield from _cluster(view)
    yield from _targets(view)
    for spec, read in _GROUP_COUNTERS:
        family = Family(spec)
        for group, totals in view.totals.items():
            family.add(read(totals), group)
        yield family
    failures = Family(FAILURES)
    for group, totals in view.totals.items():
        for reason in ("request", "body_limit", "page", "internal"):
            failures.add(totals.failures.get(reason, 0), group, reason)
    yield failures
    yield from _receivers(view)


def _cluster(view: AgentView) -> Iterator[Family]:
    selected, up, watched, shards = Family(SELECTED), Family(WATCH_UP), Family(WATCHED), Family(SHARDS)
    for report in view.reports:
        if report.known:
            for step in STEPS:
                selected.add(report.passed[step], report.name, step)
            for step, number in view.went_on(report.name).items():
                selected.add(number, report.name, step)
    for watch in view.watches:
        up.add(float(watch.success), watch.name)
        watched.add(watch.entries, watch.name)
    if view.shard is not None:
        shards.add(view.shard.count)
    yield from (selected, up, watched, shards)


def _targets(view: AgentView) -> Iterator[Family]:
    states: dict[tuple[str, str], int] = {}
    series: dict[str, int] = {}
    cache: dict[str, int] = {}
    for loop in view.loops:
        group, state = loop.target.group, loop.state
        word = {True: "up", False: "down", None: "unknown"}[state.up]
        for each in ("up", "down", "unknown"):
            states[group, each] = states.get((group, each), 0) + (each == word)
        series[group] = series.get(group, 0) + state.counts.kept
        cache[group] = cache.get(group, 0) + state.kept_bytes
    targets = Family(TARGETS)
    for (group, word), number in states.items():
        targets.add(number, group, word)
    yield targets
    for spec, values in ((SERIES, series), (CACHE, cache)):
        family = Family(spec)
        for group, value in values.items():
            family.add(value, group)
        yield family


def _receivers(view: AgentView) -> Iterator[Family]:
    for spec, read in _RECEIVER:
        family = Family(spec)
        for state in view.receivers:
            family.add(read(state), state.name)
        yield family
    dropped, requests = Family(DROPPED), Family(REQUESTS)
    for state in view.receivers:
        for reason, number in state.dropped.items():
            dropped.add(number, state.name, reason)
        for result, number in state.requests.items():
            requests.add(number, state.name, result)
    yield dropped
    yield requests
