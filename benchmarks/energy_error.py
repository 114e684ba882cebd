"""Compares the error of billed energy with that of two other methods, on the same simulated nodes.

    python benchmarks/energy_error.py [--write docs/concepts/energy.md]

The simulator knows the true joules of each process. The methods:
  gpuledger       the ledger; it learns the floors
  whole GPU       DCGM's energy of a process: the increase of the GPU's counter over the process's lifetime
  power x share   Kepler: (power - idle power) x SM share x interval, once per second
Errors are of processes with more than 100 J, in percent of the true energy. `sum` is the energy billed to all
processes in percent of their true energy. All methods can learn floors in the node's first, empty minute.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from gpuledger.ledger.energy.energy_ledger import EnergyLedger  # noqa: E402
from gpuledger.ledger.energy.floor import Floors  # noqa: E402
from gpuledger.model.process import ProcessKey  # noqa: E402
from gpuledger.model.quantities import ENERGY, POWER  # noqa: E402
from gpuledger.model.snapshot import Snapshot  # noqa: E402
from unit.sources.simulator.support import Node  # noqa: E402  (after the path is set)

MARKS = ("<!-- errors: begin -->", "<!-- errors: end -->")
SECONDS = 400


@dataclass
class WholeGpu:
    """Bills the increase of the GPU's counter between the first and last snapshot with a process."""

    first: dict[ProcessKey, float] = field(default_factory=dict)
    billed: dict[ProcessKey, float] = field(default_factory=dict)

    def post(self, snapshot: Snapshot) -> None:
        """Bill one second."""
        counters = {one.device.gpu.uuid: one.get(ENERGY) for one in snapshot.readings if one.get(ENERGY)}
        for process in snapshot.processes:
            counter = counters[process.device.gpu.uuid] or 0.0
            began = self.first.setdefault(process.key, counter)
            self.billed[process.key] = (counter - began) / 1000


@dataclass
class PowerTimesShare:
    """Bills active power by SM share; the idle power is the lowest power without processes."""

    idle: dict[str, float] = field(default_factory=dict)
    billed: dict[ProcessKey, float] = field(default_factory=lambda: defaultdict(float))

    def post(self, snapshot: Snapshot) -> None:
        """Bill one second."""
        power = {one.device.gpu.uuid: one.get(POWER) for one in snapshot.readings if one.get(POWER)}
        shares: dict[str, dict[ProcessKey, float]] = defaultdict(dict)
        for process in snapshot.processes:
            shares[process.device.gpu.uuid][process.key] = process.usage.sm or 0.0
        for uuid, watts in power.items():
            if not shares[uuid]:
                self.idle[uuid] = min(watts or 0.0, self.idle.get(uuid, 1e9))
                continue
            active = max(0.0, (watts or 0.0) - self.idle.get(uuid, 0.0))
            total = sum(shares[uuid].values())
            for key, share in shares[uuid].items():
                part = share / total if total else 1 / len(shares[uuid])
                self.billed[key] += active * part


@dataclass
class LedgerMethod:
    """Bills what the ledger books."""

    ledger: EnergyLedger = field(default_factory=lambda: EnergyLedger(Floors()))
    billed: dict[ProcessKey, float] = field(default_factory=lambda: defaultdict(float))

    def post(self, snapshot: Snapshot) -> None:
        """Bill one second."""
        for posted in self.ledger.post(snapshot):
            for key, joules in posted.booked.processes.items():
                self.billed[key] += joules / 1000


Method = LedgerMethod | WholeGpu | PowerTimesShare
METHODS: dict[str, Callable[[], Method]] = {
    "gpuledger": LedgerMethod,
    "whole GPU": WholeGpu,
    "power x share": PowerTimesShare,
}


def card(processes: list[dict[str, object]], **more: object) -> dict[str, object]:
    """Return a GPU that is empty for its first minute, so that every method can learn the idle power."""
    return {
        "empty_watts": 60,
        "resident_watts": 90,
        "load_watts": 500,
        "limit_watts": 700,
        "counter_refresh": 0.1,
        "processes": [{"name": "python3", "memory": "2GB", "start": 80, **one} for one in processes],
        **more,
    }


def exclusive(chance: random.Random) -> dict[str, object]:
    """Return a GPU with one process."""
    return card([{"load": round(chance.uniform(0.2, 0.9), 2), "noise": 0.1}])


def shared(chance: random.Random) -> dict[str, object]:
    """Return a GPU with two to five processes that run to the end."""
    number = chance.randint(2, 5)
    return card([{"load": round(chance.uniform(0, 0.9 / number), 2), "noise": 0.05} for _ in range(number)])


def bursts(chance: random.Random) -> dict[str, object]:
    """Return a GPU with a steady process and others that alternate between seconds of work and rest."""
    busy = [
        {"load": 0.4, "busy": chance.randint(2, 9), "quiet": chance.randint(3, 20)}
        for _ in range(chance.randint(1, 3))
    ]
    return card([{"load": 0.3}, *busy])


def held(chance: random.Random) -> dict[str, object]:
    """Return a GPU with one active process; the others only hold memory."""
    return card([{"load": round(chance.uniform(0.3, 0.8), 2)}, *[{} for _ in range(chance.randint(1, 3))]])


def short(chance: random.Random) -> dict[str, object]:
    """Return a GPU with short processes, one after the other, beside a long one."""
    jobs = [
        {"load": 0.3, "start": 90 + 20 * n, "stop": 90 + 20 * n + chance.randint(4, 15)} for n in range(12)
    ]
    return card([{"load": 0.25}, *jobs])


def mig(chance: random.Random) -> dict[str, object]:
    """Return a GPU with three MIG instances and a process on two of them."""
    cuts = [(1, "4g.40gb", 64, "40GB"), (5, "2g.20gb", 32, "20GB"), (9, "1g.10gb", 16, "10GB")]
    parts = [
        {"gi": gi, "ci": 0, "profile": profile, "sm_count": sms, "memory": memory}
        for gi, profile, sms, memory in cuts
    ]
    places = chance.sample([1, 5, 9], 2)
    tenants = [{"gi": gi, "load": round(chance.uniform(0.1, 1), 2)} for gi in places]
    return card(tenants, instances=parts, sm_count=132)


KINDS = {"exclusive": exclusive, "shared": shared, "bursts": bursts, "held": held, "short": short, "MIG": mig}


def run(make: Callable[[random.Random], dict[str, object]], seed: int) -> Iterable[tuple[str, float, float]]:
    """Yield method, billed joules and true joules for each process of one node."""
    chance = random.Random(seed)
    node = Node(json.dumps({"gpus": [make(chance)]}), seed=seed)
    methods = {name: made() for name, made in METHODS.items()}
    for second in range(SECONDS):
        snapshot = node.at(float(second))
        for method in methods.values():
            method.post(snapshot)
    true = {
        account.process: float(joules)
        for account, joules in node.source.true_energy(float(SECONDS - 1)).items()
        if account.process is not None
    }
    for name, method in methods.items():
        for key, joules in true.items():
            if joules > 100:
                yield name, method.billed.get(key, 0.0), joules


def table(seeds: int) -> Iterable[str]:
    """Yield the lines of the Markdown table."""
    yield "| scenario | processes | method | mean error % | worst error % | sum % |"
    yield "|---|---|---|---|---|---|"
    for kind, make in KINDS.items():
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for seed in range(seeds):
            for name, billed, true in run(make, seed):
                found[name].append((billed, true))
        for name, pairs in found.items():
            errors = [abs(billed - true) / true * 100 for billed, true in pairs]
            together = sum(billed for billed, _ in pairs) / sum(true for _, true in pairs) * 100
            figures = " | ".join(f"{figure:.1f}" for figure in (mean(errors), max(errors), together))
            yield f"| {kind} | {len(pairs)} | {name} | {figures} |"


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--seeds", type=int, default=20, help="nodes of each kind")
    given = flags.parse_args()
    print_table(table(given.seeds), given.write, MARKS)


if __name__ == "__main__":
    main()
