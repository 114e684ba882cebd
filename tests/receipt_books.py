"""Four hours of a simulated node with thirteen jobs, eleven of them with a reason for advice."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Decimal
from pathlib import Path

from builders import FakeClock
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.ranges import parse_range
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_query import ReceiptScope, read_receipt
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import CgroupUsage, Snapshot
from gpuledger.node.loop import Node
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import parse_scenario
from gpuledger.sources.simulator.simulator import Simulator
from gpuledger.web.api.shown_quantities import SNAPSHOT_QUANTITIES
from gpuledger.workloads.owner_lookup import OwnerLookup

# A full hour of UTC. The jobs begin five minutes later: what is there from the begin can be older.
STARTED = 1_795_860_000.0
BEGUN = STARTED + 300
HOURS = 4
TICK = 30.0
HOUR, GIB = 3600, 1 << 30
# A GPU-hour costs 3, a kilowatt-hour 0.4.
PRICES = Prices(gpu_hour=Decimal(3), kwh=Decimal("0.4"), currency="EUR", co2=Decimal(400))


def _process(job: str, memory: str, load: float, more: str = "", start: str = "5m") -> str:
    pod = f"pod: {{namespace: jobs, name: {job}}}"
    return f"{{name: python3, memory: {memory}, load: {load}, start: {start}, {pod}{more}}}"


def _gpu(*processes: str, more: str = "") -> str:
    # Few samples: a reading every 30 s reads those of all of them.
    return f"  - {{samples_per_second: 1, processes: [{', '.join(processes)}]{more}}}"


L40S = ", model: NVIDIA L40S, memory: 46068MiB, sm_count: 142, architecture: Ada"
SCENARIO = "\n".join(
    (
        "gpus:",
        *(_gpu(_process("one-of-four", "60GiB", 0.9)) for _ in range(3)),
        _gpu(),
        _gpu(),
        _gpu(_process("small", "4GiB", 0.08)),
        _gpu(_process("small-card", "5GiB", 0.1), more=L40S),
        _gpu(_process("late", "60GiB", 0.9, start="65m")),
        _gpu(_process("notebook", "30GiB", 1.0, ", busy: 12m, quiet: 48m")),
        _gpu(_process("host-memory", "60GiB", 0.9)),
        _gpu(_process("power", "60GiB", 0.9)),
        _gpu(_process("hot", "60GiB", 0.9)),
        _gpu(_process("input", "40GiB", 0.2)),
        _gpu(_process("finished", "60GiB", 0.9, ", busy: 1h, quiet: 90h")),
        _gpu(_process("busy", "70GiB", 0.95)),
        _gpu(_process("short", "70GiB", 0.0, start="241m")),
        "allocations:",
        *(f"  - {{gpu: {gpu}, pod: {{namespace: jobs, name: one-of-four}}, start: 5m}}" for gpu in range(4)),
        "  - {gpu: 4, pod: {namespace: jobs, name: nothing}, start: 5m}",
        "  - {gpu: 7, pod: {namespace: jobs, name: late}, start: 5m}",
        "faults:",
        "  - {kind: throttle, gpu: 10, by: sw_power_cap, at: 35m, for: 2h}",
        "  - {kind: throttle, gpu: 11, by: hw_thermal, at: 65m, for: 1h}",
    )
)
# CPUs, the part of them that is busy, bytes of memory used, and the limit.
_HOSTS = {
    "host-memory": (8, 0.5, 20 * GIB, 256 * GIB),
    "input": (16, 0.95, 100 * GIB, 128 * GIB),
    "busy": (16, 0.6, 100 * GIB, 128 * GIB),
}


@dataclass
class JobCgroups:
    """Adds the cgroups of the jobs to each Snapshot, as the reader of a machine does."""

    started: float = BEGUN

    def add(self, snapshot: Snapshot) -> Snapshot:
        found = {}
        for process in snapshot.processes:
            job = process.workload.pod
            if job in _HOSTS:
                cpus, busy, memory, limit = _HOSTS[job]
                cpu = round((snapshot.unix - self.started) * cpus * busy * 1e6)
                found[job] = CgroupUsage(process.workload, cpu, memory, False, limit, cpus, True)
        return replace(snapshot, cgroups=tuple(found.values()))


def write_books(folder: Path, hours: float = HOURS) -> Path:
    """Run the node; returns the ledger file."""
    clock = FakeClock(STARTED)
    store = Store(folder, "simulator", "", clock, RetentionLimits())
    ledger, lookup, cgroups = Ledger(LedgerSettings(), store), OwnerLookup(str), JobCgroups()
    states: list[NodeState] = []
    node = Node(
        Simulator(parse_scenario(SCENARIO, "jobs"), SourceSettings(), clock),
        name=lambda snapshot: cgroups.add(lookup.assign_owners(snapshot)),
        post=ledger.post,
        publish=states.append,
        required_quantities=lambda: SNAPSHOT_QUANTITIES | ledger.required_quantities,
        clock=clock,
        interval=TICK,
    )
    try:
        for _ in range(round((BEGUN - STARTED + hours * HOUR) / TICK) + 1):
            node.tick()
            states.clear()
            clock.advance(TICK)
    finally:
        store.close()
    return store.file


def receipt_of(
    file: Path,
    who: str,
    prices: Prices = PRICES,
    advice: AdviceSettings | None = None,
    since: str = "7d",
    until: str = "now",
) -> ReceiptJson:
    """The receipt from a ledger file, at its end."""
    with closing(History(file)) as history:
        requested = parse_range(since, until, "", history.last, UTC)
        within = resolve_watched_range(history, requested)
        scope = ReceiptScope(within, prices, (), "n1", advice or AdviceSettings(), history.last)
        return read_receipt(history, who, scope)
