"""The energy ledger against the simulator, which knows the true energy."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.ledger.energy.counter import EnergyCounter
from gpuledger.ledger.energy.energy_ledger import EnergyLedger, StoredGpuEnergy
from gpuledger.ledger.energy.floor import Floors
from gpuledger.ledger.energy.gpu_energy_ledger import GpuEnergyLedger, Posting
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.sources.simulator.scenario_parser import load_scenario
from unit.sources.simulator.support import Node


class Totals:
    """Sums all postings, for comparison with the counters."""

    def __init__(self, floors: Floors | None = None) -> None:
        self.book = EnergyLedger(floors or Floors())
        self.postings: list[Posting] = []
        self.accounts: dict[tuple[str, object], int] = defaultdict(int)

    def post(self, snapshot: object) -> None:
        for one in self.book.post(snapshot):  # type: ignore[arg-type]  # a Snapshot
            self.postings.append(one)
            uuid = one.gpu.uuid
            self.accounts[uuid, "idle"] += one.booked.idle
            self.accounts[uuid, "unattributed"] += one.booked.unattributed
            self.accounts[uuid, "unobserved"] += one.unobserved
            for key, joules in one.booked.processes.items():
                self.accounts[uuid, key[1:]] += joules

    def restart(self) -> None:
        """Simulate a restart of the program, with the stored state only."""
        kept = {
            uuid: StoredGpuEnergy(book.counter, {book.driver: (book.floors.empty, book.floors.resident)})
            for uuid, book in self.book.gpu_ledgers.items()
        }
        self.book = EnergyLedger(Floors())
        self.book.resume(kept)

    def total(self, uuid: str) -> int:
        return sum(joules for (gpu, _), joules in self.accounts.items() if gpu == uuid)


def assert_balance(totals: Totals) -> None:
    """Assert that per epoch, closing minus opening is the sum of all accounts, to the millijoule."""
    for uuid, book in totals.book.gpu_ledgers.items():
        counter = book.counter
        if counter.opening is not None:
            assert totals.total(uuid) == counter.booked - counter.opening


@pytest.mark.parametrize("name", ["k8s-node", "workstation", "mixed-lab"])
def test_ten_minutes_of_a_node_balance_to_the_millijoule(name: str) -> None:
    node, totals = Node(load_scenario(name)), Totals()
    for second in range(600):
        totals.post(node.at(float(second)))
    assert_balance(totals)
    assert any(key != "idle" for _, key in totals.accounts)


process = st.fixed_dictionaries(
    {},
    optional={
        "load": st.sampled_from([0.0, 0.2, 0.5, 0.9]),
        "start": st.integers(0, 60),
        "stop": st.integers(61, 120),
        "type": st.sampled_from(["C", "G", "C+G", "mps-client", "mps-server"]),
        "rhythm": st.sampled_from([(1, 1), (3, 2), (10, 20)]),
    },
)
PARTS = [
    {"gi": 1, "ci": 0, "profile": "4g.40gb", "sm_count": 64, "memory": "40GB"},
    {"gi": 9, "ci": 0, "profile": "1g.10gb", "sm_count": 16, "memory": "10GB"},
]


def written(one: dict[str, object], number: int, *, mig: bool) -> dict[str, object]:
    """A process in the form of a scenario file."""
    made = {"name": "python3", "memory": "100MB", **one}
    busy, quiet = made.pop("rhythm", (None, None))  # type: ignore[misc]  # a pair, or nothing
    if made.get("type") == "mps-server":
        made.pop("load", None)
    elif busy is not None and made.get("load"):
        made |= {"busy": busy, "quiet": quiet}
    if mig:
        made.pop("type", None)
        made["gi"] = 9 if number % 2 else 1
    return made


@st.composite
def scenarios(draw: st.DrawFn) -> str:
    gpus = []
    for _ in range(draw(st.integers(1, 8))):
        mig = draw(st.booleans())
        crowd = draw(st.lists(process, max_size=4))
        card: dict[str, object] = {
            "empty_watts": 60,
            "resident_watts": 90,
            "load_watts": 500,
            "limit_watts": 700,
            "counter_refresh": draw(st.sampled_from([0, 0.1, 1, 5])),
            "processes": [written(one, number, mig=mig) for number, one in enumerate(crowd)],
        }
        gpus.append(card | ({"instances": PARTS} if mig else {}))
    faults = [
        {"kind": kind, "gpu": 0, "at": draw(st.integers(5, 100)), "for": draw(st.integers(1, 8))}
        for kind in draw(st.lists(st.sampled_from(["gpu_lost", "process_list_fails"]), max_size=2))
    ]
    faults += [{"kind": "counter_reset", "gpu": 0, "at": draw(st.integers(5, 100))}] * draw(st.integers(0, 1))
    return json.dumps({"gpus": gpus, "faults": faults})


class Epochs:
    """The counters' own sums: closing minus opening, summed over the epochs of each Gpu."""

    def __init__(self) -> None:
        self._closed: dict[str, int] = defaultdict(int)
        self._now: dict[str, EnergyCounter] = {}

    def watch(self, books: dict[str, GpuEnergyLedger]) -> None:
        for uuid, book in books.items():
            before, now = self._now.get(uuid), book.counter
            if before is not None and before.opening is not None and now.epoch_number != before.epoch_number:
                assert before.last is not None
                self._closed[uuid] += before.last - before.opening
            self._now[uuid] = now

    def total(self, uuid: str) -> int:
        now = self._now[uuid]
        pending = now.tail
        if now.opening is None or now.last is None:
            return self._closed[uuid]
        return self._closed[uuid] + now.last - pending - now.opening


step = st.tuples(st.sampled_from([0.25, 1.0, 1.0, 2.0, 7.0, 70.0]), st.sampled_from([False] * 9 + [True]))


@given(scenarios(), st.lists(step, min_size=5, max_size=60))
def test_under_any_faults_no_energy_is_lost_or_invented(
    scenario: str, steps: list[tuple[float, bool]]
) -> None:
    """Ticks of any length, lost GPUs and lists, resets, restarts: the accounts sum to the counters."""
    node, totals, epochs = Node(scenario), Totals(), Epochs()
    at = 0.0
    for gap, restarts in steps:
        if restarts:
            totals.restart()
        seen = len(totals.postings)
        totals.post(node.at(at))
        epochs.watch(totals.book.gpu_ledgers)
        at += gap
        for one in totals.postings[seen:]:
            shares = (one.booked.idle, one.booked.unattributed, *one.booked.processes.values())
            assert min(*shares, one.unobserved) >= 0
            assert sum(shares) == one.booked.delta
    for uuid in totals.book.gpu_ledgers:
        # Integrated power replaces a frozen counter and belongs to no epoch.
        integrated = sum(
            one.millijoules for one in totals.postings if one.integrated and one.gpu.uuid == uuid
        )
        assert totals.total(uuid) - integrated == epochs.total(uuid)


def test_an_exclusive_process_is_billed_its_true_energy() -> None:
    scenario = """
gpus:
  - {empty_watts: 60, resident_watts: 60, load_watts: 400, limit_watts: 700, counter_refresh: 0,
     processes: [{name: python3, memory: 1GB, load: 0.7, noise: 0.2}]}
"""
    node, totals = Node(scenario), Totals(Floors(60_000, 60_000))
    for second in range(120):
        totals.post(node.at(float(second)))
    (uuid,) = totals.book.gpu_ledgers
    opening = totals.postings[0].begins - 1_700_000_000.0
    true = sum(
        joules for account, joules in node.source.true_energy(119.0).items() if account.kind == "process"
    ) - sum(
        joules for account, joules in node.source.true_energy(opening).items() if account.kind == "process"
    )
    (billed,) = (joules for (_, key), joules in totals.accounts.items() if isinstance(key, tuple))
    assert abs(Fraction(billed, 1000) - true) <= 1
    assert {one.booked.method for one in totals.postings} == {"measured"}
    assert totals.total(uuid) == billed


SHARED = """
gpus:
  - {empty_watts: 60, resident_watts: 90, load_watts: 400, limit_watts: 700, counter_refresh: 1,
     processes: [
       {name: a, memory: 1GB, load: 0.4, start: 5, stop: 70},
       {name: b, memory: 1GB, load: 0.3, busy: 4, quiet: 3, start: 20},
       {name: c, memory: 1GB, start: 10, stop: 110},
     ]}
"""


@st.composite
def shared(draw: st.DrawFn) -> str:
    """One GPU with up to thirty processes that start, stop, share and idle; the counter is refreshed each
    second.
    """
    crowd = draw(st.lists(process, min_size=1, max_size=30))
    card = {
        "empty_watts": draw(st.sampled_from([0, 60])),
        "resident_watts": 90,
        "load_watts": 400,
        "limit_watts": 700,
        "counter_refresh": 1,
        "processes": [written(one | {"type": "C"}, number, mig=False) for number, one in enumerate(crowd)],
    }
    return json.dumps({"gpus": [card]})


@given(shared(), st.integers(0, 1000))
@settings(max_examples=15)
def test_the_true_energy_is_within_the_bounds_of_every_session(scenario: str, seed: int) -> None:
    """Low is the measured energy, high all of the GPU's meanwhile; a refresh at each end is not visible."""
    node, ledger = Node(scenario, seed=seed), Ledger(LedgerSettings())
    sessions = []
    for second in range(150):
        ledger.post(node.at(float(second)))
        sessions += ledger.sessions.ended
    sessions += ledger.sessions.open()
    true = {account.process: joules for account, joules in node.source.true_energy(149.0).items()}
    a_refresh_at_each_end = 2 * 1 * 700
    assert sessions
    for session in sessions:
        joules = true[session.process.key]
        assert session.measured / 1000 <= joules + a_refresh_at_each_end
        assert joules <= session.high / 1000 + a_refresh_at_each_end
        assert session.measured + session.apportioned <= session.high


def test_an_idle_process_is_held_all_the_time_and_a_busy_one_never() -> None:
    node, ledger = Node(SHARED), Ledger(LedgerSettings())
    for second in range(100):
        ledger.post(node.at(float(second)))
    held = {one.process.name: one.held_seconds for one in ledger.sessions.open()}
    assert held["c"] == pytest.approx(89, abs=1)
    assert held["b"] < 60
