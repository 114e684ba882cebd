"""The agent's own metrics: what it scrapes, what it could not, and what waits to be delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gpuledger import __version__
from gpuledger.agent.agent import AgentView
from gpuledger.agent.scrape.state import GroupTotals
from gpuledger.model.family import Family, FamilySpec
from gpuledger.outputs.remote_write.state import ReceiverState

_LOOPS: Final = "the agent's scrape loops"
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
    "What is remembered of the last pages, packed.",
    ("group",),
    unit="bytes",
    source=_LOOPS,
)
_GROUP_COUNTERS: Final[tuple[tuple[FamilySpec, Callable[[GroupTotals], float]], ...]] = (
    (
        FamilySpec(
            "gpuledger_agent_scrapes_total",
            "counter",
            "Scrapes that were tried.",
            ("group",),
            source=_LOOPS,
        ),
        lambda totals: totals.scrapes,
    ),
    (
        FamilySpec(
            "gpuledger_agent_scrape_seconds_total",
            "counter",
            "Seconds that scrapes took, waiting for the target included.",
            ("group",),
            unit="seconds",
            source=_LOOPS,
        ),
        lambda totals: totals.seconds,
    ),
    (
        FamilySpec(
            "gpuledger_agent_missed_scrapes_total",
            "counter",
            "Times at which a target was due while its scrape before was still running.",
            ("group",),
            source=_LOOPS,
        ),
        lambda totals: totals.missed,
    ),
    (
        FamilySpec(
            "gpuledger_agent_samples_total",
            "counter",
            "Samples handed over to be delivered, staleness markers and scrape_* included.",
            ("group",),
            source=_LOOPS,
        ),
        lambda totals: totals.delivered,
    ),
    (
        FamilySpec(
            "gpuledger_agent_duplicate_samples_total",
            "counter",
            "Samples left out because a series was there already on the same page.",
            ("group",),
            source=_LOOPS,
        ),
        lambda totals: totals.duplicates,
    ),
)
FAILURES = FamilySpec(
    "gpuledger_agent_scrape_failures_total",
    "counter",
    "Scrapes that gave no samples: request (no answer, or not a good one), body_limit, page (cannot be read, or "
    "is beyond a limit), internal.",
    ("group", "reason"),
    source=_LOOPS,
)

_RECEIVER: Final[tuple[tuple[FamilySpec, Callable[[ReceiverState], float | None]], ...]] = (
    (
        FamilySpec(
            "gpuledger_agent_queue_samples",
            "gauge",
            "Samples that were accepted and are neither delivered nor dropped.",
            ("receiver",),
            source=_SENDERS,
        ),
        lambda state: state.queued_samples,
    ),
    (
        FamilySpec(
            "gpuledger_agent_queue_bytes",
            "gauge",
            "The same in bytes, compressed.",
            ("receiver",),
            unit="bytes",
            source=_SENDERS,
        ),
        lambda state: state.queued_bytes,
    ),
    (
        FamilySpec(
            "gpuledger_agent_queue_disk_bytes",
            "gauge",
            "What the queue's files take.",
            ("receiver",),
            unit="bytes",
            source=_SENDERS,
        ),
        lambda state: state.disk_bytes,
    ),
    (
        FamilySpec(
            "gpuledger_agent_queue_memory_bytes",
            "gauge",
            "What waits in memory because the disk does not take it.",
            ("receiver",),
            unit="bytes",
            source=_SENDERS,
        ),
        lambda state: state.memory_bytes,
    ),
    (
        FamilySpec(
            "gpuledger_agent_queue_oldest_timestamp_seconds",
            "gauge",
            "When the oldest of what waits was accepted, unix time; absent when nothing waits.",
            ("receiver",),
            unit="seconds",
            source=_SENDERS,
        ),
        lambda state: state.oldest,
    ),
    (
        FamilySpec(
            "gpuledger_agent_delivered_timestamp_seconds",
            "gauge",
            "The youngest timestamp that was delivered, unix time; absent before the first.",
            ("receiver",),
            unit="seconds",
            source=_SENDERS,
        ),
        lambda state: state.newest_sent,
    ),
    (
        FamilySpec(
            "gpuledger_agent_receiver_last_success_timestamp_seconds",
            "gauge",
            "Unix time of the last request that the receiver took; absent before the first.",
            ("receiver",),
            unit="seconds",
            source=_SENDERS,
        ),
        lambda state: state.last_success,
    ),
    (
        FamilySpec(
            "gpuledger_agent_receiver_up",
            "gauge",
            "0 while the last request to the receiver failed.",
            ("receiver",),
            source=_SENDERS,
        ),
        lambda state: float(not state.failing),
    ),
    (
        FamilySpec(
            "gpuledger_agent_shards",
            "gauge",
            "Queues that are delivered side by side.",
            ("receiver",),
            source=_SENDERS,
        ),
        lambda state: state.shards,
    ),
    (
        FamilySpec(
            "gpuledger_agent_accepted_samples_total",
            "counter",
            "Samples that were put into the queue.",
            ("receiver",),
            source=_SENDERS,
        ),
        lambda state: state.accepted_samples,
    ),
    (
        FamilySpec(
            "gpuledger_agent_delivered_samples_total",
            "counter",
            "Samples that the receiver took.",
            ("receiver",),
            source=_SENDERS,
        ),
        lambda state: state.sent_samples,
    ),
    (
        FamilySpec(
            "gpuledger_agent_delivered_bytes_total",
            "counter",
            "Bytes of the requests that the receiver took, compressed.",
            ("receiver",),
            unit="bytes",
            source=_SENDERS,
        ),
        lambda state: state.sent_bytes,
    ),
    (
        FamilySpec(
            "gpuledger_agent_retried_samples_total",
            "counter",
            "Samples that were sent in vain and were to be sent again, each time counted.",
            ("receiver",),
            source=_SENDERS,
        ),
        lambda state: state.retried_samples,
    ),
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
    *(BUILD, CONFIG_OK, CONFIG_AT, TARGETS, DROPPED_TARGETS, SERIES, CACHE),
    *(spec for spec, _ in _GROUP_COUNTERS),
    FAILURES,
    *(spec for spec, _ in _RECEIVER),
    *(DROPPED, REQUESTS),
)


def tell(view: AgentView) -> Iterator[Family]:
    """All families of one moment."""
    yield _one(BUILD, 1, __version__)
    yield _one(CONFIG_OK, float(not view.error))
    yield _one(CONFIG_AT, view.configured)
    yield _one(DROPPED_TARGETS, view.dropped)
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
        cache[group] = cache.get(group, 0) + state.packed_bytes
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


def _one(spec: FamilySpec, value: float, *labels: str) -> Family:
    family = Family(spec)
    family.add(value, *labels)
    return family
