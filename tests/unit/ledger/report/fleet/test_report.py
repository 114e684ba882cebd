"""Rows of a fleet's report, from Prometheus answers."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from gpuledger.ledger.report.fleet.scraped import (
    ALLOCATED,
    ENERGY,
    HELD,
    RESIDENT,
    LabelResolver,
    PeriodEnd,
    Vector,
    node_of,
)
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.settings import Prices
from gpuledger.model.errors import UsageError
from unit.ledger.report.fleet.support import (
    BEGIN,
    DAY,
    HOUR,
    CounterLevels,
    Labels,
    ScrapedFleet,
    device,
    one_day,
    own,
    owner,
    part,
    pod,
    rows,
    scraped,
    spent,
    watching,
    with_time,
)


@pytest.mark.parametrize(
    ("what", "labels", "expected"),
    [
        ("honored", {"namespace": "ml", "pod": "p"}, ("ml", "p")),
        (
            "ours renamed",
            {"namespace": "mon", "pod": "x", "exported_namespace": "ml", "exported_pod": "p"},
            ("ml", "p"),
        ),
        ("ours empty: the exporter's in its place", {"namespace": "mon", "pod": "x"}, ("", "")),
    ],
)
def test_the_exporters_namespace_is_never_taken_for_an_owners(
    what: str, labels: Labels, expected: tuple[str, ...]
) -> None:
    scrapes = LabelResolver()
    where = {"job": "honored" if what == "honored" else "other", "instance": "a:9400"}
    scrapes.learn(
        [{**where, "account": "idle", **({} if what == "honored" else {"namespace": "mon", "pod": "x"})}]
    )
    assert scrapes.own_values({**where, **labels}, ("namespace", "pod")) == expected


def test_labels_stay_ours_when_the_scrape_begins_or_ends_to_honor_them() -> None:
    """`honor_labels` was set within the range: the same target has renamed labels before, and ours after."""
    where, own_pod = {"job": "j", "instance": "a:9400"}, {"namespace": "mon", "pod": "x"}
    renamed = {**own_pod, "exported_namespace": "ml", "exported_pod": "p"}
    scrapes = LabelResolver()
    scrapes.learn([{**where, **own_pod, "account": "idle"}, {**where, **renamed, "account": "owner"}])
    scrapes.learn([{**where, "account": "idle"}])
    names = ("namespace", "pod", "user")
    assert scrapes.own_values({**where, **renamed}, names) == ("ml", "p", "")
    assert scrapes.own_values({**where, "namespace": "ml", "pod": "p"}, names) == ("ml", "p", "")
    assert scrapes.own_values({**where, **own_pod, "user": "ada"}, names) == ("", "", "ada")


def test_one_renamed_label_shows_which_labels_the_target_adds() -> None:
    scrapes = LabelResolver()
    where = {"job": "j", "instance": "a:9400", "namespace": "mon"}
    scrapes.learn([{**where, "account": "process", "exported_namespace": "ml"}])
    assert scrapes.own_values({**where, "user": "ada"}, ("namespace", "user")) == ("", "ada")


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node": "n1", "instance": "10.0.0.7:9400"}, "n1"),
        ({"instance": "n2.example.com:9400"}, "n2.example.com"),
        ({"instance": "[fd00::7]:9400"}, "[fd00::7]"),
        ({"instance": "prometheus:9090", "exported_instance": "n3:9400"}, "n3"),
        ({"instance": "n4"}, "n4"),
        ({}, ""),
    ],
)
def test_a_node_has_its_name_from_the_scrape(labels: Labels, node: str) -> None:
    assert node_of(labels) == node


def test_rows_sum_to_the_gpus_counters_over_days() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 3000)], [(own("GPU-0"), 1000, 1500), (pod("GPU-0", "t"), 0, 1500)])
    books.day([(device("GPU-0"), 3000, 3700)], [(own("GPU-0"), 1500, 1700), (pod("GPU-0", "t"), 1500, 2000)])
    found = books.report()
    answers = {key: line.millijoules for key, line in rows(found).items()}
    assert answers == {("ml", "t"): 2_000_000, ("idle",): 700_000, ("unattributed",): 0, ("unobserved",): 0}
    assert found.total.millijoules == sum(gpu.millijoules for gpu in found.gpus) == 2_700_000
    assert {line.bound for line in rows(found).values()} == {0}


def test_a_pod_that_moved_is_one_row_by_pod_and_two_by_node() -> None:
    books = ScrapedFleet(part(BEGIN - DAY, BEGIN, [(device("GPU-0"), 0, 0), (device("GPU-1", "b"), 0, 0)]))
    devices: CounterLevels = [(device("GPU-0"), 0, 100), (device("GPU-1", "b"), 0, 250)]
    books.day(devices, [(pod("GPU-0", "t"), 0, 100), (pod("GPU-1", "t", "b", "activity"), 0, 250)])
    (line,) = books.report("pod").lines
    assert (line.key, line.millijoules, line.measured, line.apportioned) == (
        ("ml", "t"),
        350_000,
        100_000,
        250_000,
    )
    assert {line.key: line.millijoules for line in books.report("node").lines} == {
        ("b",): 250_000,
        ("a",): 100_000,
    }


def test_values_unknown_to_prometheus_are_absent() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)])
    (line,) = books.report().lines
    assert (line.sessions, line.high, line.resident, line.held) == (None, None, None, None)


def test_gpu_hours_are_seconds_times_the_part_of_the_gpu() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    seconds: dict[str, CounterLevels] = {
        RESIDENT: [(owner("GPU-0", "t", cut="1_0"), 0, 7200), (owner("GPU-0", "t", cut="2_0"), 0, 3600)],
        HELD: [(owner("GPU-0", "t", cut="1_0"), 0, 3600)],
        ALLOCATED: [],
    }
    cut = [({**device("GPU-0"), "mig_instance": "1_0"}, 0.5)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], seconds, ratios=cut)
    found = books.report()
    (line,) = found.lines
    assert (line.resident, line.held, line.allocated) == (3600, 1800, None)
    assert any("1 MIG instance" in note for note in found.notes), "an Instance without a known part"


@pytest.mark.parametrize(
    ("held", "known"), [([(owner("GPU-0", "t"), 0, 0)], None), ([(owner("GPU-0", "t"), 0, 60)], 60)]
)
def test_a_counter_that_did_not_rise_does_not_say_that_nothing_was_held(
    held: CounterLevels, known: int | None
) -> None:
    books = ScrapedFleet(watching("GPU-0"))
    seconds: dict[str, CounterLevels] = {RESIDENT: [(owner("GPU-0", "t"), 0, 7200)], HELD: held}
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], seconds)
    (line,) = books.report().lines
    assert (line.resident, line.held, line.active, line.unknown) == (7200, known, None, None)


def test_a_note_explains_which_hours_add_up() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    shared: CounterLevels = [(owner("GPU-0", "t"), 0, 3600), (owner("GPU-0", "u"), 0, 3600)]
    answers = part(
        BEGIN, BEGIN + DAY, [(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], {RESIDENT: shared}
    )
    halves: CounterLevels = [(spent("GPU-0", "t"), 0, 1800), (spent("GPU-0", "u"), 0, 1800)]
    books.add(with_time(answers, [(device("GPU-0"), 0, 3600)], halves))
    found = books.report("namespace")
    assert [(line.gpu_microseconds, line.resident) for line in found.lines] == [(3_600_000_000, 7200)]
    (note,) = (note for note in found.notes if note.startswith("GPU-hours"))
    assert "split by allocation; rows add up" in note
    assert "owners that shared a GPU count separately" in note


def test_nodes_that_export_no_gpu_time_have_no_gpu_hours_instead_of_zero() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)])
    found = books.report(prices=Prices(gpu_hour=Decimal(2)))
    assert {line.gpu_microseconds for line in (*found.lines, *found.gpu_accounts, found.total)} == {None}
    assert found.total.cost is None
    assert any("the nodes' gpuledger is too old" in note for note in found.notes)


def test_a_gpu_without_a_counter_has_gpu_hours_and_no_energy() -> None:
    """Its node exports no gpuledger_device_energy_joules_total."""
    books = ScrapedFleet(watching("GPU-0"))
    hours: CounterLevels = [(owner("GPU-0", "t"), 0, 3600), (owner("GPU-1", "u"), 0, 7200)]
    info = [
        ({**device(uuid), "gpu": uuid[-1], "name": "NVIDIA", "mig_instance": ""}, 1.0)
        for uuid in ("GPU-0", "GPU-1")
    ]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], {RESIDENT: hours}, infos=info)
    found = books.report(prices=Prices(kwh=Decimal("0.3"), co2=Decimal(400)))
    measured, unmetered = found.lines
    assert (measured.energy, measured.unmetered) == (100_000, frozenset())
    assert (unmetered.energy, unmetered.cost, unmetered.grams, unmetered.resident) == (None, None, None, 7200)
    assert (found.total.energy, found.total.unmetered) == (100_000, {"GPU-1"})
    assert any("1 of 2 GPUs is not measured" in note for note in found.notes)
    assert "no data" in report_table(found, 0)
    (row,) = (row for row in as_json(found)["rows"] if row["pod"] == "u")
    assert (row["kwh"], row["bound_kwh"], row["millijoules"]) == (None, None, None)


def test_by_label_uses_gpuledgers_own_label_names() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    answers = [(scraped(namespace="ml", pod="t", pod_uid="u", label="team", value="nlp"), 1.0)]
    energy: CounterLevels = [(pod("GPU-0", "t"), 0, 60), (pod("GPU-0", "other"), 0, 40)]
    books.day([(device("GPU-0"), 1000, 1100)], energy, pod_labels=answers)
    assert {line.key: line.millijoules for line in books.report("label:team").lines} == {
        ("nlp",): 60_000,
        ("",): 40_000,
    }


def test_by_job_uses_the_pods_controller() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    made = [(scraped(namespace="ml", pod="t", pod_uid="u", controller_kind="Job", controller="train"), 1.0)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], pods=made)
    assert [line.key for line in books.report("job").lines] == [("ml", "train")]


def made_by(controller: str) -> Vector:
    """The info series of pod `t`, and its label series, with the controller as its team."""
    names = {"namespace": "ml", "pod": "t", "pod_uid": f"of-{controller}"}
    return [
        (scraped(**names, controller_kind="StatefulSet", controller=controller), 1.0),
        (scraped(**names, label="team", value=controller), 1.0),
    ]


@pytest.mark.parametrize("by", ["controller", "label:team"])
@pytest.mark.parametrize("later", ["blue", "red"])
def test_a_pod_name_that_was_used_again_with_other_facts_is_noted(by: str, later: str) -> None:
    books = ScrapedFleet(watching("GPU-0"))
    for number, controller in enumerate(("blue", later)):
        info, label = made_by(controller)
        joules = 1000 + 100 * number
        books.day(
            [(device("GPU-0"), joules, joules + 100)],
            [(pod("GPU-0", "t"), joules - 1000, joules - 900)],
            pods=[info] if by == "controller" else (),
            pod_labels=[label] if by != "controller" else (),
        )
    found = books.report(by)
    assert [(line.key[-1], line.millijoules) for line in found.lines] == [(later, 200_000)]
    assert any(note.startswith("1 pod had other labels") for note in found.notes) == (later == "red")


def test_by_gpu_uses_index_and_model_of_the_info_series() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    info = [({**device("GPU-0"), "gpu": "3", "name": "NVIDIA H100"}, 1.0)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], infos=info)
    found = books.report("gpu")
    assert [line.key for line in found.lines] == [("GPU-0", "3", "NVIDIA H100")]
    assert [(gpu.index, gpu.observed) for gpu in found.gpus] == [("3", 86_400)]


def test_by_command_is_rejected_with_the_reason() -> None:
    with pytest.raises(UsageError, match="owner series have no command label"):
        ScrapedFleet().report("command")


def test_an_unknown_grouping_is_rejected() -> None:
    with pytest.raises(UsageError, match="unknown --by 'nod'"):
        ScrapedFleet().report("nod")


@pytest.mark.parametrize(("least", "expected"), [(150, 180_000), (5000, 30_000)])
def test_a_new_series_cannot_have_more_than_its_gpu_used(least: float, expected: int) -> None:
    """Series that were not stored before appear with an old total."""
    books = ScrapedFleet(watching("GPU-0"))
    answers = part(
        BEGIN, BEGIN + DAY, [(device("GPU-0"), 1000, 1200)], [(pod("GPU-0", "t"), least, least + 30)]
    )
    books.fleet.add(replace(answers, energy={**answers.energy, "alive": []}))
    assert [line.millijoules for line in books.report().lines] == [expected]


def test_formats_have_the_bound_only_in_fleet_reports() -> None:
    ahead = part(BEGIN, BEGIN + 90, [(device("GPU-0"), 1000, 1036)], [(pod("GPU-0", "t"), 0, 36)])
    prices = Prices(kwh=Decimal("0.5"), gpu_hour=Decimal(2), currency="EUR")
    found = one_day(ahead).report(prices=prices)
    header, first, *_ = as_csv(found).splitlines()
    answers = dict(zip(header.split(","), first.split(","), strict=True))
    assert (answers["pod"], answers["bound_kwh"], answers["sessions"], answers["high_kwh"]) == (
        "t",
        "0.000010000",
        "",
        "",
    )
    row = as_json(found)["rows"][0]
    assert (row["bound_millijoules"], row["bound_kwh"]) == (36_000, 1e-05)
    assert as_json(found)["notes"] == list(found.notes)
    assert found.lines[0].cost == Fraction(500, 3_600_000) / 2
    headings, _, cells, *_ = (line.split() for line in report_table(found, 20).splitlines()[2:])
    assert cells[headings.index("±")] == "0.00001", "three digits would show a small bound as none"
    assert "+/- kWh" in report_table(found, 20, plain=True)
    assert report_table(found, 20, plain=True).isascii()


def test_energy_names_match_the_family() -> None:
    from gpuledger.dialects.native.ledger import ENERGY as FAMILY

    assert FAMILY.labels == ENERGY


def seconds_of(books: ScrapedFleet) -> list[float]:
    return list(books.fleet.seconds[RESIDENT].values())


def test_seconds_of_several_ranges_are_summed() -> None:
    books = ScrapedFleet()
    for day in range(2):
        times = {RESIDENT: [(owner("GPU-0", "p"), day * HOUR, (day + 1) * HOUR)]}
        books.day([(device("GPU-0"), 0.0, 0.0)], [], times)
    assert seconds_of(books) == [2 * HOUR]


def test_seconds_exported_before_the_period_are_not_counted() -> None:
    books = ScrapedFleet()
    books.day([(device("GPU-0"), 5.0, 9.0)], [], {RESIDENT: [(owner("GPU-0", "p"), 100.0, 300.0)]})
    assert seconds_of(books) == [200.0]


def test_a_gpu_first_exported_after_the_period_did_not_start_at_zero() -> None:
    books = ScrapedFleet()
    books.day([(device("GPU-0"), 5.0, 9.0)], [])
    after = part(books.now, books.now + 90, [(device("GPU-0"), 9.0, 9.0), (device("GPU-9"), 100.0, 130.0)])
    books.fleet.end(after, PeriodEnd(), complete=True)
    assert books.fleet.energy.totals.late[("GPU-9",)].amount == 30
