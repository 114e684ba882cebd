"""A fleet's report out of what its Prometheus answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from gpuledger.cli.report_table import table
from gpuledger.ledger.report.fleet.fleet import Fleet
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.ranges import ALLOCATED, HELD, RESIDENT, Ending, Range
from gpuledger.ledger.report.fleet.report import fleet_grouping, fleet_report
from gpuledger.ledger.report.fleet.scraped import ENERGY, Scrapes, Vector, node_of
from gpuledger.ledger.report.report import Line, Period, Report
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.shapes import as_csv, as_json
from gpuledger.model.errors import UsageError

HOUR, DAY = 3600.0, 86_400.0
BEGIN = 1_700_006_400.0
Labels = Mapping[str, str]


def scraped(node: str = "a", **labels: str) -> dict[str, str]:
    return {"job": "gpuledger", "instance": f"{node}:9400", "node": node, **labels}


def device(uuid: str, node: str = "a") -> dict[str, str]:
    return scraped(node, uuid=uuid)


def pod(
    uuid: str, name: str, node: str = "a", method: str = "measured", namespace: str = "ml"
) -> dict[str, str]:
    owner = {"owner_kind": "pod", "namespace": namespace, "pod": name, "container": "main", "user": "root"}
    return scraped(node, uuid=uuid, account="process", method=method, **owner)


def own(uuid: str, account: str = "idle", node: str = "a") -> dict[str, str]:
    return scraped(node, uuid=uuid, account=account, method="measured")


def owner(uuid: str, name: str, node: str = "a", cut: str = "") -> dict[str, str]:
    found = {**pod(uuid, name, node), "mig_instance": cut}
    return {
        name: value for name, value in found.items() if name not in ("account", "method", "user") and value
    }


Told = list[tuple[Labels, float, float]]


def levels(told: Told) -> dict[str, Vector]:
    """Each series with its least and its last value; what does not begin at 0 was there before."""
    return {
        "alive": [(labels, least) for labels, least, _ in told if least],
        "last": [(labels, last) for labels, _, last in told],
        "least": [(labels, least) for labels, least, _ in told],
    }


def part(
    begins: float,
    ends: float,
    devices: Told = [],  # noqa: B006  (never changed)
    energy: Told = [],  # noqa: B006
    seconds: Mapping[str, Told] | None = None,
    **more: Vector,
) -> Range:
    counts = more.pop("counts", [(labels, (ends - begins) / 15) for labels, _, _ in devices])
    times = {word: levels(told) for word, told in (seconds or {}).items()}
    return Range(begins, ends, levels(devices), levels(energy), counts, times, **more)


class Books:
    """A fleet whose Prometheus scraped it every 15 s, asked about whole days."""

    def __init__(self, before: Range | None = None, ahead: Range | None = None) -> None:
        self.fleet = Fleet(Inventory(15.0))
        self.now = BEGIN
        self.fleet.begin(before or part(BEGIN - DAY, BEGIN), ahead or part(BEGIN, BEGIN + 90))

    def day(
        self, devices: Told, energy: Told, seconds: Mapping[str, Told] | None = None, **more: Vector
    ) -> None:
        self.fleet.add(part(self.now, self.now + DAY, devices, energy, seconds, **more))
        self.now += DAY

    def report(
        self,
        by: str = "pod",
        *,
        after: Range | None = None,
        ending: Ending = Ending(),  # noqa: B008  (never changed)
        complete: bool = True,
        prices: Prices = Prices(),  # noqa: B008
    ) -> Report:
        self.fleet.end(after, ending, complete=complete)
        period = Period(int(BEGIN), int(self.now), int(BEGIN), self.now)
        return fleet_report(
            self.fleet, fleet_grouping(by, self.fleet), prices, period, "Prometheus at http://p"
        )


def rows(found: Report) -> dict[tuple[str, ...], Line]:
    return {line.key: line for line in (*found.lines, *found.own)}


def watching(*uuids: str) -> Range:
    """The day before, in which these Gpus had told 1000 J, all of it idle."""
    devices: Told = [(device(uuid), 0.0, 1000.0) for uuid in uuids]
    return part(BEGIN - DAY, BEGIN, devices, [(own(uuid), 0.0, 1000.0) for uuid in uuids])


# Whose labels are whose.


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


# Rows.


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


def test_gpus_scraped_twice_are_counted_once() -> None:
    books = Books(watching("GPU-0"))
    again = {"job": "second"}
    devices: Told = [(device("GPU-0"), 1000, 1100), ({**device("GPU-0"), **again}, 1000, 1100)]
    energy: Told = [(pod("GPU-0", "t"), 0, 100), ({**pod("GPU-0", "t"), **again}, 0, 100)]
    books.day(devices, energy)
    found = books.report()
    assert found.total.millijoules == 100_000
    assert any("1 GPU is scraped by several targets" in note for note in found.notes)


def test_how_many_gpus_several_targets_tell_is_said() -> None:
    books = Books(watching("GPU-0", "GPU-1"))
    devices: Told = [
        ({**device(uuid), **job}, 1000, 1100) for uuid in ("GPU-0", "GPU-1") for job in ({}, {"job": "2nd"})
    ]
    books.day(devices, [])
    assert "2 GPUs are scraped by several targets: counted once." in books.report().notes


def two_jobs(share: float, *, base: float = 5_000_000, born: bool = False, limit: float = 700) -> Books:
    """A second scrape job tells the last `share` of a day, in which one pod used 100 kJ of its Gpu."""
    uuid, again = "GPU-0", {"job": "second"}
    books = Books(part(BEGIN - DAY, BEGIN, [(device(uuid), 0, base)], [(pod(uuid, "t"), 0, base)]))
    low = 0.0 if born else base
    since = (1 - share) * 100_000
    counts = [(device(uuid), DAY / 15), ({**device(uuid), **again}, max(share * DAY / 15, 1))]
    devices: Told = [(device(uuid), base, base + 100_000)]
    devices.append(({**device(uuid), **again}, base + since, base + 100_000))
    energy: Told = [(pod(uuid, "t"), low, low + 100_000)]
    energy.append(({**pod(uuid, "t"), **again}, low + since, low + 100_000))
    told = part(BEGIN, BEGIN + DAY, devices, energy, counts=counts, watts=[({"uuid": uuid}, limit)])
    there = [(labels, least) for labels, least, _ in devices[:1]]
    books.fleet.add(replace(told, devices={**told.devices, "alive": there}))
    books.now += DAY
    return books


@pytest.mark.parametrize("share", [15 / DAY, 0.05, 0.1, 0.19, 0.21, 0.5, 0.99, 1])
@pytest.mark.parametrize("born", [True, False])
def test_what_two_scrape_jobs_tell_for_a_while_is_counted_once(share: float, born: bool) -> None:
    found = two_jobs(share, born=born).report()
    assert found.total.millijoules == found.gpus[0].millijoules == 100_000_000
    assert found.total.bound == 0
    assert [line.key for line in found.lines] == [("ml", "t")]
    assert any("1 GPU is scraped by several targets" in note for note in found.notes)
    assert found.gpus[0].observed == DAY


def test_books_that_may_have_begun_anew_between_two_targets_widen_the_bound_and_are_said() -> None:
    """The second target begins so low that a Gpu can have used it since its program's start."""
    found = two_jobs(0.1, base=1000, limit=2000).report()
    (line,) = found.lines
    same, anew = 100_000_000, 100_000_000 + 101_000_000
    assert line.millijoules - (line.bound or 0) <= same
    assert line.millijoules + (line.bound or 0) >= anew
    assert any("Of 1 GPU it is unclear" in note for note in found.notes)


@pytest.mark.parametrize(("least", "doubted"), [(173, True), (174, False)])
def test_where_no_limit_is_told_what_began_anew_has_twice_the_mean_power_at_most(
    least: float, doubted: bool
) -> None:
    """100 kJ in a day are 1.157 W on average; what was used is scraped after 75 s at the latest."""
    again = {"job": "second"}
    books = Books(watching("GPU-0"))
    devices: Told = [(device("GPU-0"), 1000, 101_000), ({**device("GPU-0"), **again}, 91_000, 101_000)]
    energy: Told = [(pod("GPU-0", "t"), 0, 100_000), ({**pod("GPU-0", "t"), **again}, least, 90_000)]
    counts = [(labels, (last - low) / 100_000 * DAY / 15) for labels, low, last in devices]
    told = part(BEGIN, BEGIN + DAY, devices, energy, counts=counts)
    books.fleet.add(replace(told, devices={**told.devices, "alive": [(device("GPU-0"), 1000)]}))
    (line,) = books.report().lines
    most = 190_000_000 if doubted else 100_000_000
    assert line.millijoules + (line.bound or 0) == pytest.approx(most)


def test_a_gpu_of_which_no_power_is_known_is_not_taken_for_one_that_began_anew() -> None:
    """However little its second target tells at first, it goes on where the first one was."""
    again = {"job": "second"}
    books = Books(part(BEGIN - DAY, BEGIN, [(device("GPU-0"), 0, 10)]))
    devices: Told = [(device("GPU-0"), 10, 1010), ({**device("GPU-0"), **again}, 50, 900)]
    counts = [(labels, seconds / 15) for (labels, *_), seconds in zip(devices, (DAY, HOUR), strict=True)]
    told = part(BEGIN, BEGIN + DAY, devices, counts=counts)
    books.fleet.add(replace(told, devices={**told.devices, "alive": [(device("GPU-0"), 10)]}))
    found = books.report()
    assert not any("unclear" in note for note in found.notes)
    assert found.gpus[0].millijoules == 1_000_000


def test_targets_that_are_there_at_the_same_time_leave_no_doubt() -> None:
    books = Books(part(BEGIN - DAY, BEGIN, [(device("GPU-0"), 0, 0)]))
    again = {"job": "second"}
    devices: Told = [(device("GPU-0"), 0, 100), ({**device("GPU-0"), **again}, 10, 99)]
    energy: Told = [(pod("GPU-0", "t"), 0, 100), ({**pod("GPU-0", "t"), **again}, 10, 99)]
    counts = [(labels, DAY / 30) for labels, _, _ in devices]
    seconds: dict[str, Told] = {RESIDENT: [(owner("GPU-0", "t"), 0, 43_200)]}
    seconds[RESIDENT].append(({**owner("GPU-0", "t"), **again}, 15, 43_185))
    told = part(BEGIN, BEGIN + DAY, devices, energy, seconds, counts=counts, watts=[({"uuid": "GPU-0"}, 700)])
    ends = [(labels, last) for labels, _, last in devices]
    books.fleet.add(replace(told, devices={**told.devices, "alive": [], "still": ends}))
    found = books.report()
    assert (found.total.millijoules, found.total.bound) == (100_000, 0)
    assert found.lines[0].resident == 43_200
    assert float(found.gpus[0].observed or 0) == pytest.approx(43_200, rel=0.2)


def test_an_owner_that_came_again_elsewhere_has_both_stays_if_its_gpus_counter_went_on() -> None:
    books = Books(watching("GPU-0"))
    there = {"instance": "10.0.0.9:9400"}
    half = [(device("GPU-0"), DAY / 30), ({**device("GPU-0"), **there}, DAY / 30)]
    devices: Told = [(device("GPU-0"), 1000, 1300), ({**device("GPU-0"), **there}, 1300, 1500)]
    books.day(devices, [(pod("GPU-0", "t"), 0, 300), ({**pod("GPU-0", "t"), **there}, 0, 200)], counts=half)
    found = books.report()
    assert (found.total.millijoules, found.total.bound) == (500_000, 0)


def test_an_exporter_that_restarts_elsewhere_is_not_scraped_twice() -> None:
    books = Books(watching("GPU-0"))
    there = {"instance": "10.0.0.9:9400"}
    half = [(device("GPU-0"), DAY / 30), ({**device("GPU-0"), **there}, DAY / 30)]
    devices: Told = [(device("GPU-0"), 1000, 1100), ({**device("GPU-0"), **there}, 1110, 1200)]
    energy: Told = [(own("GPU-0"), 1000, 1100), ({**own("GPU-0"), **there}, 1110, 1200)]
    books.day(devices, energy, counts=half)
    found = books.report()
    assert found.total.millijoules == found.gpus[0].millijoules == 200_000


# How far off.


def one_day(ahead: Range | None = None) -> Books:
    books = Books(watching("GPU-0", "GPU-1"), ahead)
    devices: Told = [(device("GPU-0"), 1000, 1500), (device("GPU-1"), 1000, 1200)]
    energy: Told = [(pod("GPU-0", "t"), 0, 500), (pod("GPU-1", "u"), 0, 200)]
    books.day(devices, energy, watts=[({"uuid": "GPU-0"}, 700.0), ({"uuid": "GPU-1"}, 700.0)])
    return books


def bounds(found: Report) -> dict[str, int | None]:
    return {line.key[-1]: line.bound for line in found.lines}


def test_what_is_told_just_after_the_begin_may_be_of_before() -> None:
    ahead = part(BEGIN, BEGIN + 90, [(device("GPU-0"), 1000, 1007)], [(pod("GPU-0", "t"), 0, 7)])
    assert bounds(one_day(ahead).report()) == {"t": 7000, "u": 0}


def test_what_is_told_just_after_the_end_may_be_of_within() -> None:
    end = BEGIN + DAY
    after = part(end, end + 90, [(device("GPU-0"), 1500, 1512)], [(pod("GPU-0", "t"), 500, 512)])
    assert bounds(one_day().report(after=after)) == {"t": 12_000, "u": 0}


def test_up_to_now_it_is_what_is_pending_and_two_scrapes_at_the_highest_power() -> None:
    ending = Ending([pod("GPU-0", "t")], (), [({"uuid": "GPU-0"}, 50.0)], [({"uuid": "GPU-0"}, 100.0)])
    found = one_day().report(ending=ending, complete=False)
    assert bounds(found) == {"t": 50_000 + 2 * 15 * 700 * 1000, "u": 0}, "u had ended by then"


def test_books_that_were_lost_may_have_had_what_came_after_the_last_scrape() -> None:
    books = Books(watching("GPU-0"))
    books.day([(device("GPU-0"), 0, 400)], [(pod("GPU-0", "t"), 0, 400)], watts=[({"uuid": "GPU-0"}, 700.0)])
    assert bounds(books.report()) == {"t": 700 * 1000 * (15 + 60)}


def test_what_no_account_had_while_nobody_scraped_has_a_row_and_may_be_anybodys() -> None:
    books = Books(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 2000)], [(pod("GPU-0", "t"), 0, 400), (own("GPU-0"), 1000, 1100)])
    found = books.report()
    unseen = rows(found)["unseen",]
    assert unseen.millijoules == pytest.approx(500_000, abs=10)
    assert bounds(found)["t"] == pytest.approx(unseen.millijoules, abs=1)
    assert found.total.millijoules == pytest.approx(1_000_000, abs=10)
    assert "unseen: Prometheus did not look" in table(found, 20)


def test_what_was_pending_at_the_ends_is_not_unseen() -> None:
    books = Books(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 2000)], [(pod("GPU-0", "t"), 0, 400)])
    found = books.report(ending=Ending((), (), [({"uuid": "GPU-0"}, 600.0)]))
    assert ("unseen",) not in rows(found)


@pytest.mark.parametrize(
    ("what", "later", "expected"),
    [
        ("still held back", [({"uuid": "GPU-0"}, 60_000.0)], 60_000_000),
        ("some of it told", [({"uuid": "GPU-0"}, 20_000.0)], 20_000_000),
        ("all of it told", [({"uuid": "GPU-0"}, 0.0)], 0),
        ("nobody says", [], 60_000_000),
    ],
)
def test_what_was_pending_at_the_end_and_still_is_may_be_anybodys(
    what: str, later: Vector, expected: int
) -> None:
    """As a long energy.zero_hold does."""
    books = Books(watching("GPU-0"))
    books.day([(device("GPU-0"), 1000, 101_000)], [(pod("GPU-0", "t"), 0, 40_000)])
    pending = [({"uuid": "GPU-0"}, 60_000.0)]
    ending = Ending([pod("GPU-0", "t")], (), pending, kept_after=later)
    after = part(BEGIN + DAY, BEGIN + DAY + 90)
    found = books.report(ending=ending, after=after)
    assert ("unseen",) not in rows(found)
    assert (bounds(found)["t"], found.total.bound) == (expected, expected), what


@pytest.mark.parametrize(("kept", "expected"), [(60_000.0, 60_000_000), (0.0, 0)])
def test_what_was_pending_at_the_begin_and_stayed_so_may_be_of_before(kept: float, expected: int) -> None:
    books = Books(watching("GPU-0"))
    energy: Told = [(pod("GPU-0", "t"), 0, 130_000), (pod("GPU-0", "u"), 0, 30_000)]
    told = part(BEGIN, BEGIN + DAY, [(device("GPU-0"), 1000, 101_000)], energy)
    books.fleet.add(replace(told, energy={**told.energy, "alive": [(pod("GPU-0", "t"), 0.0)]}))
    ending = Ending((), [({"uuid": "GPU-0"}, 60_000.0)], kept_before=[({"uuid": "GPU-0"}, kept)])
    found = books.report(ending=ending)
    assert bounds(found)["t"] == found.total.bound == expected
    assert bounds(found)["u"] == 0, "it came later"


def test_what_a_node_had_told_before_anybody_looked_is_not_counted_and_said() -> None:
    books = Books()
    books.day(
        [(device("GPU-0"), 5000, 5100)], [(own("GPU-0"), 5000, 5100)], counts=[(device("GPU-0"), 2880.0)]
    )
    found = books.report()
    assert found.total.millijoules == 100_000
    assert any("Prometheus has nothing before 2023-11-15T12:00:00Z" in note for note in found.notes)


def test_of_thirty_days_the_bound_is_a_small_part_of_a_thousandth() -> None:
    """One Gpu at 400 W, scraped every 15 s, asked up to now."""
    books = Books(
        watching("GPU-0"),
        part(BEGIN, BEGIN + 90, [(device("GPU-0"), 1000, 37_000)], [(pod("GPU-0", "t"), 0, 36_000)]),
    )
    watts = 400.0
    for day in range(30):
        low, high = day * DAY * watts, (day + 1) * DAY * watts
        told: Told = [(pod("GPU-0", "t"), low, high)]
        books.day([(device("GPU-0"), 1000 + low, 1000 + high)], told, watts=[({"uuid": "GPU-0"}, 700.0)])
    found = books.report(ending=Ending([pod("GPU-0", "t")]), complete=False)
    (line,) = found.lines
    assert line.millijoules == 30 * DAY * watts * 1000
    assert line.bound == 90 * watts * 1000
    assert line.bound / line.millijoules < 0.00004
    assert any("0.0035 %" in note for note in found.notes)


# Shapes.


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
    from gpuledger.dialects.native.energy import ENERGY as FAMILY

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
