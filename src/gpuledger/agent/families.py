"""The agent's own metrics: scrapes, discovery and remote write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.model.family import Family, FamilySpec, MetricType, single_sample_family

if TYPE_CHECKING:
    # The catalogue of families is built without importing the agent's packages.
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
    "1 if the last reload of the configuration file succeeded; 0: the last valid one is active.",
    source="configuration",
)
CONFIG_AT = FamilySpec(
    "gpuledger_agent_config_last_reload_success_timestamp_seconds",
    "gauge",
    "Unix time at which the active configuration was loaded.",
    unit="seconds",
    source="configuration",
)
TARGETS = FamilySpec(
    "gpuledger_agent_targets",
    "gauge",
    "Targets by the state of their last scrape: up, down, or unknown before the first scrape.",
    ("group", "state"),
    source=_LOOPS,
)
DROPPED_TARGETS = FamilySpec(
    "gpuledger_agent_targets_dropped",
    "gauge",
    "Targets dropped by relabelConfigs.",
    source="configuration",
)
SELECTED = FamilySpec(
    "gpuledger_agent_selected",
    "gauge",
    "Discovered objects that passed each step: namespaces (namespace), pods or services (labels, running), "
    "addresses (port, relabelling), and targets: of this shard (scraped), with a response from the endpoint "
    "(endpoint), with a successful scrape (scrape).",
    ("group", "step"),
    source=_CLUSTER,
)
WATCH_UP = FamilySpec(
    "gpuledger_agent_watch_up",
    "gauge",
    "0 while the watch of these objects fails; the last known objects stay in use.",
    ("watch",),
    source=_CLUSTER,
)
WATCHED = FamilySpec(
    "gpuledger_agent_watch_objects", "gauge", "Objects known from this watch.", ("watch",), source=_CLUSTER
)
SHARDS = FamilySpec(
    "gpuledger_agent_shard_count",
    "gauge",
    "Number of agents that share the targets; absent if there is only one.",
    source=_CLUSTER,
)
SERIES = FamilySpec(
    "gpuledger_agent_series",
    "gauge",
    "Samples of the last scrape after metric relabeling, summed over the targets.",
    ("group",),
    source=_LOOPS,
)
CACHE = FamilySpec(
    "gpuledger_agent_cache_bytes",
    "gauge",
    "Memory of the cached pages; pages are packed when agent.page_memory is used up.",
    ("group",),
    unit="bytes",
    source=_LOOPS,
)


def _spec(name: str, help_text: str, label: str, source: str) -> FamilySpec:
    bare = name.removesuffix("_total")
    kind: MetricType = "gauge" if bare == name else "counter"
    unit = next((unit for unit in ("seconds", "bytes") if bare.endswith(f"_{unit}")), "")
    return FamilySpec(f"gpuledger_agent_{name}", kind, help_text, (label,), unit, source)


_OF_GROUPS: Final[tuple[tuple[str, str, Callable[[GroupTotals], float]], ...]] = (
    ("scrapes_total", "Scrape attempts.", lambda totals: totals.scrapes),
    (
        "scrape_seconds_total",
        "Total duration of scrapes, including the wait for the target.",
        lambda totals: totals.seconds,
    ),
    (
        "missed_scrapes_total",
        "Scrapes that were skipped because the previous scrape of the target was still running.",
        lambda totals: totals.missed,
    ),
    (
        "samples_total",
        "Samples queued for delivery, including staleness markers and scrape_* series.",
        lambda totals: totals.queued_samples,
    ),
    (
        "duplicate_samples_total",
        "Samples omitted because their series occurred before on the same page.",
        lambda totals: totals.duplicates,
    ),
)
FAILURES = FamilySpec(
    "gpuledger_agent_scrape_failures_total",
    "counter",
    "Failed scrapes by reason: request (no response, or an error response), body_limit, page (invalid, or "
    "above a limit), internal.",
    ("group", "reason"),
    source=_LOOPS,
)

_OF_RECEIVERS: Final[tuple[tuple[str, str, Callable[[ReceiverState], float | None]], ...]] = (
    (
        "queue_samples",
        "Queued samples: accepted and neither delivered nor dropped.",
        lambda state: state.queued_samples,
    ),
    ("queue_bytes", "Size of the queued samples, compressed.", lambda state: state.queued_bytes),
    ("queue_disk_bytes", "Size of the queue's files.", lambda state: state.disk_bytes),
    (
        "queue_memory_bytes",
        "Samples queued in memory because the disk is not writable, in bytes.",
        lambda state: state.memory_bytes,
    ),
    (
        "queue_oldest_timestamp_seconds",
        "Unix time at which the oldest queued sample was accepted; absent if the queue is empty.",
        lambda state: state.oldest,
    ),
    (
        "delivered_timestamp_seconds",
        "Newest delivered sample timestamp, unix time; absent before the first delivery.",
        lambda state: state.newest_sent,
    ),
    (
        "receiver_last_success_timestamp_seconds",
        "Unix time of the last request that the receiver accepted; absent before the first.",
        lambda state: state.last_success,
    ),
    (
        "receiver_up",
        "0 if the last request to the receiver failed, or the receiver rejected the whole batch.",
        lambda state: float(not (state.failing or state.refusing)),
    ),
    ("shards", "Shards that send in parallel.", lambda state: state.shards),
    (
        "accepted_samples_total",
        "Samples that were queued.",
        lambda state: state.accepted_samples,
    ),
    ("delivered_samples_total", "Samples that the receiver accepted.", lambda state: state.sent_samples),
    (
        "delivered_bytes_total",
        "Size of the requests that the receiver accepted, compressed.",
        lambda state: state.sent_bytes,
    ),
    (
        "retried_samples_total",
        "Samples of failed requests that are retried, counted at each attempt.",
        lambda state: state.retried_samples,
    ),
)
_GROUP_COUNTERS: Final = tuple(
    (_spec(name, help_text, "group", _LOOPS), read) for name, help_text, read in _OF_GROUPS
)
_RECEIVER: Final = tuple(
    (_spec(name, help_text, "receiver", _SENDERS), read) for name, help_text, read in _OF_RECEIVERS
)
DROPPED = FamilySpec(
    "gpuledger_agent_dropped_samples_total",
    "counter",
    "Queued samples that were lost, by reason.",
    ("receiver", "reason"),
    source=_SENDERS,
)
REQUESTS = FamilySpec(
    "gpuledger_agent_requests_total",
    "counter",
    "Requests to the receiver by result: an HTTP status, or the kind of failure.",
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
    """Yield all metric families of a snapshot."""
    yield single_sample_family(BUILD, 1, __version__)
    yield single_sample_family(CONFIG_OK, float(not view.error))
    yield single_sample_family(CONFIG_AT, view.configured)
    yield single_sample_family(DROPPED_TARGETS, view.dropped)
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
    # Imported lazily: the catalogue of families must not need the agent's packages, such as re2.
    from gpuledger.agent.discovery.selection import STEPS

    selected, up, watched, shards = Family(SELECTED), Family(WATCH_UP), Family(WATCHED), Family(SHARDS)
    for report in view.reports:
        if report.known:
            for step in STEPS:
                selected.add(report.passed[step], report.name, step)
            for step, number in view.scrape_step_counts(report.name).items():
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
