"""Observe the driver for some seconds: ticks of `serve`, and between them fast readings of the meters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ctypes import CDLL
from dataclasses import dataclass, field, replace
from typing import cast

from gpuledger.host.pci import PciBus
from gpuledger.ledger.energy.counter import EnergyCounter
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Reading, Snapshot, SourceInfo
from gpuledger.model.source import Clock, Host
from gpuledger.sources.nvml.library import GpuLost, NvmlLibrary, load_library
from gpuledger.sources.nvml.measurements import (
    CountedLibrary,
    KeptSamples,
    ListGrowth,
    MeterPoint,
    MeterReader,
    read_kept_samples,
    read_list_growth,
)
from gpuledger.sources.nvml.source import NvmlSource
from gpuledger.sources.settings import SourceSettings

EVERYTHING = frozenset(QUANTITIES.values())
# Seconds between two readings of the meters, which a tick does not make.
_METER_INTERVAL = 0.01
_LEAST_TICKS = 5
# Ticks of which only the cost is measured, as `serve` makes them.
_COST_TICKS = 10
_COST_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class TickCost:
    """The cost of one reading: seconds on the wall clock and of CPU time, and calls to the driver."""

    wall: float
    cpu: float
    calls: int


@dataclass(frozen=True, slots=True)
class BookedTotals:
    """The accounts of an empty ledger after all Snapshots.

    `counters` are the states of the energy counters by Gpu uuid. `rejected` counts their implausible
    readings. `error` is the exception if a posting failed.
    """

    state: LedgerState
    counters: Mapping[str, EnergyCounter]
    rejected: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What was measured. Mappings are by uuid of Gpus, those of lists by uuid of Devices.

    `missing` are functions that gpuledger looked for and the driver's library does not have. `costs` are
    those of readings as `serve` makes them every `interval` seconds.
    """

    info: SourceInfo
    interval: float
    snapshots: tuple[Snapshot, ...]
    meters: Mapping[str, tuple[MeterPoint, ...]]
    kept: Mapping[str, KeptSamples]
    lists: Mapping[str, ListGrowth]
    missing: tuple[str, ...]
    costs: tuple[TickCost, ...]
    booked: BookedTotals

    @property
    def last(self) -> Mapping[str, Reading]:
        """The last Reading of each Device, by uuid."""
        return {reading.device.uuid: reading for reading in self.snapshots[-1].readings}


@dataclass(slots=True)
class Observer:
    """Observes the driver for `seconds`, with a tick every `interval`, or more often in a short time.

    `served` are the quantities that `serve` would read. `name` assigns owners, `wait` sleeps. Used by one
    thread. Accounting mode is never enabled, whatever the settings say.
    """

    settings: SourceSettings
    host: Host
    clock: Clock
    served: frozenset[Quantity]
    seconds: float = 20.0
    interval: float = 1.0
    pci: PciBus | None = None
    name: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
    load: Callable[[], CDLL] = load_library
    wait: Callable[[float], object] = time.sleep
    timer: Callable[[], float] = time.perf_counter
    _snapshots: list[Snapshot] = field(default_factory=list)

    def observe(self) -> Observation:
        """Measure everything. Raises SourceUnavailable."""
        counted: CountedLibrary | None = None

        def load() -> CDLL:
            nonlocal counted
            counted = counted or CountedLibrary(self.load())
            return cast(CDLL, counted)

        source = NvmlSource(
            replace(self.settings, enable_accounting=False), self.host, self.clock, pci=self.pci, load=load
        )
        try:
            source.read(EVERYTHING)  # Initializes the driver and the GPUs.
            assert counted is not None
            library = NvmlLibrary(load)
            library.start()
            try:
                return self._measure(source, library, counted)
            finally:
                library.stop()
        finally:
            source.close()

    def _measure(self, source: NvmlSource, library: NvmlLibrary, counted: CountedLibrary) -> Observation:
        meters = MeterReader(library, self.clock)
        self._watch(source, meters)
        kept: dict[str, KeptSamples] = {}
        lists: dict[str, ListGrowth] = {}
        for state in source.discovery.states:
            if not state.up:
                continue
            try:
                kept[state.gpu.uuid] = read_kept_samples(library, state, self.clock)
                growths = read_list_growth(library, counted, state)
                lists |= {
                    part.device.uuid: one for part, one in zip(state.process_devices, growths, strict=False)
                }
            except GpuLost:
                continue  # The last Snapshot has the reason, or the next tick of `_measure_costs`.
        costs = self._measure_costs(source, counted)
        return Observation(
            source.info,
            self.interval,
            tuple(self._snapshots),
            {uuid: tuple(points) for uuid, points in meters.points.items()},
            kept,
            lists,
            tuple(sorted(counted.missing)),
            costs,
            book(self._snapshots),
        )

    def _watch(self, source: NvmlSource, meters: MeterReader) -> None:
        began = due = self.clock.elapsed()
        while True:
            self._snapshots.append(self.name(source.read(EVERYTHING)))
            now = self.clock.elapsed()
            if now - began >= self.seconds:
                return
            # An interval of a ledger has two readings, and the first one begins none.
            due = max(due + min(self.interval, self.seconds / _LEAST_TICKS), now)
            while self.clock.elapsed() < due:
                meters.read(source.discovery.states)
                self.wait(_METER_INTERVAL)

    def _measure_costs(self, source: NvmlSource, counted: CountedLibrary) -> tuple[TickCost, ...]:
        costs: list[TickCost] = []
        for number in range(_COST_TICKS + 1):
            calls, cpu, wall = counted.calls, time.thread_time(), self.timer()
            source.read(self.served)
            cost = TickCost(self.timer() - wall, time.thread_time() - cpu, counted.calls - calls)
            # The first one reads slow quantities, as it has not read these before.
            if number:
                costs.append(cost)
            self.wait(_COST_INTERVAL)
        return tuple(costs)


def book(snapshots: list[Snapshot] | tuple[Snapshot, ...]) -> BookedTotals:
    """Post the Snapshots to a new ledger in memory."""
    # New accounts are exported at once, so that the report can show them.
    ledger = Ledger(LedgerSettings(zero_hold=0.0))
    error = ""
    try:
        for snapshot in snapshots:
            ledger.post(snapshot)
    except Exception as raised:  # noqa: BLE001  (a failing ledger is what the test looks for)
        error = f"{type(raised).__name__}: {raised}"
    counters = {uuid: one.counter for uuid, one in ledger.energy.gpu_ledgers.items() if one.has_counter}
    return BookedTotals(ledger.state, counters, ledger.energy.invalid, error)
