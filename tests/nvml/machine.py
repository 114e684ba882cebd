"""A machine for tests: the test library in this process, and a clock and host controlled by the test."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.host.pci import PciBus
from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.sources.nvml.source import NvmlSource
from gpuledger.sources.settings import SourceSettings
from nvml.library import NvmlGpu, NvmlState, count, load

ALL = frozenset(QUANTITIES.values())


class FakeHost:
    """Identifies every pid. `born` sets the start of a reused pid, `loaded` the driver load."""

    def __init__(self) -> None:
        self.born: dict[int, int] = {}
        self.identified: list[frozenset[int]] = []
        self.loaded = "100"
        self.epoch_calls = 0

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        self.identified.append(frozenset(pids))
        return {pid: HostFacts(ProcessStart("boot", self.born.get(pid, pid), unix - 10)) for pid in pids}

    def epoch(self) -> tuple[str, str]:
        self.epoch_calls += 1
        return "boot", self.loaded


class Machine:
    """`tick` writes the state, advances time by a second and reads once."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, variant: str = "") -> None:
        self.state = NvmlState(folder / "nvml-state", [NvmlGpu(), NvmlGpu()], time=1_000.0)
        patch.setenv("TEST_NVML_STATE", str(self.state.path))
        self.clock = FakeClock()
        self.host = FakeHost()
        self.variant = variant
        self.library: ctypes.CDLL = load(variant)
        self.source = self.new_source()

    def new_source(self, pci: PciBus | None = None, **settings: object) -> NvmlSource:
        self.source = NvmlSource(
            SourceSettings(**settings),  # type: ignore[arg-type]  # the test names the fields
            self.host,
            self.clock,
            pci=pci,
            load=lambda: self.library,
        )
        return self.source

    @property
    def gpus(self) -> list[NvmlGpu]:
        return self.state.gpus

    def tick(self, wanted: Collection[Quantity] = ALL, seconds: float = 1.0) -> Snapshot:
        self.clock.advance(seconds)
        if self.state.time is not None:
            self.state.time += seconds
        self.state.write()
        return self.source.read(frozenset(wanted))

    @property
    def calls(self) -> int:
        """Number of all calls made since `load`."""
        return int(self.library.test_nvml_calls())

    def count(self, call: str) -> int:
        return count(self.library, call)


def reading_of(snapshot: Snapshot, index: int = 0) -> Reading:
    """Return the Reading at `index` in the Snapshot."""
    return snapshot.readings[index]


def values(reading: Reading) -> dict[str, float]:
    return {quantity.key: value for quantity, value in reading.values.items()}


def pids(reading: Reading) -> list[int] | None:
    return None if reading.processes is None else sorted(process.pid for process in reading.processes)
