"""The agent's own metrics: scrapes, discovery and remote write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from gpuledger import __version__
from gpuledger.model.family import Family, FamilySpec, declare_family, single_sample_family

if TYPE_CHECKING:
    # The catalogue of families is built without importing the agent's packages.
    from gpuledger.agent.agent import AgentView
    from gpuledger.agent.deliver.state import ReceiverState
    from gpuledger.agent.scrape.state import GroupTotals

_LOOPS: Final = "the agent's scrape loops"
_CLUSTER: Final = "the cluster's API server"
_SENDERS: Final = "the agent's remote-write queues"

BUILD = declare_family("gpuledger_agent_build_info", "1, with the version.", ("version",), source=_LOOPS)
CONFIG_OK = declare_family(
    "gpuledger_agent_config_last_reload_success",
    "1 if the last reload of the configuration file succeeded; 0: the last valid one is active.",
    source="configuration",
)
CONFIG_AT = declare_family(
    "gpuledger_agent_config_last_reload_success_timestamp_seconds",
    "Unix time at which the active configuration was loaded.",
    source="configuration",
)
TARGETS = declare_family(
    "gpuledger_agent_targets",
    "Targets by the state of their last scrape: up, down, or unknown before the first scrape.",
    ("group", "state"),
    source=_LOOPS,
)
DROPPED_TARGETS = declare_family(
    "gpuledger_agent_targets_dropped",
    "Targets dropped by relabelConfigs.",
    source="configuration",
)
SELECTED = declare_family(
    "gpuledger_agent_selected",
    "Discovered objects that passed each step: namespaces (namespace), pods or services (labels, running), "
    "addresses (port, relabelling), and targets: of this shard (scraped), with a response from the endpoint "
    "(endpoint), with a successful scrape (scrape).",
    ("group", "step"),
    source=_CLUSTER,
)
WATCH_UP = declare_family(
    "gpuledger_agent_watch_up",
    "0 while the watch of these objects fails; the last known objects stay in use.",
    ("watch",),
    source=_CLUSTER,
)
WATCHED = declare_family(
    "gpuledger_agent_watch_objects", "Objects known from this watch.", ("watch",), source=_CLUSTER
)
SHARDS = declare_family(
    "gpuledger_agent_shard_count",
    "Number of agents that share the targets; absent if there is only one.",
    source=_CLUSTER,
)
SERIES = declare_family(
    "gpuledger_agent_series",
    "Samples of the last scrape after metric relabeling, summed over the targets.",
    ("group",),
    source=_LOOPS,
)
CACHE = declare_family(
    "gpuledger_agent_cache_bytes",
    "Memory of the cached pages; pages are packed when agent.page_memory is used up.",
    ("group",),
    source=_LOOPS,
)


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
        "Samples omitted because another one has the same series and time: on the page, after the write "
        "relabeling of a receiver, or in the scrape report (up, scrape_*).",
        lambda totals: totals.duplicates,
    ),
    (
        "future_samples_total",
        "Samples dropped because their timestamp on the page is later than the scrape by more than "
        "timestampAheadLimit.",
        lambda totals: totals.ahead,
    ),
)
FAILURES = declare_family(
    "gpuledger_agent_scrape_failures_total",
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
    (
        "receiver_refused_series",
        "Series of which the receiver refused the last sample; the log names one of them.",
        lambda state: state.refused_series,
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
        "delivered_metadata_total",
        "Metric families of which the receiver accepted HELP and TYPE, counted at each repetition; remote "
        "write 1.0.",
        lambda state: state.sent_metadata,
    ),
    (
        "retried_samples_total",
        "Samples of failed requests that are retried, counted at each attempt.",
        lambda state: state.retried_samples,
    ),
)
_GROUP_COUNTERS: Final = [
    (declare_family(f"gpuledger_agent_{name}", help_text, ("group",), _LOOPS), read)
    for name, help_text, read in _OF_GROUPS
]
_RECEIVER: Final = [
    (declare_family(f"gpuledger_agent_{name}", help_text, ("receiver",), _SENDERS), read)
    for name, help_text, read in _OF_RECEIVERS
]
PROTOCOL = declare_family(
    "gpuledger_agent_receiver_protocol_info",
    "1, with the version of remote write that the receiver gets; absent until protocol: auto has found it.",
    ("receiver", "protocol"),
    source=_SENDERS,
)
DROPPED = declare_family(
    "gpuledger_agent_dropped_samples_total",
    "Queued samples that were lost, by reason.",
    ("receiver", "reason"),
    source=_SENDERS,
)
REQUESTS = declare_family(
    "gpuledger_agent_requests_total",
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
    *(PROTOCOL, DROPPED, REQUESTS),
)


def _family(spec: FamilySpec, samples: Iterable[tuple[float | None, *tuple[str, ...]]]) -> Family:
    """Return a family with these samples: value and label values."""
    family = Family(spec)
    for value, *labels in samples:
        family.add(value, *labels)
    return family


def agent_families(view: AgentView) -> Iterator[Family]:
    """Yield all metric families of a snapshot."""
    groups, receivers = view.totals.items(), view.receivers
    reasons = ("request", "body_limit", "page", "internal")
    yield single_sample_family(BUILD, 1, __version__)
    yield single_sample_family(CONFIG_OK, float(not view.error))
    yield single_sample_family(CONFIG_AT, view.configured)
    yield single_sample_family(DROPPED_TARGETS, view.dropped)
    yield from _cluster(view)
    yield from _targets(view)
    for spec, read_totals in _GROUP_COUNTERS:
        yield _family(spec, ((read_totals(totals), group) for group, totals in groups))
    yield _family(
        FAILURES,
        ((totals.failures.get(reason, 0), group, reason) for group, totals in groups for reason in reasons),
    )
    for spec, read_state in _RECEIVER:
        yield _family(spec, ((read_state(state), state.name) for state in receivers))
    yield _family(PROTOCOL, ((1, state.name, state.protocol) for state in receivers if state.protocol))
    yield _family(
        DROPPED,
        ((number, state.name, reason) for state in receivers for reason, number in state.dropped.items()),
    )
    yield _family(
        REQUESTS,
        ((number, state.name, result) for state in receivers for result, number in state.requests.items()),
    )


def _cluster(view: AgentView) -> Iterator[Family]:
    yield _family(
        SELECTED,
        (
            (number, report.name, step)
            for report in view.discovery.reports
            if report.known
            for step, number in {**report.passed, **view.scrape_step_counts(report.name)}.items()
        ),
    )
    yield _family(WATCH_UP, ((float(watch.success), watch.name) for watch in view.discovery.health))
    yield _family(WATCHED, ((watch.entries, watch.name) for watch in view.discovery.health))
    yield single_sample_family(SHARDS, view.shard.count if view.shard else None)


def _targets(view: AgentView) -> Iterator[Family]:
    states = Counter((loop.target.group, loop.state.up) for loop in view.loops)
    series: Counter[str] = Counter()
    cache: Counter[str] = Counter()
    for loop in view.loops:
        series[loop.target.group] += loop.state.counts.kept
        cache[loop.target.group] += loop.state.kept_bytes
    words = {"up": True, "down": False, "unknown": None}
    yield _family(
        TARGETS, ((states[group, up], group, word) for group in series for word, up in words.items())
    )
    yield _family(SERIES, ((value, group) for group, value in series.items()))
    yield _family(CACHE, ((value, group) for group, value in cache.items()))
