"""A GPU that several targets export, simultaneously or one after the other, is counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuledger.ledger.report.fleet.scraped import RESIDENT, Vector, combine_windows
from unit.ledger.report.fleet.support import (
    BEGIN,
    DAY,
    HOUR,
    CounterLevels,
    Labels,
    ScrapedFleet,
    device,
    own,
    owner,
    part,
    pod,
    watching,
    with_time,
)


def test_gpus_scraped_twice_are_counted_once() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    again = {"job": "second"}
    devices: CounterLevels = [(device("GPU-0"), 1000, 1100), ({**device("GPU-0"), **again}, 1000, 1100)]
    energy: CounterLevels = [(pod("GPU-0", "t"), 0, 100), ({**pod("GPU-0", "t"), **again}, 0, 100)]
    books.day(devices, energy)
    found = books.report()
    assert found.total.millijoules == 100_000
    assert any("1 GPU is scraped by several targets" in note for note in found.notes)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("base", "full", "short"),
    [
        (5000, (5000, 5100), (5000, 5050)),
        (5000, (5000, 5100), (5060, 5100)),
        (None, (5000, 5050), (5040, 5100)),
    ],
)
def test_a_replica_of_a_prometheus_that_scraped_a_part_of_the_time_changes_nothing(
    order: int, base: float | None, full: tuple[float, float], short: tuple[float, float]
) -> None:
    """A store that does not merge replicas has each series twice, with another external label."""

    def both(labels: Labels, *levels: tuple[float, float]) -> CounterLevels:
        replicas = zip("ab", levels, strict=True)
        return [({**labels, "prometheus_replica": name}, *level) for name, level in replicas][::order]

    series = (device("GPU-0"), pod("GPU-0", "t"))
    before = [both(labels, (0, base or 0), (0, base or 0)) if base else [] for labels in series]
    books = ScrapedFleet(part(BEGIN - DAY, BEGIN, *before))
    books.day(*(both(labels, full, short) for labels in series), watts=[({"uuid": "GPU-0"}, 700.0)])
    found = books.report()
    assert (found.total.millijoules, found.total.bound) == (100_000, 0)


HOURS = st.lists(st.integers(0, 24), min_size=2, max_size=2, unique=True).map(sorted)


@given(st.lists(HOURS, min_size=1, max_size=4), st.booleans())
@example([[0, 12], [0, 12]], True)
@example([[0, 12], [12, 24]], True)
@example([[0, 10], [6, 16]], False)
def test_the_scraped_time_of_a_target_with_several_series_counts_once(
    hours: list[list[int]], with_gpu_time: bool
) -> None:
    """Series of replicas of a Prometheus are there at the same time, those of an exporter's pods are not."""
    labels = [{**device("GPU-0"), "replica": str(number)} for number in range(len(hours))]
    counter: CounterLevels = [
        (names, 5e6 + 3600 * begins, 5e6 + 3600 * ends)
        for names, (begins, ends) in zip(labels, hours, strict=True)
    ]
    counts = [(names, 240.0 * (ends - begins)) for names, (begins, ends) in zip(labels, hours, strict=True)]
    answers = part(BEGIN, BEGIN + DAY, [] if with_gpu_time else counter, counts=counts)
    books = ScrapedFleet()
    books.add(with_time(answers, counter, []) if with_gpu_time else answers)
    scraped = len({hour for begins, ends in hours for hour in range(begins, ends)})
    assert f"GPU-hours: {scraped:.2f} scraped" in " ".join(books.report().notes)


def test_a_reset_that_one_replica_missed_counts() -> None:
    labels = device("GPU-0")
    names = [{**labels, "prometheus_replica": name} for name in "ab"]
    for order in (1, -1):
        answers: dict[str, Vector] = {
            "last": [(names[0], 40.0), (names[1], 900.0)][::order],
            "least": [(names[0], 0.0), (names[1], 500.0)],
            "resets": [(names[0], 1.0)],
            "highest": [(names[0], 990.0)],
        }
        ((window,),) = (one.values() for one in combine_windows(answers, lambda _: ("GPU-0",)).values())
        assert (window.last, window.resets, window.highest) == (40.0, 1, 990.0)


def test_a_note_counts_gpus_with_several_targets() -> None:
    books = ScrapedFleet(watching("GPU-0", "GPU-1"))
    devices: CounterLevels = [
        ({**device(uuid), **job}, 1000, 1100) for uuid in ("GPU-0", "GPU-1") for job in ({}, {"job": "2nd"})
    ]
    books.day(devices, [])
    assert "2 GPUs are scraped by several targets: counted once." in books.report().notes


def two_jobs(
    share: float, *, base: float = 5_000_000, born: bool = False, limit: float = 700
) -> ScrapedFleet:
    """A second scrape job exports the last `share` of a day, in which one pod used 100 kJ of its Gpu."""
    uuid, again = "GPU-0", {"job": "second"}
    books = ScrapedFleet(part(BEGIN - DAY, BEGIN, [(device(uuid), 0, base)], [(pod(uuid, "t"), 0, base)]))
    low = 0.0 if born else base
    since = (1 - share) * 100_000
    counts = [(device(uuid), DAY / 15), ({**device(uuid), **again}, max(share * DAY / 15, 1))]
    devices: CounterLevels = [(device(uuid), base, base + 100_000)]
    devices.append(({**device(uuid), **again}, base + since, base + 100_000))
    energy: CounterLevels = [(pod(uuid, "t"), low, low + 100_000)]
    energy.append(({**pod(uuid, "t"), **again}, low + since, low + 100_000))
    answers = part(BEGIN, BEGIN + DAY, devices, energy, counts=counts, watts=[({"uuid": uuid}, limit)])
    there = [(labels, least) for labels, least, _ in devices[:1]]
    books.fleet.add(replace(answers, devices={**answers.devices, "alive": there}))
    books.now += DAY
    return books


@pytest.mark.parametrize("share", [15 / DAY, 0.05, 0.1, 0.19, 0.21, 0.5, 0.99, 1])
@pytest.mark.parametrize("born", [True, False])
def test_two_scrape_jobs_of_one_exporter_are_counted_once(share: float, born: bool) -> None:
    found = two_jobs(share, born=born).report()
    assert found.total.millijoules == found.gpus[0].millijoules == 100_000_000
    assert found.total.bound == 0
    assert [line.key for line in found.lines] == [("ml", "t")]
    assert any("1 GPU is scraped by several targets" in note for note in found.notes)
    assert found.gpus[0].observed == DAY


def test_a_possible_reset_between_two_targets_widens_the_bound_and_is_noted() -> None:
    """The second target begins so low that the Gpu can have used it since its program's start."""
    found = two_jobs(0.1, base=1000, limit=2000).report()
    (line,) = found.lines
    same, restarted = 100_000_000, 100_000_000 + 101_000_000
    assert line.millijoules - (line.bound or 0) <= same
    assert line.millijoules + (line.bound or 0) >= restarted
    assert any("Of 1 GPU it is unclear" in note for note in found.notes)


@pytest.mark.parametrize(("least", "doubted"), [(173, True), (174, False)])
def test_without_a_power_limit_a_reset_has_at_most_twice_the_mean_power(least: float, doubted: bool) -> None:
    """100 kJ in a day are 1.157 W on average; used energy is scraped after 75 s at the latest."""
    again = {"job": "second"}
    books = ScrapedFleet(watching("GPU-0"))
    devices: CounterLevels = [
        (device("GPU-0"), 1000, 101_000),
        ({**device("GPU-0"), **again}, 91_000, 101_000),
    ]
    energy: CounterLevels = [(pod("GPU-0", "t"), 0, 100_000), ({**pod("GPU-0", "t"), **again}, least, 90_000)]
    counts = [(labels, (last - low) / 100_000 * DAY / 15) for labels, low, last in devices]
    answers = part(BEGIN, BEGIN + DAY, devices, energy, counts=counts)
    books.fleet.add(replace(answers, devices={**answers.devices, "alive": [(device("GPU-0"), 1000)]}))
    (line,) = books.report().lines
    most = 190_000_000 if doubted else 100_000_000
    assert line.millijoules + (line.bound or 0) == pytest.approx(most)


def test_a_gpu_without_known_power_is_not_taken_for_a_reset() -> None:
    """However low its second target begins, it continues where the first one was."""
    again = {"job": "second"}
    books = ScrapedFleet(part(BEGIN - DAY, BEGIN, [(device("GPU-0"), 0, 10)]))
    devices: CounterLevels = [(device("GPU-0"), 10, 1010), ({**device("GPU-0"), **again}, 50, 900)]
    counts = [(labels, seconds / 15) for (labels, *_), seconds in zip(devices, (DAY, HOUR), strict=True)]
    answers = part(BEGIN, BEGIN + DAY, devices, counts=counts)
    books.fleet.add(replace(answers, devices={**answers.devices, "alive": [(device("GPU-0"), 10)]}))
    found = books.report()
    assert not any("unclear" in note for note in found.notes)
    assert found.gpus[0].millijoules == 1_000_000


def test_simultaneous_targets_are_unambiguous() -> None:
    books = ScrapedFleet(part(BEGIN - DAY, BEGIN, [(device("GPU-0"), 0, 0)]))
    again = {"job": "second"}
    devices: CounterLevels = [(device("GPU-0"), 0, 100), ({**device("GPU-0"), **again}, 10, 99)]
    energy: CounterLevels = [(pod("GPU-0", "t"), 0, 100), ({**pod("GPU-0", "t"), **again}, 10, 99)]
    counts = [(labels, DAY / 30) for labels, _, _ in devices]
    seconds: dict[str, CounterLevels] = {RESIDENT: [(owner("GPU-0", "t"), 0, 43_200)]}
    seconds[RESIDENT].append(({**owner("GPU-0", "t"), **again}, 15, 43_185))
    answers = part(
        BEGIN, BEGIN + DAY, devices, energy, seconds, counts=counts, watts=[({"uuid": "GPU-0"}, 700)]
    )
    ends = [(labels, last) for labels, _, last in devices]
    books.fleet.add(replace(answers, devices={**answers.devices, "alive": [], "still": ends}))
    found = books.report()
    assert (found.total.millijoules, found.total.bound) == (100_000, 0)
    assert found.lines[0].resident == 43_200
    assert float(found.gpus[0].observed or 0) == pytest.approx(43_200, rel=0.2)


def test_an_owner_on_a_second_target_keeps_both_times_if_the_gpus_counter_continued() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    there = {"instance": "10.0.0.9:9400"}
    half = [(device("GPU-0"), DAY / 30), ({**device("GPU-0"), **there}, DAY / 30)]
    devices: CounterLevels = [(device("GPU-0"), 1000, 1300), ({**device("GPU-0"), **there}, 1300, 1500)]
    books.day(devices, [(pod("GPU-0", "t"), 0, 300), ({**pod("GPU-0", "t"), **there}, 0, 200)], counts=half)
    found = books.report()
    assert (found.total.millijoules, found.total.bound) == (500_000, 0)


def test_an_exporter_restarted_under_another_address_is_not_scraped_twice() -> None:
    books = ScrapedFleet(watching("GPU-0"))
    there = {"instance": "10.0.0.9:9400"}
    half = [(device("GPU-0"), DAY / 30), ({**device("GPU-0"), **there}, DAY / 30)]
    devices: CounterLevels = [(device("GPU-0"), 1000, 1100), ({**device("GPU-0"), **there}, 1110, 1200)]
    energy: CounterLevels = [(own("GPU-0"), 1000, 1100), ({**own("GPU-0"), **there}, 1110, 1200)]
    books.day(devices, energy, counts=half)
    found = books.report()
    assert found.total.millijoules == found.gpus[0].millijoules == 200_000
