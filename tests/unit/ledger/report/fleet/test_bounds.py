"""Bounds of a fleet's report: energy that Prometheus could not see, and the rows it may belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.ledger.report.fleet.scraped import PeriodEnd, Vector
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.usage_report import UsageReport
from unit.ledger.report.fleet.support import (
    BEGIN,
    DAY,
    CounterLevels,
    ScrapedFleet,
    device,
    one_day,
    own,
    part,
    pod,
    rows,
    watching,
)


def bounds(found: UsageReport) -> dict[str, int | None]:
    return {line.key[-1]: line.bound for line in found.lines}


def test_energy_exported_just_after_the_start_may_be_from_before() -> None:
    ahead = part(BEGIN, BEGIN + 90, [(device("GPU-0"), 1000, 1007)], [(pod("GPU-0", "t"), 0, 7)])
    assert bounds(one_day(ahead).report()) == {"t": 7000, "u": 0}


def test_energy_exported_just_after_the_end_may_be_from_within() -> None:
    end = BEGIN + DAY
    after = part(end, end + 90, [(device("GPU-0"), 1500, 1512)], [(pod("GPU-0", "t"), 500, 512)])
    assert bounds(one_day().report(after=after)) == {"t": 12_000, "u": 0}


def test_the_bound_until_now_is_pending_energy_plus_two_scrapes_at_full_power() -> None:
    ending = PeriodEnd([pod("GPU-0", "t")], (), [({"uuid": "GPU-0"}, 50.0)], [({"uuid": "GPU-0"}, 100.0)])
    found = one_day().report(ending=ending, complete=False)
    assert bounds(found) == {"t": 50_000 + 2 * 15 * 700 * 1000, "u": 0}, "u had ended by then"


def test_a_lost_ledger_may_have_had_energy_after_the_last_scrape() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 0, 400)], [(pod("GPU-0", "t"), 0, 400)], watts=[({"uuid": "GPU-0"}, 700.0)])
    assert bounds(books.report()) == {"t": 700 * 1000 * (15 + 60)}


def test_unseen_energy_has_a_row_and_is_in_every_bound() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 2000)], [(pod("GPU-0", "t"), 0, 400), (own("GPU-0"), 1000, 1100)])
    found = books.report()
    unseen = rows(found)["unseen",]
    assert unseen.millijoules == pytest.approx(500_000, abs=10)
    assert bounds(found)["t"] == pytest.approx(unseen.millijoules, abs=1)
    assert found.total.millijoules == pytest.approx(1_000_000, abs=10)
    assert "unseen: Prometheus not scraping" in report_table(found, 20)
    assert unseen.apportioned == 0
    assert found.total.apportioned == sum(line.apportioned for line in found.lines)


def test_pending_energy_at_the_ends_is_not_unseen() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 2000)], [(pod("GPU-0", "t"), 0, 400)])
    found = books.report(ending=PeriodEnd((), (), [({"uuid": "GPU-0"}, 600.0)]))
    assert ("unseen",) not in rows(found)


@pytest.mark.parametrize(
    ("what", "later", "expected"),
    [
        ("still held back", [({"uuid": "GPU-0"}, 60_000.0)], 60_000_000),
        ("some of it exported", [({"uuid": "GPU-0"}, 20_000.0)], 20_000_000),
        ("all of it exported", [({"uuid": "GPU-0"}, 0.0)], 0),
        ("unknown", [], 60_000_000),
    ],
)
def test_energy_that_remains_pending_after_the_end_is_in_every_bound(
    what: str, later: Vector, expected: int
) -> None:
    """As with a long energy.zero_hold."""
    books = ScrapedFleet(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 101_000)], [(pod("GPU-0", "t"), 0, 40_000)])
    pending = [({"uuid": "GPU-0"}, 60_000.0)]
    ending = PeriodEnd([pod("GPU-0", "t")], (), pending, kept_after=later)
    after = part(BEGIN + DAY, BEGIN + DAY + 90)
    found = books.report(ending=ending, after=after)
    assert ("unseen",) not in rows(found)
    assert (bounds(found)["t"], found.total.bound) == (expected, expected), what


@pytest.mark.parametrize(("kept", "expected"), [(60_000.0, 60_000_000), (0.0, 0)])
def test_energy_that_remains_pending_after_the_start_may_be_from_before(kept: float, expected: int) -> None:
    books = ScrapedFleet(watching("GPU-0"))
    energy: CounterLevels = [(pod("GPU-0", "t"), 0, 130_000), (pod("GPU-0", "u"), 0, 30_000)]
    answers = part(BEGIN, BEGIN + DAY, [(device("GPU-0"), 1000, 101_000)], energy)
    books.fleet.add(replace(answers, energy={**answers.energy, "alive": [(pod("GPU-0", "t"), 0.0)]}))
    ending = PeriodEnd((), [({"uuid": "GPU-0"}, 60_000.0)], kept_before=[({"uuid": "GPU-0"}, kept)])
    found = books.report(ending=ending)
    assert bounds(found)["t"] == found.total.bound == expected
    assert bounds(found)["u"] == 0, "it came later"


def test_energy_exported_before_the_first_scrape_is_not_counted_but_noted() -> None:
    books = ScrapedFleet()
    books.day(
        [(device("GPU-0"), 5000, 5100)], [(own("GPU-0"), 5000, 5100)], counts=[(device("GPU-0"), 2880.0)]
    )
    found = books.report()
    assert found.total.millijoules == 100_000
    assert any("Prometheus has no data before 2023-11-15T12:00:00Z" in note for note in found.notes)


def test_the_bound_of_thirty_days_is_below_a_thousandth() -> None:
    """One Gpu at 400 W, scraped every 15 s, reported until now."""
    books = ScrapedFleet(
        watching("GPU-0"),
        part(BEGIN, BEGIN + 90, [(device("GPU-0"), 1000, 37_000)], [(pod("GPU-0", "t"), 0, 36_000)]),
    )
    watts = 400.0
    for day in range(30):
        low, high = day * DAY * watts, (day + 1) * DAY * watts
        answers: CounterLevels = [(pod("GPU-0", "t"), low, high)]
        books.day([(device("GPU-0"), 1000 + low, 1000 + high)], answers, watts=[({"uuid": "GPU-0"}, 700.0)])
    found = books.report(ending=PeriodEnd([pod("GPU-0", "t")]), complete=False)
    (line,) = found.lines
    assert line.millijoules == 30 * DAY * watts * 1000
    assert line.bound == 90 * watts * 1000
    assert line.bound / line.millijoules < 0.00004
    assert any("0.0035 %" in note for note in found.notes)
