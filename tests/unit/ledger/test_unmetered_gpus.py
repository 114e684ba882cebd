"""A GPU that cannot be measured has no energy: absent, not 0, in series, the API and reports."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from builders import FakeClock, gpu, instance, node_state, process, reading
from gpuledger.dialects.energy import EnergyDialect
from gpuledger.dialects.native.ledger import energy_families
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.receipt.text import receipt_text
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.store.explain_query import ExplainScope, explain_usage
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_query import ReceiptScope, read_receipt
from gpuledger.ledger.store.report_query import build_report
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import Quantity
from gpuledger.model.session import LedgerState
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Workload
from gpuledger.web.api.snapshot import build_snapshot
from ledger_helpers import SETTINGS, UNIX, assert_exports_everything, open_store
from money_helpers import prices
from report_helpers import folded, quarters, same

OLD, NEW = gpu(0, name="GTX 1050 Ti"), gpu(1, name="A100")
MIA, TOM = Workload("user", user="mia"), Workload("user", user="tom")
ON_OLD, ON_NEW = process(OLD, 1, workload=MIA), process(NEW, 2, workload=TOM)
ADVICE = AdviceSettings()
ENERGY = Prices(kwh=Decimal("0.3"), currency="EUR", co2=Decimal(400))
BOTH = Prices(kwh=Decimal("0.3"), gpu_hour=Decimal(2), currency="EUR")


class Bench:
    """A node with a ledger; the GPUs that are passed as `watts` report power, the others have no meter."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, FakeClock(UNIX - UNIX % 3600)
        self.start()

    def start(self) -> None:
        self.store = open_store(self.folder, "boot-1", self.clock, name="test")
        self.ledger = Ledger(SETTINGS, self.store)

    def restart(self) -> None:
        self.store.close()
        self.start()

    def run(
        self,
        processes: Sequence[GpuProcess],
        watts: dict[Device, float],
        seconds: int = 10,
        devices: Sequence[Device] = (OLD, NEW),
        step: float = 1.0,
        counters: Mapping[Device, int] | None = None,
    ) -> LedgerState:
        """`counters` are the millijoules per second of GPUs with an energy counter."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            readings = tuple(
                reading(
                    card,
                    *(one for one in processes if one.device == card),
                    values=self._values(card, watts, counters or {}),
                )
                for card in devices
            )
            now = self.clock.now_elapsed
            seen = Snapshot(self.clock.now_unix, now, SourceInfo("test"), readings, boot_id="boot-1")
            state = self.ledger.post(seen)
            self.state, self.seen = state, seen
            assert_exports_everything(state.energy)
        return state

    def _values(
        self, card: Device, watts: Mapping[Device, float], counters: Mapping[Device, int]
    ) -> dict[Quantity, float]:
        if card in counters:
            return {q.ENERGY: int(counters[card] * self.clock.now_elapsed)}
        return {q.POWER: watts[card]} if card in watts else {}

    def series(self) -> dict[str, dict[str, float]]:
        """Energy, measured energy and activity by pid."""
        dialect = EnergyDialect(DialectSettings())
        return {
            family.spec.name.removeprefix("my_gpu_process_"): {
                labels[0]: value for labels, value in family.samples.items()
            }
            for family in dialect.families(node_state(self.seen, self.state))
        }

    def api_joules(self) -> dict[int, float | None]:
        """Joules of the API's snapshot by pid."""
        found = build_snapshot(node_state(self.seen, self.state), "node")["processes"]
        return {row["pid"]: row["joules"] for row in found}

    def report(self, by: str = "user", prices: Prices = ENERGY) -> UsageReport:
        self.store.close()
        history = History(self.store.file)
        try:
            return build_report(history, by, prices, quarters(0, 2**32 // 900 * 900))
        finally:
            history.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def test_a_process_on_an_unmetered_gpu_has_no_energy_sample(bench: Bench) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0})
    series = bench.series()
    assert series["energy_joules"].keys() == series["energy_measured_joules"].keys() == {"2"}
    assert series["active"].keys() == {"1", "2"}, "everything else is known"
    joules = bench.api_joules()
    assert joules[1] is None
    assert joules[2]


def test_a_gpu_without_a_meter_has_no_total_after_a_restart_either(bench: Bench) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0})
    bench.restart()
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0})
    for family in energy_families(node_state(bench.seen, bench.state)):
        assert OLD.uuid not in {labels[0] for labels in family.samples}, family.spec.name
    assert bench.series()["energy_joules"].keys() == {"2"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_driver_that_begins_to_report_power_starts_the_series_at_0(bench: Bench, restarted: bool) -> None:
    bench.run([ON_OLD], {}, devices=(OLD,))
    if restarted:
        bench.restart()
    exported = []
    for _ in range(4):
        bench.run([ON_OLD], {OLD: 100.0}, seconds=1, devices=(OLD,))
        exported.append(bench.series()["energy_joules"]["1"])
    assert exported == [0.0, 0.0, 200.0, 300.0], "held at 0, so that increase() counts it all"


def test_a_process_that_came_after_the_meter_failed_has_no_energy(bench: Bench) -> None:
    late = process(OLD, 3, workload=TOM, ticks=2)
    bench.run([ON_OLD], {OLD: 100.0}, seconds=30, devices=(OLD,))
    bench.run([ON_OLD], {}, seconds=90, devices=(OLD,))
    bench.run([ON_OLD, late], {}, seconds=90, devices=(OLD,))
    series = bench.series()
    assert series["energy_joules"] == {"1": pytest.approx(2900.0)}
    assert bench.api_joules() == {1: pytest.approx(2900.0), 3: None}


def test_a_short_failure_of_the_meter_removes_nothing(bench: Bench) -> None:
    bench.run([ON_OLD], {OLD: 100.0}, devices=(OLD,))
    bench.run([ON_OLD, process(OLD, 3, ticks=2)], {}, seconds=5, devices=(OLD,))
    assert bench.series()["energy_joules"].keys() == {"1", "3"}


def lines_of(report: UsageReport) -> dict[str, str]:
    text = report_table(report, 0)
    return {line.split()[0]: line for line in text.splitlines() if line}


def test_a_table_says_no_data_and_how_many_gpus_the_total_leaves_out(bench: Bench) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0}, seconds=60)
    text = report_table(bench.report(), 0)
    (mia,) = (line for line in text.splitlines() if line.startswith("mia"))
    words = mia.split()
    # Two minutes are 0.03 hours: of two equal rows, the first has the larger number.
    assert words[:3] == ["mia", "1", "0.01"]
    assert "no data" in mia
    assert "1 of 2 GPUs is not measured" in text
    assert "GTX 1050 Ti" in text
    assert "2 GPUs, by user" in text


def test_files_have_empty_cells_and_null(bench: Bench) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0}, seconds=60)
    report = bench.report()
    mia, tom = sorted(csv.DictReader(io.StringIO(as_csv(report))), key=lambda row: row["user"])[-2:]
    names = ("kwh", "measured_kwh", "apportioned_kwh", "low_kwh", "high_kwh", "cost", "co2_kg", "millijoules")
    assert {mia[name] for name in names} == {""}
    assert float(mia["gpu_hours"]) == pytest.approx(60 / 3600, rel=0.05)
    assert (mia["unmetered_gpus"], tom["unmetered_gpus"]) == ("1", "0")
    document = as_json(report)
    (row,) = (row for row in document["rows"] if row["user"] == "mia")
    assert {row[name] for name in names} == {None}
    assert document["total"]["unmetered_gpus"] == 1
    assert document["total"]["millijoules"] == document["rows"][0]["millijoules"]
    assert {gpu["gpu"]: gpu["millijoules"] is None for gpu in document["gpus"]} == {"0": True, "1": False}


def test_focus_has_no_charge_for_energy_that_was_not_measured(bench: Bench) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0}, seconds=60)
    charges = list(csv.DictReader(io.StringIO(as_focus(bench.report(prices=BOTH), "node"))))
    assert {(row["AllocatedResourceName"], row["SkuId"]) for row in charges} == {
        ("mia", "gpu-time"),
        ("tom", "gpu-time"),
        ("tom", "gpu-energy"),
    }


def test_the_cost_without_the_energy_is_marked(bench: Bench) -> None:
    """Time has a price without a meter."""
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0}, seconds=360)
    report = bench.report(prices=BOTH)
    costs = {line.key[0]: line.cost for line in report.lines}
    assert float(costs["mia"] or 0) == pytest.approx(0.2, rel=0.01)
    assert lines_of(report)["mia"].split()[-1] == "0.20+"


def test_a_row_with_some_unmetered_gpus_has_the_measured_part(bench: Bench) -> None:
    bench.run([process(OLD, 1, workload=TOM), ON_NEW], {NEW: 100.0}, seconds=3600, step=10.0)
    (line,) = (report := bench.report()).lines
    assert line.millijoules
    assert line.high is None, "what was not measured has no bound"
    assert line.unmetered == {OLD.uuid}
    assert lines_of(report)["tom"].split()[3] == "0.100+"


def test_without_any_meter_the_total_is_unknown(bench: Bench) -> None:
    bench.run([ON_OLD], {}, devices=(OLD,), seconds=60)
    report = bench.report()
    assert (report.total.energy, report.total.cost, report.total.grams) == (None, None, None)
    assert all(line.energy is None for line in report.gpu_accounts)
    assert lines_of(report)["total"].split()[3:5] == ["no", "data"]


def test_a_gpu_that_was_measured_for_half_of_the_time_is_named(bench: Bench) -> None:
    bench.run([ON_OLD], {OLD: 100.0}, devices=(OLD,), seconds=1800, step=10.0)
    bench.run([ON_OLD], {}, devices=(OLD,), seconds=1800, step=10.0)
    report = bench.report()
    (line,) = report.lines
    assert line.millijoules == pytest.approx(179e6, rel=0.01)
    assert line.unmetered == {OLD.uuid}
    assert "not measured for a part of the time" in " ".join(report.notes)


def test_a_measured_gpu_is_not_named(bench: Bench) -> None:
    bench.run([ON_NEW], {NEW: 100.0}, devices=(NEW,), seconds=3600, step=10.0)
    report = bench.report()
    assert not report.notes
    assert not report.total.unmetered
    assert "+" not in lines_of(report)["tom"]


def test_mig_instances_of_an_unmetered_gpu_have_no_data(bench: Bench) -> None:
    part = instance(OLD, 1)
    bench.run([process(part, 1, workload=MIA)], {}, devices=(OLD, part), seconds=60)
    assert bench.series()["energy_joules"] == {}
    (line,) = bench.report().lines
    assert (line.energy, line.unmetered) == (None, {OLD.uuid})


def test_an_idle_unmetered_gpu_is_left_out_of_the_total_too(bench: Bench) -> None:
    bench.run([ON_NEW], {NEW: 100.0}, seconds=60)
    report = bench.report()
    assert report.total.unmetered == {OLD.uuid}
    assert not report.lines[0].unmetered


def test_folding_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0}, seconds=3700, step=10.0)
    before = bench.report()
    history = History(folded(bench.store.file, bench.clock.now_unix + 3600, tmp_path / "folded.db"))
    try:
        assert same(before, build_report(history, "user", ENERGY, quarters(0, 2**32 // 900 * 900)))
    finally:
        history.close()


def notes_with(bench: Bench, words: str) -> dict[str, int]:
    """How many notes of the receipt and the explanation of each user have these words."""
    found = {}
    for who in ("user:mia", "user:tom"):
        with closing(History(bench.store.file)) as history:
            within = quarters(0, 2**32 // 900 * 900)
            receipt = read_receipt(history, who, ReceiptScope(within, ENERGY, (), "", ADVICE, history.last))
            explanation = explain_usage(history, who, ExplainScope(within, ENERGY))
            notes = [*receipt["notes"], *explanation.notes]
            found[who] = sum(words in note for note in notes)
    return found


def test_a_receipt_and_an_explanation_name_only_gpus_that_their_row_used(bench: Bench) -> None:
    """Where the total of a report leaves out the energy of a GPU, that of one owner may be complete."""
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0})
    bench.store.close()
    assert notes_with(bench, "The total leaves out its energy") == {"user:mia": 2, "user:tom": 0}


def test_a_report_and_a_receipt_say_that_energy_was_integrated_from_power(bench: Bench) -> None:
    """The owner was alone on the GPU, so that nothing was split."""
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0})
    (line,) = [line for line in report_table(bench.report(), 0).splitlines() if "measured: alone" in line]
    assert "apportioned by activity, slices or equally, or integrated from power readings; at most" in line
    found = {}
    for who in ("user:mia", "user:tom"):
        with closing(History(bench.store.file)) as history:
            within = quarters(0, 2**32 // 900 * 900)
            receipt = read_receipt(history, who, ReceiptScope(within, ENERGY, (), "", ADVICE, history.last))
            found[who] = "integrated from power readings" in " ".join(receipt_text(receipt).split())
    assert found == {"user:mia": False, "user:tom": True}


def test_a_receipt_and_an_explanation_say_it_also_where_energy_was_split(bench: Bench) -> None:
    """The method of the row is then how it was split."""
    second = process(OLD, 3, ticks=2, workload=MIA)
    bench.run([ON_OLD, second, ON_NEW], {OLD: 100.0}, counters={NEW: 100_000})
    assert notes_with(bench, "integrated from power readings") == {"user:mia": 2, "user:tom": 0}


def test_a_report_and_a_receipt_of_a_counter_do_not_mention_power_readings(bench: Bench) -> None:
    bench.run([ON_NEW], {}, counters={NEW: 100_000})
    assert "measured: alone" in (table := report_table(bench.report(), 0))
    assert "integrated" not in table
    with closing(History(bench.store.file)) as history:
        within = quarters(0, 2**32 // 900 * 900)
        receipt = read_receipt(
            history, "user:tom", ReceiptScope(within, ENERGY, (), "", ADVICE, history.last)
        )
    assert "integrated" not in receipt_text(receipt)
    assert "measured" in receipt_text(receipt)


@pytest.mark.parametrize(
    ("settings", "mia", "tom"),
    [
        ({"gpu_hour": [{"gpu": "*A100*", "price": 2}]}, ["GTX"], []),
        ({"gpu_hour": [{"gpu": "*GTX*", "price": 2}]}, [], ["A100"]),
        # Each names only the model of the GPU in the row.
        ({"gpu_hour": [{"gpu": "*H100*", "price": 2}]}, ["GTX"], ["A100"]),
        ({"gpu_hour": 2}, [], []),
        ({"gpu_hour": [{"price": 2, "until": "2023-01-01"}]}, ["GTX"], ["A100"]),
        # Only tom's energy is known.
        ({"kwh": [{"node": "n2", "price": 1}]}, [], ["energy"]),
        (
            {"kwh": [{"node": "n2", "price": 1}], "gpu_hour": [{"gpu": "*A100*", "price": 2}]},
            ["GTX"],
            ["energy"],
        ),
    ],
)
def test_a_receipt_and_an_explanation_name_only_unpriced_gpus_that_their_row_used(
    bench: Bench, settings: dict[str, object], mia: list[str], tom: list[str]
) -> None:
    bench.run([ON_OLD, ON_NEW], {NEW: 100.0})
    bench.store.close()
    found: dict[str, list[str]] = {}
    for who in ("user:mia", "user:tom"):
        with closing(History(bench.store.file)) as history:
            within, paid = quarters(0, 2**32 // 900 * 900), prices(**settings)
            receipt = read_receipt(history, who, ReceiptScope(within, paid, (), "n1", ADVICE, history.last))
            explanation = explain_usage(history, who, ExplainScope(within, paid, node="n1"))
        notes = [note for note in receipt["notes"] if "has no price" in note]
        found[who] = [word for word in ("GTX", "A100", "energy") if any(f" {word}" in note for note in notes)]
        assert bool(notes) == any("has no price" in note for note in explanation.notes)
    assert found == {"user:mia": mia, "user:tom": tom}
