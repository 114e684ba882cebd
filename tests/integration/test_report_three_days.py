"""Reports of eight simulated GPUs on three calendar days, 27 hours, compared with the true energy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from builders import FakeClock
from gpuledger.ledger.energy.gpu_energy_ledger import Posting
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.grouping import Key, find_grouping
from gpuledger.ledger.report.party import party_of
from gpuledger.ledger.report.report_keys import GROUPINGS
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.explain_query import ExplainScope, explain_usage
from gpuledger.ledger.store.explain_target import ExplainTarget
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import ENERGY
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.workload import KEY_FACTS
from gpuledger.workloads.owner_lookup import OwnerLookup
from report_helpers import (
    EVER,
    HOUR,
    build_reports_of_rows_once,
    exact_energy_cost,
    exact_time_cost,
    folded,
    lines_of,
    quarters,
    report_of,
    reports_of,
    same,
)
from unit.sources.simulator.support import UNIX, Node

# One worker simulates the days for all tests.
pytestmark = pytest.mark.group("three-days")

DAY = 24 * HOUR
# The longest interval that the ledger books.
STEP = 60.0
# The counter is continuous (`counter_refresh: 0`), so that the energy of an interval is known exactly; each
# reading is rounded down to a millijoule. One utilization sample per second instead of six saves a third of
# the test's time.
SCENARIO = """
templates:
  card: &card {model: NVIDIA H100 80GB HBM3, sm_count: 132, memory: 80GB, empty_watts: 70,
    resident_watts: 115, load_watts: 570, limit_watts: 700, counter_refresh: 0, samples_per_second: 1}
gpus:
  - <<: *card
    processes: [{name: python3, memory: 60GB, load: 0.9, busy: 50m, quiet: 10m,
      pod: {namespace: research, name: train-0, container: main}}]
  - <<: *card
    processes:
      - {name: triton, memory: 10GB, load: 0.4, busy: 20m, quiet: 40m,
         pod: {namespace: vision, name: detector-0, container: main}}
      - {name: vllm, memory: 20GB, load: 0.5, start: 150m, stop: 20h, busy: 7m, quiet: 9m,
         pod: {namespace: nlp, name: chat-0, container: main}}
      - {name: sidecar, memory: 1GB, start: 150m, stop: 20h,
         pod: {namespace: nlp, name: chat-0, container: side}}
  - <<: *card
    instances: &three
      - {gi: 1, ci: 0, profile: 3g.40gb, sm_count: 60, memory: 40GB}
      - {gi: 5, ci: 0, profile: 2g.20gb, sm_count: 32, memory: 20GB}
    repartitions: [{at: 19h, instances: [{gi: 2, ci: 0, profile: 4g.40gb, sm_count: 64, memory: 40GB}]}]
    processes:
      - {name: python3, gi: 1, memory: 10GB, load: 0.6, busy: 11m, quiet: 13m,
         pod: {namespace: research, name: mig-a, container: main}}
      - {name: python3, gi: 5, memory: 5GB, pod: {namespace: vision, name: mig-b, container: main}}
      - {name: python3, gi: 2, memory: 10GB, load: 0.7, start: 1170m,
         pod: {namespace: research, name: mig-c, container: main}}
  - <<: *card
    processes:
      - {type: mps-server, memory: 30MB, unit: nvidia-mps.service}
      - {type: mps-client, name: worker, memory: 5GB, load: 0.3,
         pod: {namespace: nlp, name: mps-0, container: w}}
      - {type: mps-client, name: worker, memory: 5GB, load: 0.2, start: 6h,
         pod: {namespace: nlp, name: mps-1, container: w}}
  - <<: *card
  - <<: *card
    processes:
      - {name: python3, user: ada, memory: 20GB, load: 0.8, every: 3h, for: 50m,
         slurm: {job: "4711", step: "0"}}
      - {name: python3, user: ben, memory: 9GB, load: 0.3, every: 5h, for: 4h,
         slurm: {job: "4712", step: "0"}}
  - <<: *card
    processes:
      - {name: jupyter, user: carl, memory: 9GB, load: 0.2, busy: 30m, quiet: 5h, start: 270m, stop: 25h}
  - <<: *card
allocations:
  - {gpu: 4, start: 3h, stop: 13h, pod: {namespace: research, name: forgotten-0, container: main}}
faults:
  - {kind: counter_reset, gpu: 1, at: 14h}
  - {kind: gpu_lost, gpu: 5, at: 10h, for: 10m}
  - {kind: process_list_fails, gpu: 6, at: 12h, for: 3m}
"""
# The program's runs in scenario seconds: it is killed once, and stopped for an hour.
RUNS = ((0.0, 8 * HOUR, "kill"), (8 * HOUR + 60, 17 * HOUR, "stop"), (18 * HOUR, 27 * HOUR, "stop"))


@dataclass
class Days:
    """The ledger, the counters as they were read, and the true joules of the observed intervals."""

    file: Path
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    true: dict[ProcessKey, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    processes: dict[ProcessKey, GpuProcess] = field(default_factory=dict)


class _TrueEnergy:
    """Collects the true energy of intervals; it is pending until the ledger has booked the interval."""

    def __init__(self, node: Node, days: Days) -> None:
        self._node = node
        self._days = days
        self._before: dict[ProcessKey, Fraction] = {}
        self._pending: dict[str, dict[ProcessKey, Fraction]] = defaultdict(lambda: defaultdict(Fraction))

    def advance(self, at: float) -> None:
        for account, joules in self._node.source.true_energy(at).items():
            if account.process is not None:
                gained = joules - self._before.get(account.process, Fraction(0))
                self._pending[account.gpu.uuid][account.process] += gained
                self._before[account.process] = joules

    def settle(self, uuid: str, *, observed: bool) -> None:
        for key, joules in self._pending.pop(uuid, {}).items():
            if observed:
                self._days.true[key] += joules

    def drop_pending(self) -> None:
        """Drop the pending energy, which is unobserved."""
        self._pending.clear()


class _CounterSums:
    """Sums what each counter counted, from its first move on."""

    def __init__(self, days: Days) -> None:
        self._days = days
        self._last: dict[str, int] = {}
        self._moved: set[str] = set()

    def add(self, snapshot: Snapshot) -> None:
        for reading in snapshot.readings:
            value, uuid = reading.get(ENERGY), reading.device.uuid
            if value is None:
                continue
            before = self._last.get(uuid)
            if before is not None and value != before:
                # A lower value was counted from 0: the driver was reloaded.
                gained = int(value) - before if value > before else int(value)
                self._days.counters[uuid] += gained if uuid in self._moved else 0
                self._moved.add(uuid)
            self._last[uuid] = int(value)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Days:
    folder = tmp_path_factory.mktemp("days")
    days = Days(folder / "gpuledger.db")
    node = Node(SCENARIO)
    truth, counters = _TrueEnergy(node, days), _CounterSums(days)
    owner_lookup = OwnerLookup(str)
    for begins, ends, end in RUNS:
        clock = FakeClock(UNIX)
        store = Store(folder, "gpuledger", "boot", clock, RetentionLimits())
        ledger = Ledger(LedgerSettings(), store)
        for at in _moments(begins, ends):
            snapshot = owner_lookup.assign_owners(node.at(at, ledger.required_quantities | {ENERGY}))
            counters.add(snapshot)
            days.processes |= {process.key: process for process in snapshot.processes}
            truth.advance(at)
            if at in (begins, STEP):
                # The ledger does not book the energy before the first move of a counter.
                truth.drop_pending()
            _post(ledger, snapshot, truth)
        if end == "kill":
            assert store._connection is not None
            assert store._lock is not None
            store._connection.close()
            store._connection = None
            store._lock.release()
        else:
            store.close()
    return days


@pytest.fixture(scope="module")
def partly(days: Days) -> Path:
    """The ledger with the first 15 hours folded."""
    return folded(days.file, UNIX + 15.5 * HOUR, days.file.parent / "partly.db")


@pytest.fixture(scope="module")
def wholly(days: Days) -> Path:
    """The ledger with all hours folded."""
    return folded(days.file, UNIX + 4 * DAY, days.file.parent / "wholly.db")


def _moments(begins: float, ends: float) -> Iterator[float]:
    at = begins
    while at <= ends:
        yield at
        at += STEP


def _post(ledger: Ledger, snapshot: Snapshot, truth: _TrueEnergy) -> None:
    posted: list[Posting] = []
    post = ledger.energy.post

    def recorded(seen: Snapshot, serving: frozenset[ProcessKey]) -> list[Posting]:
        posted.extend(post(seen, serving))
        return list(posted)

    with patch.object(ledger.energy, "post", recorded):
        ledger.post(snapshot)
    for one in posted:
        truth.settle(one.gpu.uuid, observed=not one.unobserved)


def test_totals_equal_the_counters_to_the_millijoule(days: Days) -> None:
    found = report_of(days.file)
    assert {gpu.uuid: gpu.millijoules for gpu in found.gpus} == days.counters
    assert found.total.millijoules == sum(days.counters.values())
    assert {line.account for line in found.gpu_accounts if line.millijoules} >= {"idle", "unobserved"}


# Keys for which the scenario has several names; its only unit is that of the MPS server.
KEYS = [by for by in GROUPINGS if by not in {"controller", "model", *KEY_FACTS}]


@pytest.mark.parametrize("by", KEYS)
def test_the_true_energy_is_within_the_bounds_of_each_row(days: Days, by: str) -> None:
    with closing(History(days.file)) as history:
        grouping = find_grouping(by, history.devices)
    true: dict[Key, Fraction] = defaultdict(Fraction)
    for key, joules in days.true.items():
        process = days.processes[key]
        true[grouping.key(party_of(process.device.uuid, process.workload, process.command))] += joules
    lines = lines_of(report_of(days.file, by))
    assert len(lines) > (0 if by == "unit" else 2)
    for key, line in lines.items():
        assert line.high is not None
        # Readings are rounded down to a millijoule.
        assert line.measured / 1000 - 1 <= true[key] <= line.high / 1000 + 1, (key, line)
        assert line.measured <= line.millijoules <= line.high


@pytest.mark.parametrize("by", [*KEYS, "label:team"])
def test_folding_does_not_change_a_report(days: Days, partly: Path, wholly: Path, by: str) -> None:
    middle = (int(UNIX) // HOUR + 2) * HOUR
    wanted = [(by, between) for between in (EVER, (middle, middle + DAY), (middle, middle + HOUR))]
    before = reports_of(days.file, wanted)
    assert all(report.lines for report in before)
    for other in (partly, wholly):
        assert all(map(same, before, reports_of(other, wanted)))


@pytest.mark.parametrize("by", GROUPINGS)
def test_explanations_add_up_to_the_report(
    days: Days, partly: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_reports_of_rows_once(monkeypatch)
    middle = int(UNIX) // HOUR + 2
    prices = Prices(kwh=Decimal("0.3"), gpu_hour=Decimal("2.4"))
    for file in (days.file, partly):
        for since, until in ((0, EVER[1] // HOUR), (middle, middle + 24)):
            between = (since * HOUR, until * HOUR)
            report = report_of(file, by, between, prices)
            texts = {ExplainTarget(by, line.key).prefixed(): line for line in report.lines[:5]}
            # Those of the GPUs are the same for every key.
            texts |= {line.account: line for line in report.gpu_accounts} if by == "owner" else {}
            with closing(History(file)) as history:
                for text, line in texts.items():
                    found = explain_usage(history, text, ExplainScope(quarters(*between), prices))
                    assert found.row is not None
                    assert found.row.line == line
                    intervals = list(found.intervals)
                    sums = (found.millijoules, sum(one.high or 0 for one in intervals))
                    assert sums == (line.millijoules, line.high or 0), text
                    assert found.billed_microseconds == (line.gpu_microseconds or 0), text
                    assert exact_time_cost(found) == (line.time_cost or 0)
                    assert exact_energy_cost(found, intervals) == line.energy_cost


def test_gpu_hours_match_the_scenario(days: Days) -> None:
    pods = lines_of(report_of(days.file, "pod"))
    two_steps = 2 * STEP / HOUR
    # The time between the runs is unobserved.
    away = sum(begins - ends for (_, ends, _), (begins, _, _) in pairwise(RUNS)) / HOUR
    known = {
        # Two containers on one GPU count once.
        ("nlp", "chat-0"): 17.5 - away,
        # 60 of 132 multiprocessors, until the MIG layout changed.
        ("research", "mig-a"): (19 - away) * 60 / 132,
        ("research", "mig-c"): 7.5 * 64 / 132,
        ("research", "train-0"): 27 - away,
    }
    for key, hours in known.items():
        assert float(pods[key].resident or 0) / HOUR == pytest.approx(hours, abs=two_steps), key


def test_an_allocated_gpu_without_processes_is_held_all_the_time(days: Days) -> None:
    (line,) = (line for key, line in lines_of(report_of(days.file, "pod")).items() if key[1] == "forgotten-0")
    assert line.millijoules == 0
    assert float(line.allocated or 0) / HOUR == pytest.approx(10, abs=0.1)
    assert float(line.held or 0) / HOUR == pytest.approx(10, abs=0.1)
    assert line.resident == 0
