"""Native families of the node: source, collectors, owner indexes, ticks and the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.model.family import Family, declare_family, single_sample_family
from gpuledger.model.node_state import NodeState

SOURCE = declare_family(
    "gpuledger_source_info",
    'Source of the readings; simulated="true" for anything but hardware.',
    ("source", "simulated", "driver_version", "library_version", "cuda_version", "detail"),
    "source; nvmlSystemGetDriverVersion, NVMLVersion, CudaDriverVersion_v2",
)
BUILD = declare_family("gpuledger_build_info", "Version of gpuledger.", ("version",), "the program")
SUCCESS = declare_family(
    "gpuledger_collector_success",
    "1 if this collector succeeded in the last tick, 0 if it failed or has not returned; source includes its "
    "parts, which are devices to events.",
    ("collector",),
    "the tick",
)
SECONDS = declare_family(
    "gpuledger_collector_duration_seconds",
    "Wall time of this collector in the last tick; source includes its parts.",
    ("collector",),
    "the tick",
)
LAST = declare_family(
    "gpuledger_collector_last_success_timestamp_seconds",
    "Unix time of the last tick in which this collector succeeded.",
    ("collector",),
    "the tick",
)
TICKS = declare_family("gpuledger_ticks_total", "Ticks since the program started.", source="the tick")
INTERVAL = declare_family(
    "gpuledger_tick_interval_seconds",
    "Time between ticks: --interval, longer while ticks are slow.",
    source="the tick",
)
STALLED = declare_family(
    "gpuledger_tick_stalled",
    "1 while a tick is overdue by three intervals: the driver does not respond and device data is missing.",
    source="the watchdog",
)
SNAPSHOT_TIME = declare_family(
    "gpuledger_snapshot_timestamp_seconds",
    "Unix time of the exported readings; absent if there are none.",
    source="the tick",
)
MAP_SUCCESS = declare_family(
    "gpuledger_map_success",
    "1 if the last update of this owner index succeeded, 0 if it failed and the last entries are kept.",
    ("map",),
    "workloads: API server, kubelet, Slurm, container runtimes",
)
MAP_LAST = declare_family(
    "gpuledger_map_last_success_timestamp_seconds",
    "Unix time for which this owner index is known to be correct; its age is time() minus this value.",
    ("map",),
    "workloads",
)
MAP_ENTRIES = declare_family("gpuledger_map_entries", "Entries in this owner index.", ("map",), "workloads")
INVALID = declare_family(
    "gpuledger_invalid_values_total",
    "Impossible values from the driver (sentinels, out of range, counter leaps), which are not exported; "
    "the first of each kind is logged.",
    source="the source",
)

_MAPS = (MAP_SUCCESS, MAP_LAST, MAP_ENTRIES)
SPECS = (SOURCE, BUILD, SUCCESS, SECONDS, LAST, *_MAPS, TICKS, INTERVAL, STALLED, SNAPSHOT_TIME, INVALID)


def node_families(state: NodeState, version: str) -> Iterator[Family]:
    """Yields the families of the node; they do not need a working driver."""
    yield _info(state)
    yield single_sample_family(BUILD, 1, version)
    yield from _collectors(state)
    yield from _owner_indexes(state)
    health = state.health
    yield single_sample_family(TICKS, health.ticks)
    yield single_sample_family(INTERVAL, health.interval)
    yield single_sample_family(STALLED, int(health.stalled))
    yield single_sample_family(SNAPSHOT_TIME, state.snapshot.unix if state.snapshot else None)
    yield single_sample_family(INVALID, state.ledger.invalid)


def _info(state: NodeState) -> Family:
    source = state.source
    return single_sample_family(
        SOURCE,
        1,
        source.name,
        "true" if source.simulated else "false",
        source.driver_version,
        source.library_version,
        source.cuda_version,
        source.detail,
    )


def _collectors(state: NodeState) -> Iterable[Family]:
    success, seconds, last = Family(SUCCESS), Family(SECONDS), Family(LAST)
    for collector in state.health.collectors:
        success.add(int(collector.success), collector.name)
        seconds.add(collector.seconds, collector.name)
        last.add(collector.last_success, collector.name)
    return success, seconds, last


def _owner_indexes(state: NodeState) -> Iterable[Family]:
    success, last, entries = (Family(spec) for spec in _MAPS)
    for index in state.health.owner_indexes:
        success.add(int(index.success), index.name)
        last.add(index.last_success, index.name)
        entries.add(index.entries, index.name)
    return success, last, entries
