"""Native families of the node itself: source, collectors, the tick, the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.model.family import Family, FamilySpec, single
from gpuledger.model.node_state import NodeState

SOURCE = FamilySpec(
    "gpuledger_source_info",
    "info",
    'Where readings come from; simulated="true" for anything that is not hardware.',
    ("source", "simulated", "driver_version", "library_version", "cuda_version", "detail"),
    source="source; nvmlSystemGetDriverVersion, NVMLVersion, CudaDriverVersion_v2",
)
BUILD = FamilySpec(
    "gpuledger_build_info",
    "info",
    "The program's version.",
    ("version",),
    source="the program",
)
SUCCESS = FamilySpec(
    "gpuledger_collector_success",
    "gauge",
    "1 when this part of the last tick did its work, 0 when it failed or did not come back; source is the "
    "reading as a whole, devices to events are its parts.",
    ("collector",),
    source="the tick",
)
SECONDS = FamilySpec(
    "gpuledger_collector_duration_seconds",
    "gauge",
    "Wall time of this part of the last tick; source contains its parts.",
    ("collector",),
    unit="seconds",
    source="the tick",
)
LAST = FamilySpec(
    "gpuledger_collector_last_success_timestamp_seconds",
    "gauge",
    "Unix time of the last tick in which this part did its work.",
    ("collector",),
    unit="seconds",
    source="the tick",
)
TICKS = FamilySpec(
    "gpuledger_ticks_total",
    "counter",
    "Ticks since the program started.",
    source="the tick",
)
INTERVAL = FamilySpec(
    "gpuledger_tick_interval_seconds",
    "gauge",
    "Seconds between ticks: --interval, doubled up to three times while ticks are slow.",
    unit="seconds",
    source="the tick",
)
STALLED = FamilySpec(
    "gpuledger_tick_stalled",
    "gauge",
    "1 while a tick is overdue by three intervals: the driver does not answer, device data is gone.",
    source="the watchdog",
)
SNAPSHOT_TIME = FamilySpec(
    "gpuledger_snapshot_timestamp_seconds",
    "gauge",
    "Unix time of the readings on this page; absent when there are none.",
    unit="seconds",
    source="the tick",
)
MAP_SUCCESS = FamilySpec(
    "gpuledger_map_success",
    "gauge",
    "1 when this map of owners could be read at the last try; 0 keeps what was known before.",
    ("map",),
    source="workloads: API server, kubelet, Slurm, container runtimes",
)
MAP_LAST = FamilySpec(
    "gpuledger_map_last_success_timestamp_seconds",
    "gauge",
    "Unix time of which this map of owners is certain: time() less it is the map's age.",
    ("map",),
    unit="seconds",
    source="workloads",
)
MAP_ENTRIES = FamilySpec(
    "gpuledger_map_entries",
    "gauge",
    "Entries in this map of owners.",
    ("map",),
    source="workloads",
)
INVALID = FamilySpec(
    "gpuledger_invalid_values_total",
    "counter",
    "Values from the driver that cannot be true (sentinels, out of range); they are told as absent.",
    source="the source",
)

_MAPS = (MAP_SUCCESS, MAP_LAST, MAP_ENTRIES)
SPECS = (SOURCE, BUILD, SUCCESS, SECONDS, LAST, *_MAPS, TICKS, INTERVAL, STALLED, SNAPSHOT_TIME, INVALID)


def node_families(page: NodeState, version: str) -> Iterator[Family]:
    """Families of one Page; they are there whatever the driver does."""
    yield _info(page)
    yield single(BUILD, 1, version)
    yield from _collectors(page)
    yield from _maps(page)
    health = page.health
    yield single(TICKS, health.ticks)
    yield single(INTERVAL, health.interval)
    yield single(STALLED, int(health.stalled))
    yield single(SNAPSHOT_TIME, page.snapshot.unix if page.snapshot else None)
    yield single(INVALID, page.ledger.invalid)


def _info(page: NodeState) -> Family:
    source = page.source
    return single(
        SOURCE,
        1,
        source.name,
        "true" if source.simulated else "false",
        source.driver_version,
        source.library_version,
        source.cuda_version,
        source.detail,
    )


def _collectors(page: NodeState) -> Iterable[Family]:
    success, seconds, last = Family(SUCCESS), Family(SECONDS), Family(LAST)
    for part in page.health.collectors:
        success.add(int(part.success), part.name)
        seconds.add(part.seconds, part.name)
        last.add(part.last_success, part.name)
    return success, seconds, last


def _maps(page: NodeState) -> Iterable[Family]:
    success, last, entries = (Family(spec) for spec in _MAPS)
    for one in page.health.maps:
        success.add(int(one.success), one.name)
        last.add(one.last_success, one.name)
        entries.add(one.entries, one.name)
    return success, last, entries
