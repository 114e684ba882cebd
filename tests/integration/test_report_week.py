"""A simulated week of eight GPUs, whose true joules are known: what a report of its books must be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from builders import FakeClock
from gpuledger.ledger.energy.gpu_book import Posted
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.grouping import GROUPINGS, Key, grouping, party_of
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.evidence import explain
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.retention import Limits
from gpuledger.ledger.store.store import Store
from gpuledger.model.process import GpuProcess, ProcessKey
from gpuledger.model.quantities import ENERGY
from gpuledger.model.snapshot import Snapshot
from gpuledger.workloads.naming import Workloads
from report_helpers import EVER, HOUR, folded, lines_of, report_of, same
from unit.sources.simulator.support import UNIX, Node

# One process makes the week, whichever tests of it others run.
pytestmark = pytest.mark.xdist_group("week")

DAY = 24 * HOUR
STEP = 45.0
# The counter is continuous here, so that the truth of an interval is that of its energy; each reading of it
# is rounded down to a millijoule. A card has six samples of its
# engines a second; of one each the week is made in two thirds of the time.
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
      - {name: vllm, memory: 20GB, load: 0.5, start: 5h, stop: 100h, busy: 7m, quiet: 9m,
         pod: {namespace: nlp, name: chat-0, container: main}}
      - {name: sidecar, memory: 1GB, start: 5h, stop: 100h,
         pod: {namespace: nlp, name: chat-0, container: side}}
  - <<: *card
    instances: &three
      - {gi: 1, ci: 0, profile: 3g.40gb, sm_count: 60, memory: 40GB}
      - {gi: 5, ci: 0, profile: 2g.20gb, sm_count: 32, memory: 20GB}
    repartitions: [{at: 96h, instances: [{gi: 2, ci: 0, profile: 4g.40gb, sm_count: 64, memory: 40GB}]}]
    processes:
      - {name: python3, gi: 1, memory: 10GB, load: 0.6, busy: 11m, quiet: 13m,
         pod: {namespace: research, name: mig-a, container: main}}
      - {name: python3, gi: 5, memory: 5GB, pod: {namespace: vision, name: mig-b, container: main}}
      - {name: python3, gi: 2, memory: 10GB, load: 0.7, start: 97h,
         pod: {namespace: research, name: mig-c, container: main}}
  - <<: *card
    processes:
      - {type: mps-server, memory: 30MB, unit: nvidia-mps.service}
      - {type: mps-client, name: worker, memory: 5GB, load: 0.3,
         pod: {namespace: nlp, name: mps-0, container: w}}
      - {type: mps-client, name: worker, memory: 5GB, load: 0.2, start: 30h,
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
      - {name: jupyter, user: carl, memory: 9GB, load: 0.2, busy: 30m, quiet: 11h, start: 9h, stop: 150h}
  - <<: *card
allocations:
  - {gpu: 4, start: 10h, stop: 34h, pod: {namespace: research, name: forgotten-0, container: main}}
faults:
  - {kind: counter_reset, gpu: 1, at: 70h}
  - {kind: gpu_lost, gpu: 5, at: 50h, for: 10m}
  - {kind: process_list_fails, gpu: 6, at: 60h, for: 3m}
"""
# When the program ran, in scenario seconds: killed once, stopped once, away for an hour.
RUNS = ((0.0, 40 * HOUR, "kill"), (40 * HOUR + 60, 80 * HOUR, "stop"), (81 * HOUR, 7 * DAY, "stop"))


@dataclass
class Week:
    """The books, the counters as they were read, and the true joules of the intervals that were observed."""

    file: Path
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    true: dict[ProcessKey, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    people: dict[ProcessKey, GpuProcess] = field(default_factory=dict)


class _Truth:
    """Pending until the books tell whether an interval was observed."""

    def __init__(self, node: Node, week: Week) -> None:
        self._node = node
        self._week = week
        self._before: dict[ProcessKey, Fraction] = {}
        self._pending: dict[str, dict[ProcessKey, Fraction]] = defaultdict(lambda: defaultdict(Fraction))

    def go_on(self, at: float) -> None:
        for account, joules in self._node.source.truth(at).items():
            if account.process is not None:
                gained = joules - self._before.get(account.process, Fraction(0))
                self._pending[account.gpu.uuid][account.process] += gained
                self._before[account.process] = joules

    def settle(self, uuid: str, *, observed: bool) -> None:
        for key, joules in self._pending.pop(uuid, {}).items():
            if observed:
                self._week.true[key] += joules

    def forget(self) -> None:
        """Nobody looked: what was used meanwhile is unobserved."""
        self._pending.clear()


class _Counters:
    """What the counters counted while they were believed, from their first move on."""

    def __init__(self, week: Week) -> None:
        self._week = week
        self._last: dict[str, int] = {}
        self._moved: set[str] = set()

    def read(self, snapshot: Snapshot) -> None:
        for reading in snapshot.readings:
            value, uuid = reading.get(ENERGY), reading.device.uuid
            if value is None:
                continue
            before = self._last.get(uuid)
            if before is not None and value != before:
                # A lower one was counted from 0 on: the driver was loaded anew.
                gained = int(value) - before if value > before else int(value)
                self._week.counters[uuid] += gained if uuid in self._moved else 0
                self._moved.add(uuid)
            self._last[uuid] = int(value)


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Week:
    folder = tmp_path_factory.mktemp("week")
    made = Week(folder / "gpuledger.db")
    node = Node(SCENARIO)
    truth, counters = _Truth(node, made), _Counters(made)
    naming = Workloads(str)
    for begins, ends, end in RUNS:
        clock = FakeClock(UNIX)
        store = Store(folder, "gpuledger", "boot", clock, Limits())
        ledger = Ledger(LedgerSettings(), store)
        for at in _moments(begins, ends):
            snapshot = naming.name(node.at(at, ledger.wants | {ENERGY}))
            counters.read(snapshot)
            made.people |= {process.key: process for process in snapshot.processes}
            truth.go_on(at)
            if at in (begins, STEP):
                # The energy before the first move of a counter is in no books.
                truth.forget()
            _post(ledger, snapshot, truth)
        if end == "kill":
            assert store._connection is not None
            assert store._lock is not None
            store._connection.close()
            store._connection = None
            store._lock.release()
        else:
            store.close()
    return made


@pytest.fixture(scope="module")
def partly(week: Week) -> Path:
    """The week's books with everything before the fourth day folded, and some of that day."""
    return folded(week.file, UNIX + 3.3 * DAY, week.file.parent / "partly.db")


@pytest.fixture(scope="module")
def wholly(week: Week) -> Path:
    """The week's books with everything folded."""
    return folded(week.file, UNIX + 8 * DAY, week.file.parent / "wholly.db")


def _moments(begins: float, ends: float) -> Iterator[float]:
    at = begins
    while at <= ends:
        yield at
        at += STEP


def _post(ledger: Ledger, snapshot: Snapshot, truth: _Truth) -> None:
    posted: list[Posted] = []
    post = ledger.energy.post

    def noted(seen: Snapshot) -> list[Posted]:
        posted.extend(post(seen))
        return list(posted)

    with patch.object(ledger.energy, "post", noted):
        ledger.post(snapshot)
    for one in posted:
        truth.settle(one.gpu.uuid, observed=not one.unobserved)


def test_totals_are_the_counters_to_the_millijoule(week: Week) -> None:
    found = report_of(week.file)
    assert {gpu.uuid: gpu.millijoules for gpu in found.gpus} == week.counters
    assert found.total.millijoules == sum(week.counters.values())
    assert {line.account for line in found.own if line.millijoules} >= {"idle", "unobserved"}


@pytest.mark.parametrize("by", GROUPINGS)
def test_the_true_joules_lie_within_the_bounds_of_every_row(week: Week, by: str) -> None:
    with closing(History(week.file)) as history:
        whose = grouping(by, history.devices)
    true: dict[Key, Fraction] = defaultdict(Fraction)
    for key, joules in week.true.items():
        process = week.people[key]
        true[whose.key(party_of(process.device.uuid, process.workload, process.command))] += joules
    lines = lines_of(report_of(week.file, by))
    assert len(lines) > 2
    for key, line in lines.items():
        assert line.high is not None
        # A reading rounded down at each end of each stretch.
        assert line.measured / 1000 - 1 <= true[key] <= line.high / 1000 + 1, (key, line)
        assert line.measured <= line.millijoules <= line.high


@pytest.mark.parametrize("by", [*GROUPINGS, "label:team"])
def test_folding_changes_nothing(week: Week, partly: Path, wholly: Path, by: str) -> None:
    middle = (int(UNIX) // HOUR + 30) * HOUR
    for between in (EVER, (middle, middle + 3 * DAY), (middle, middle + HOUR)):
        before = report_of(week.file, by, between)
        assert before.lines
        assert same(before, report_of(partly, by, between))
        assert same(before, report_of(wholly, by, between))


def test_explaining_adds_up_to_the_bill(week: Week, wholly: Path) -> None:
    bills = lines_of(report_of(week.file, "pod"))
    assert len(bills) > 7
    for file in (week.file, wholly):
        with closing(History(file)) as history:
            for (namespace, pod), line in bills.items():
                if pod and line.millijoules:
                    told = explain(history, f"{namespace}/{pod}", 0, 2**40)
                    figures = (told.millijoules, told.measured, told.high)
                    assert figures == (line.millijoules, line.measured, line.high)


def test_gpu_hours_are_those_of_the_scenario(week: Week) -> None:
    pods = lines_of(report_of(week.file, "pod"))
    an_interval = 2 * STEP / HOUR
    # Between the runs nobody looked.
    away = sum(begins - ends for (_, ends, _), (begins, _, _) in pairwise(RUNS)) / HOUR
    known = {
        # Two containers on one GPU count once.
        ("nlp", "chat-0"): 95 - away,
        # 60 of 132 multiprocessors, until the GPU was cut anew.
        ("research", "mig-a"): (96 - away) * 60 / 132,
        ("research", "mig-c"): 71 * 64 / 132,
        ("research", "train-0"): 168 - away,
    }
    for key, hours in known.items():
        assert float(pods[key].resident or 0) / HOUR == pytest.approx(hours, abs=an_interval), key


def test_a_gpu_that_was_handed_over_and_forgotten_is_held_all_the_time(week: Week) -> None:
    (line,) = (line for key, line in lines_of(report_of(week.file, "pod")).items() if key[1] == "forgotten-0")
    assert line.millijoules == 0
    assert float(line.allocated or 0) / HOUR == pytest.approx(24, abs=0.1)
    assert float(line.held or 0) / HOUR == pytest.approx(24, abs=0.1)
    assert line.resident == 0
