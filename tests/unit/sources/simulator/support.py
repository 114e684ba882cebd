from __future__ import annotations

from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import Reading, Snapshot
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario import Scenario
from gpuledger.sources.simulator.scenario_parser import parse_scenario
from gpuledger.sources.simulator.simulator import Simulator

ALL = frozenset(QUANTITIES.values())
UNIX = 1_700_000_000.0


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def unix(self) -> float:
        return UNIX + self.now

    def elapsed(self) -> float:
        return 5_000.0 + self.now


class Node:
    """A Simulator with its clock: `at(t)` reads the Snapshot at scenario time t."""

    def __init__(
        self, scenario: Scenario | str, seed: int = 1, speed: float = 1.0, devices: tuple[str, ...] = ()
    ) -> None:
        self.clock = ManualClock()
        self.speed = speed
        self.scenario = parse_scenario(scenario, "test") if isinstance(scenario, str) else scenario
        self.source = Simulator(
            self.scenario, SourceSettings(seed=seed, speed=speed, devices=devices), self.clock
        )

    def at(self, seconds: float, wanted: frozenset[Quantity] = ALL) -> Snapshot:
        self.clock.now = seconds / self.speed
        return self.source.read(wanted)


def reading(snapshot: Snapshot, gpu: int = 0, instance: str = "") -> Reading:
    """Return the Reading of a Gpu by index, or of one of its Instances by `GI_CI`."""
    for found in snapshot.readings:
        if (found.device.gpu.index, found.device.instance) == (gpu, instance):
            return found
    raise AssertionError(f"no reading of {gpu} {instance}")
