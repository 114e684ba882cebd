"""Rows of a fleet's report, out of what its Prometheus answers."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from gpuledger.cli.report import table
from gpuledger.ledger.report.fleet.scraped import ALLOCATED, ENERGY, HELD, RESIDENT, Ending, Scrapes, node_of
from gpuledger.ledger.report.formats import as_csv, as_json
from gpuledger.ledger.report.settings import Prices
from gpuledger.model.errors import UsageError
from unit.ledger.report.fleet.support import (
    BEGIN,
    DAY,
    HOUR,
    Books,
    Labels,
    Told,
    device,
    one_day,
    own,
    owner,
    part,
    pod,
    rows,
    scraped,
    watching,
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
        ("ours empty: the exporter's stand there", {"namespace": "mon", "pod": "x"}, ("", "")),
    ],
)
def test_the_exporters_namespace_is_never_an_owners(
    what: str, labels: Labels, expected: tuple[str, ...]
) -> None:
    scrapes = Scrapes()
    where = {"job": "honored" if what == "honored" else "other", "instance": "a:9400"}
    scrapes.learn(
        [{**where, "account": "idle", **({} if what == "honored" else {"namespace": "mon", "pod": "x"})}]
    )
    assert scrapes.own({**where, **labels}, ("namespace", "pod")) == expected


def test_one_renamed_label_says_what_the_target_puts_on() -> None:
    scrapes = Scrapes()
    where = {"job": "j", "instance": "a:9400", "namespace": "mon"}
    scrapes.learn([{**where, "account": "process", "exported_namespace": "ml"}])
    assert scrapes.own({**where, "user": "ada"}, ("namespace", "user")) == ("", "ada")


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
def test_a_node_is_what_the_scrape_calls_it(labels: Labels, node: str) -> None:
    assert node_of(labels) == node


def test_rows_sum_to_the_gpus_counters_over_days() -> None:
    books = Books(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 3000)], [(own("GPU-0"), 1000, 1500), (pod("GPU-0", "t"), 0, 1500)])
    books.day([(device("GPU-0"), 3000, 3700)], [(own("GPU-0"), 1500, 1700), (pod("GPU-0", "t"), 1500, 2000)])
    found = books.report()
    told = {key: line.millijoules for key, line in rows(found).items()}
    assert told == {("ml", "t"): 2_000_000, ("idle",): 700_000, ("unattributed",): 0, ("unobserved",): 0}
    assert found.total.millijoules == sum(gpu.millijoules for gpu in found.gpus) == 2_700_000
    assert {line.bound for line in rows(found).values()} == {0}


def test_a_pod_that_moved_is_one_row_by_pod_and_two_by_node() -> None:
    books = Books(part(BEGIN - DAY, BEGIN, [(device("GPU-0"), 0, 0), (device("GPU-1", "b"), 0, 0)]))
    devices: Told = [(device("GPU-0"), 0, 100), (device("GPU-1", "b"), 0, 250)]
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


def test_what_a_prometheus_cannot_tell_is_absent() -> None:
    books = Books(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)])
    (line,) = books.report().lines
    assert (line.sessions, line.high, line.resident, line.held) == (None, None, None, None)


def test_gpu_hours_are_seconds_times_the_part_of_the_gpu() -> None:
    books = Books(watching("GPU-0"))
    seconds: dict[str, Told] = {
        RESIDENT: [(owner("GPU-0", "t", cut="1_0"), 0, 7200), (owner("GPU-0", "t", cut="2_0"), 0, 3600)],
        HELD: [(owner("GPU-0", "t", cut="1_0"), 0, 3600)],
        ALLOCATED: [],
    }
    cut = [({**device("GPU-0"), "mig_instance": "1_0"}, 0.5)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], seconds, ratios=cut)
    found = books.report()
    (line,) = found.lines
    assert (line.resident, line.held, line.allocated) == (3600, 1800, None)
    assert any("1 MIG instance" in note for note in found.notes), "whose part nobody told"


def test_of_gpu_hours_it_is_said_what_counts_twice_and_what_for_nobody() -> None:
    """They are no upper bound: a row can have fewer than the books, and more."""
    books = Books(watching("GPU-0"))
    shared: Told = [(owner("GPU-0", "t"), 0, 3600), (owner("GPU-0", "u"), 0, 3600)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], {RESIDENT: shared})
    found = books.report("namespace")
    assert [line.resident for line in found.lines] == [7200]
    (note,) = (note for note in found.notes if note.startswith("GPU-hours"))
    assert "upper bound" not in note
    assert "owners of one row who shared a GPU count each" in note
    assert "pauses, time without a list of processes" in note


def test_by_label_a_pods_label_is_looked_up_by_our_own_names() -> None:
    books = Books(watching("GPU-0"))
    told = [(scraped(namespace="ml", pod="t", pod_uid="u", label="team", value="nlp"), 1.0)]
    energy: Told = [(pod("GPU-0", "t"), 0, 60), (pod("GPU-0", "other"), 0, 40)]
    books.day([(device("GPU-0"), 1000, 1100)], energy, pod_labels=told)
    assert {line.key: line.millijoules for line in books.report("label:team").lines} == {
        ("nlp",): 60_000,
        ("",): 40_000,
    }


def test_by_job_a_pods_job_is_what_made_it() -> None:
    books = Books(watching("GPU-0"))
    made = [(scraped(namespace="ml", pod="t", pod_uid="u", controller_kind="Job", controller="train"), 1.0)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], pods=made)
    assert [line.key for line in books.report("job").lines] == [("ml", "train")]


def test_by_gpu_index_and_model_come_from_the_info_series() -> None:
    books = Books(watching("GPU-0"))
    info = [({**device("GPU-0"), "gpu": "3", "name": "NVIDIA H100"}, 1.0)]
    books.day([(device("GPU-0"), 1000, 1100)], [(pod("GPU-0", "t"), 0, 100)], infos=info)
    found = books.report("gpu")
    assert [line.key for line in found.lines] == [("GPU-0", "3", "NVIDIA H100")]
    assert [(gpu.index, gpu.observed) for gpu in found.gpus] == [("3", 86_400)]


def test_by_command_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="series of owners bear no command"):
        Books().report("command")


def test_a_grouping_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown --by 'nod'"):
        Books().report("nod")


@pytest.mark.parametrize(("least", "expected"), [(150, 180_000), (5000, 30_000)])
def test_a_newborn_cannot_have_more_than_its_gpu_used(least: float, expected: int) -> None:
    """Series that somebody had not kept until then come with all they have: that was used long ago."""
    books = Books(watching("GPU-0"))
    told = part(BEGIN, BEGIN + DAY, [(device("GPU-0"), 1000, 1200)], [(pod("GPU-0", "t"), least, least + 30)])
    books.fleet.add(replace(told, energy={**told.energy, "alive": []}))
    assert [line.millijoules for line in books.report().lines] == [expected]


def test_shapes_carry_the_bound_and_books_do_not_have_the_column() -> None:
    ahead = part(BEGIN, BEGIN + 90, [(device("GPU-0"), 1000, 1036)], [(pod("GPU-0", "t"), 0, 36)])
    prices = Prices(kwh=Decimal("0.5"), gpu_hour=Decimal(2), currency="EUR")
    found = one_day(ahead).report(prices=prices)
    header, first, *_ = as_csv(found).splitlines()
    told = dict(zip(header.split(","), first.split(","), strict=True))
    assert (told["pod"], told["bound_kwh"], told["sessions"], told["high_kwh"]) == (
        "t",
        "0.000010000",
        "",
        "",
    )
    row = as_json(found)["rows"][0]
    assert (row["bound_millijoules"], row["bound_kwh"]) == (36_000, 1e-05)
    assert as_json(found)["notes"] == list(found.notes)
    assert found.lines[0].cost == Fraction(500, 3_600_000) / 2
    headings, _, cells, *_ = (line.split() for line in table(found, 20).splitlines()[2:])
    assert cells[headings.index("±")] == "0.00001", "three digits would tell a small bound as none"
    assert "+/- kWh" in table(found, 20, plain=True)
    assert table(found, 20, plain=True).isascii()


def test_energy_names_match_the_family() -> None:
    from gpuledger.dialects.native.sessions import ENERGY as FAMILY

    assert FAMILY.labels == ENERGY


def seconds_of(books: Books) -> list[float]:
    return list(books.fleet.seconds[RESIDENT].values())


def test_seconds_of_several_ranges_are_summed() -> None:
    books = Books()
    for day in range(2):
        times = {RESIDENT: [(owner("GPU-0", "p"), day * HOUR, (day + 1) * HOUR)]}
        books.day([(device("GPU-0"), 0.0, 0.0)], [], times)
    assert seconds_of(books) == [2 * HOUR]


def test_seconds_that_were_told_before_anybody_asked_are_not_of_the_period() -> None:
    books = Books()
    books.day([(device("GPU-0"), 5.0, 9.0)], [], {RESIDENT: [(owner("GPU-0", "p"), 100.0, 300.0)]})
    assert seconds_of(books) == [200.0]


def test_a_gpu_that_is_first_told_behind_the_period_has_not_counted_from_nothing() -> None:
    books = Books()
    books.day([(device("GPU-0"), 5.0, 9.0)], [])
    after = part(books.now, books.now + 90, [(device("GPU-0"), 9.0, 9.0), (device("GPU-9"), 100.0, 130.0)])
    books.fleet.end(after, Ending(), complete=True)
    assert books.fleet.devices.late[("GPU-9",)].amount == 30
