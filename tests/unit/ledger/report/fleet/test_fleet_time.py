"""GPU time of a fleet's report: MIG instances, prices of nodes, unseen and unwatched time, jobs, keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from gpuledger.ledger.report.fleet.fleet_report import fleet_grouping
from gpuledger.ledger.report.fleet.inventory import Inventory
from gpuledger.ledger.report.fleet.scraped import PeriodEnd
from gpuledger.ledger.report.price_entries import GPU_HOUR, price_parser
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import UsageError
from unit.ledger.report.fleet.support import (
    BEGIN,
    DAY,
    CounterLevels,
    ScrapedFleet,
    device,
    own_time,
    part,
    rows,
    scraped,
    spent,
    with_time,
)

HOUR = 3600


def by_entry(*entries: dict[str, object]) -> Prices:
    """Prices of time from entries as in the configuration file."""
    return Prices(gpu_hour=price_parser(GPU_HOUR)(list(entries)))


H100 = "NVIDIA H100 80GB HBM3"


def info(
    uuid: str, node: str = "a", name: str = H100, cut: str = "", profile: str = ""
) -> tuple[dict[str, str], float]:
    return scraped(node, uuid=uuid, mig_instance=cut, gpu="0", name=name, profile=profile), 1.0


def one_day(
    accounts: CounterLevels, watched: dict[str, float], nodes: dict[str, str] | None = None, **more: object
) -> ScrapedFleet:
    """A day in which Gpus were watched for these seconds, on node a unless said."""
    where = nodes or {}
    totals: CounterLevels = [
        (device(uuid, where.get(uuid, "a")), 0, seconds) for uuid, seconds in watched.items()
    ]
    before: CounterLevels = [(labels, 0, 0) for labels, _, _ in totals]
    books = ScrapedFleet(with_time(part(BEGIN - DAY, BEGIN), before, []))
    counts = [(labels, DAY / 15) for labels, _, _ in totals]
    books.add(with_time(part(BEGIN, BEGIN + DAY, counts=counts, **more), totals, accounts))  # type: ignore[arg-type]
    return books


def hours(found: UsageReport) -> dict[tuple[str, ...], float]:
    return {
        key: (line.gpu_microseconds or 0) / 3.6e9
        for key, line in rows(found).items()
        if line.gpu_microseconds
    }


def test_rows_add_up_to_the_watched_time_but_unobserved_and_down() -> None:
    accounts: CounterLevels = [
        (spent("GPU-0", "t"), 0, 6 * HOUR),
        (own_time("GPU-0"), 0, 10 * HOUR),
        (own_time("GPU-0", "unattributed"), 0, 2 * HOUR),
        (own_time("GPU-0", "unobserved"), 0, 5 * HOUR),
        (own_time("GPU-0", "down"), 0, 1 * HOUR),
    ]
    found = one_day(accounts, {"GPU-0": 24 * HOUR}).report(prices=Prices(gpu_hour=Decimal(2)))
    assert hours(found) == {("ml", "t"): 6, ("idle",): 10, ("unattributed",): 2}
    assert (found.total.gpu_microseconds, found.total.cost) == (18 * HOUR * 1_000_000, 36)
    unbilled = {one.account: (one.microseconds // 3_600_000_000, one.cost) for one in found.unbilled}
    assert unbilled == {"unobserved": (5, 10), "down": (1, 2), "unwatched": (0, 0)}


def test_owners_between_two_scrapes_are_unseen_and_have_a_price() -> None:
    accounts: CounterLevels = [(spent("GPU-0", "t"), 0, 20 * HOUR), (own_time("GPU-0"), 0, 3 * HOUR)]
    books = one_day(accounts, {"GPU-0": 24 * HOUR})
    books.fleet.end(None, PeriodEnd(), PeriodEnd(), complete=True)
    found = books.report(prices=Prices(gpu_hour=Decimal(2)))
    unseen = rows(found)["unseen",]
    assert unseen.gpu_microseconds == pytest.approx(3_600_000_000, abs=100)
    assert float(found.total.cost or 0) == pytest.approx(48, abs=1e-6)
    assert rows(found)["ml", "t"].time_bound == pytest.approx(3_600_000_000, abs=100)


def test_time_between_the_sights_of_a_gpu_that_was_not_watched_is_stated() -> None:
    books = one_day([(own_time("GPU-0"), 0, 20 * HOUR)], {"GPU-0": 20 * HOUR})
    (unwatched,) = (one for one in books.report().unbilled if one.account == "unwatched")
    assert unwatched.microseconds == 4 * HOUR * 1_000_000


@pytest.mark.parametrize("late", [5.0, 29.0])
def test_time_that_is_not_scraped_yet_is_not_unwatched(late: float) -> None:
    books = one_day([(own_time("GPU-0"), 0, DAY - late)], {"GPU-0": DAY - late})
    assert {one.microseconds for one in books.report().unbilled} == {0}


def test_idle_time_of_a_cut_gpu_has_the_price_of_the_instances_that_were_idle() -> None:
    """Series of idle time have no instance: each instance has what its owners leave of its share."""
    prices = by_entry({"mig": "3g.*", "price": 12}, {"mig": "1g.*", "price": 6}, {"price": 2})
    cut = [
        info("GPU-0"),
        info("GPU-0", cut="1_0", profile="3g.40gb"),
        info("GPU-0", cut="7_0", profile="1g.10gb"),
    ]
    ratios = [
        (scraped(uuid="GPU-0", mig_instance="1_0"), 0.5),
        (scraped(uuid="GPU-0", mig_instance="7_0"), 0.25),
    ]
    # The first instance is used all day, the second for 8 hours; a quarter of the GPU is not cut.
    accounts: CounterLevels = [
        (spent("GPU-0", "t", cut="1_0"), 0, 12 * HOUR),
        (spent("GPU-0", "u", cut="7_0"), 0, 2 * HOUR),
        (own_time("GPU-0"), 0, 10 * HOUR),
    ]
    found = one_day(accounts, {"GPU-0": 24 * HOUR}, infos=cut, ratios=ratios).report(prices=prices)
    costs = {key: line.cost for key, line in rows(found).items() if line.cost}
    assert costs == {("ml", "t"): 144, ("ml", "u"): 12, ("idle",): 4 * 6 + 6 * 2}
    assert rows(found)["idle",].uncut_microseconds == 6 * HOUR * 1_000_000


def test_idle_time_of_a_gpu_with_a_changed_mig_layout_has_the_price_without_mig() -> None:
    prices = by_entry({"mig": "*", "price": 12}, {"price": 2})
    cut = [
        info("GPU-0"),
        info("GPU-0", cut="1_0", profile="4g.40gb"),
        info("GPU-0", cut="2_0", profile="4g.40gb"),
    ]
    ratios = [(scraped(uuid="GPU-0", mig_instance=name), 4 / 7) for name in ("1_0", "2_0")]
    accounts: CounterLevels = [(own_time("GPU-0"), 0, 24 * HOUR)]
    found = one_day(accounts, {"GPU-0": 24 * HOUR}, infos=cut, ratios=ratios).report(prices=prices)
    assert rows(found)["idle",].cost == 48
    assert any("The MIG layout of 1 GPU changed within a day" in note for note in found.notes)


def test_a_price_per_instance_is_that_of_its_share() -> None:
    prices = by_entry({"mig": "1g.*", "price": 3, "per": "instance"}, {"price": 2})
    cut = [info("GPU-0"), info("GPU-0", cut="7_0", profile="1g.10gb")]
    ratios = [(scraped(uuid="GPU-0", mig_instance="7_0"), 16 / 132)]
    # 24 hours of 16 of 132 multiprocessors.
    accounts: CounterLevels = [(spent("GPU-0", "t", cut="7_0"), 0, 24 * HOUR * 16 / 132)]
    found = one_day(accounts, {"GPU-0": 24 * HOUR * 16 / 132}, infos=cut, ratios=ratios).report(prices=prices)
    assert float(rows(found)["ml", "t"].cost or 0) == pytest.approx(24 * 3, rel=1e-9)


def test_each_gpu_has_the_price_of_its_model_and_node() -> None:
    prices = by_entry({"gpu": "*H100*", "node": "a", "price": 4}, {"gpu": "*A100*", "price": 2})
    nodes = {"GPU-1": "b", "GPU-2": "b"}
    infos = [info("GPU-0"), info("GPU-1", "b", "NVIDIA A100"), info("GPU-2", "b")]
    accounts: CounterLevels = [
        (spent("GPU-0", "t"), 0, HOUR),
        (spent("GPU-1", "t", "b"), 0, HOUR),
        (spent("GPU-2", "t", "b"), 0, HOUR),
    ]
    watched = dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), 1.0 * HOUR)
    found = one_day(accounts, watched, nodes, infos=infos).report("namespace,node", prices=prices)
    lines = {line.key: (line.cost, line.unpriced_microseconds) for line in found.lines}
    assert lines == {("ml", "a"): (4, 0), ("ml", "b"): (2, 3_600_000_000)}
    assert any("no entry matches" in note and "on node b" in note for note in found.notes)


def test_each_day_has_the_prices_of_its_mig_layout() -> None:
    """A new layout uses the name of an instance again, with another profile and share."""
    prices = by_entry(
        {"mig": "4g.*", "price": 12}, {"mig": "1g.*", "price": 3, "per": "instance"}, {"price": 2}
    )
    first = {
        "infos": [info("GPU-0"), info("GPU-0", cut="1_0", profile="4g.40gb")],
        "ratios": [(scraped(uuid="GPU-0", mig_instance="1_0"), 0.5)],
    }
    books = one_day([(spent("GPU-0", "t", cut="1_0"), 0, 12 * HOUR)], {"GPU-0": 12 * HOUR}, **first)
    more = part(
        BEGIN + DAY,
        BEGIN + 2 * DAY,
        counts=[(device("GPU-0"), DAY / 15)],
        infos=[info("GPU-0"), info("GPU-0", cut="1_0", profile="1g.10gb")],
        ratios=[(scraped(uuid="GPU-0", mig_instance="1_0"), 0.125)],
    )
    watched: CounterLevels = [(device("GPU-0"), 12 * HOUR, 15 * HOUR)]
    books.add(with_time(more, watched, [(spent("GPU-0", "t", cut="1_0"), 12 * HOUR, 15 * HOUR)]))
    # 12 hours at 12, and 24 hours of an eighth at 3 each.
    assert rows(books.report(prices=prices))["ml", "t"].cost == 12 * 12 + 24 * 3


@pytest.mark.parametrize("by", ["namespace", "node"])
def test_a_gpu_that_moved_has_the_prices_of_each_node(by: str) -> None:
    prices = by_entry({"node": "a", "price": 4}, {"node": "b", "price": 7})
    books = one_day([(spent("GPU-0", "t"), 0, HOUR)], {"GPU-0": HOUR})
    watched: CounterLevels = [(device("GPU-0", "b"), 0, 2 * HOUR)]
    more = part(BEGIN + DAY, BEGIN + 2 * DAY, counts=[(device("GPU-0", "b"), DAY / 15)])
    # Its node `a` is still known from the day before.
    gone: CounterLevels = [(device("GPU-0"), HOUR, HOUR)]
    answers = with_time(more, [*watched, *gone], [(spent("GPU-0", "t", "b"), 0, 2 * HOUR)])
    still = {**answers.watched, "still": [(device("GPU-0", "b"), 2.0 * HOUR)]}
    books.add(replace(answers, watched=still))
    found = books.report(by, prices=prices)
    assert found.total.cost == 4 + 2 * 7
    noted = [note for note in found.notes if note.startswith("1 GPU moved to another node")]
    assert len(noted) == (by == "node")


def test_a_price_that_changes_within_the_range_applies_from_then_on() -> None:
    noon = datetime.fromtimestamp(BEGIN + DAY, UTC).isoformat()
    prices = by_entry({"until": noon, "price": 2}, {"price": 3})
    books = one_day([(spent("GPU-0", "t"), 0, 10 * HOUR)], {"GPU-0": 10 * HOUR})
    more = part(BEGIN + DAY, BEGIN + 2 * DAY, counts=[(device("GPU-0"), DAY / 15)])
    books.add(
        with_time(
            more, [(device("GPU-0"), 10 * HOUR, 15 * HOUR)], [(spent("GPU-0", "t"), 10 * HOUR, 15 * HOUR)]
        )
    )
    assert rows(books.report(prices=prices))["ml", "t"].cost == Fraction(10 * 2 + 5 * 3)


def test_jobs_have_their_account_and_partition() -> None:
    job = scraped(uuid="GPU-0", account="owner", owner_kind="slurm", user="mira", slurm_job="4711")
    array = {"job_name": "bert", "array_job": "4700"}
    facts = [(scraped(slurm_job="4711", slurm_account="nlp", partition="gpu", user="mira", **array), 1.0)]
    books = one_day([(job, 0, HOUR), (spent("GPU-0", "t"), 0, HOUR)], {"GPU-0": 2.0 * HOUR}, jobs=facts)
    assert hours(books.report("slurm_account,partition,job")) == {
        ("nlp", "gpu", "", "4711"): 1,
        ("", "", "", ""): 1,
    }
    assert hours(books.report("job_name,array_job")) == {("bert", "4700"): 1, ("", ""): 1}


@pytest.mark.parametrize("by", ["command", "team,unit", "namespace, command"])
def test_keys_that_series_do_not_have_are_refused(by: str) -> None:
    with pytest.raises(UsageError, match=r"owner series have no (command|unit) label"):
        fleet_grouping(by, Inventory(15.0))


def test_the_sum_over_own_accounts_of_a_gpu_is_in_its_row() -> None:
    accounts: CounterLevels = [(own_time("GPU-0"), 0, 4 * HOUR), (own_time("GPU-1", node="b"), 0, 6 * HOUR)]
    watched = {"GPU-0": 4.0 * HOUR, "GPU-1": 6.0 * HOUR}
    found = one_day(accounts, watched, {"GPU-1": "b"}).report("node")
    idle = {line.key: line.gpu_microseconds for line in found.gpu_accounts if line.gpu_microseconds}
    assert idle == {("a",): 4 * HOUR * 1_000_000, ("b",): 6 * HOUR * 1_000_000}
