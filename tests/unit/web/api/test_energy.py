"""/api/v1/energy: the report's numbers, once for everybody who asks, and whole over its pages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from books_helpers import UNIX, Run
from builders import FakeClock, gpu, page, process, snapshot
from gpuledger.http.routes import Request, Response
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.store.history import History
from gpuledger.model.workload import Workload
from gpuledger.web.api.answers import Refused, cursor_of
from gpuledger.web.api.api import Api, Terms
from gpuledger.web.api.books import BooksAsRead
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.energy import FRESH, HELD, EnergyReports
from gpuledger.web.api.handlers import Handlers
from gpuledger.web.api.parameters import read_query
from gpuledger.web.api.values import Words
from report_helpers import report_of

CARD, HOUR = gpu(0, name="NVIDIA H100"), 3600
PAGE = page(snapshot(unix=UNIX))
(PARAMETERS,) = (one.parameters for one in ENDPOINTS if one.name == "energy")
PEOPLE = [
    process(CARD, n, ticks=n, workload=Workload("pod", f"team-{n}", f"p-{n}", "c")) for n in range(1, 8)
]


def asked(query: str = "") -> dict[str, Any]:
    return read_query(query, PARAMETERS)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Books in which seven teams shared a Gpu, and it was idle for a while."""
    found = Run(tmp_path)
    energy = 0
    for second in range(12):
        energy += 70_000 + second
        found.tick({CARD: energy}, PEOPLE if second < 9 else ())
    yield found
    found.store.close()


class Asker:
    """The API over those books; time passes when the test says so."""

    def __init__(self, run: Run, prices: Prices | None = None) -> None:
        self.file = run.store.file
        self.clock = FakeClock(run.clock.now_unix, 0.0)
        self.prices = prices or Prices()
        books = BooksAsRead(self.clock, lambda: History(self.file))
        self.reports = EnergyReports(books, lambda: self.prices, self.clock.elapsed)

    def told(self, query: str = "") -> Words:
        return self.reports.told(PAGE, asked(query))


def test_rows_are_those_of_the_report_most_energy_first(run: Run) -> None:
    told, expected = Asker(run).told("since=24h"), report_of(run.store.file, "namespace")
    assert told["keys"] == ["namespace"]
    assert [(row["key"], row["joules"]) for row in told["rows"]] == [
        (list(line.key), line.millijoules / 1000) for line in expected.lines
    ]
    assert [row["gpu_seconds"] for row in told["rows"]] == [float(line.resident) for line in expected.lines]
    assert all(row["low_joules"] <= row["joules"] <= row["high_joules"] for row in told["rows"])
    assert [row["joules"] for row in told["rows"]] == sorted(
        (r["joules"] for r in told["rows"]), reverse=True
    )


def test_rows_and_own_accounts_sum_to_the_total_to_the_millijoule(run: Run) -> None:
    told = Asker(run).told("since=24h")
    parts = sum(round(one["joules"] * 1000) for one in (*told["rows"], *told["own"]))
    assert parts == round(told["total"]["joules"] * 1000) == round(told["gpus"][0]["joules"] * 1000) > 0
    total = told["total"]
    shared = round((total["measured_joules"] + total["apportioned_joules"]) * 1000)
    assert shared == sum(round(one["joules"] * 1000) for one in told["rows"])


def test_times_are_rounded_to_the_hours_at_which_books_are_exact(run: Run) -> None:
    told = Asker(run).told(f"since={UNIX - 10}&until={UNIX + 10}")
    assert (told["since"] % HOUR, told["until"] % HOUR) == (0, 0)
    assert told["since"] <= UNIX - 10 < UNIX + 10 <= told["until"]


def test_a_range_from_before_the_books_is_not_complete(run: Run) -> None:
    asker = Asker(run)
    within = int((UNIX + HOUR) // HOUR) * HOUR
    assert asker.told("since=24h")["complete"] is False
    assert asker.told(f"since={UNIX}&until={within}")["complete"] is True


def test_costs_are_null_until_there_is_a_price(run: Run) -> None:
    asker = Asker(run)
    bare = asker.told("since=24h")
    assert {row["cost"] for row in bare["rows"]} == {None}
    assert (bare["total"]["co2_grams"], bare["currency"]) == (None, "")
    asker.prices = Prices(kwh=Decimal(3600), currency="EUR", co2=Decimal(3600))
    priced = asker.told("since=24h")
    # A millieuro and a milligram for each joule.
    assert [round(row["cost"] * 1000, 3) for row in priced["rows"]] == [
        row["joules"] for row in priced["rows"]
    ]
    assert priced["total"]["co2_grams"] == pytest.approx(priced["total"]["joules"] / 1000)
    assert priced["currency"] == "EUR"


def test_own_accounts_have_their_co2_and_with_the_rows_sum_to_the_total(run: Run) -> None:
    asker = Asker(run)
    assert {one["co2_grams"] for one in asker.told("since=24h")["own"]} == {None}
    asker.prices = Prices(co2=Decimal(3600))
    told = asker.told("since=24h")
    assert [round(one["co2_grams"] * 1000, 3) for one in told["own"]] == [
        one["joules"] for one in told["own"]
    ]
    parts = sum(one["co2_grams"] for one in (*told["rows"], *told["own"]))
    assert parts == pytest.approx(told["total"]["co2_grams"])


@pytest.mark.parametrize(
    ("prices", "notes"),
    [
        (Prices(), []),
        (Prices(pue=Decimal("1.4")), []),
        (Prices(kwh=Decimal(1), co2=Decimal(380), pue=Decimal("1.0")), []),
        (Prices(gpu_hour=Decimal(1), pue=Decimal("1.4")), []),
        (Prices(kwh=Decimal(1), pue=Decimal("1.4")), ["the PUE of 1.4", "cost is of the energy"]),
        (Prices(co2=Decimal(1), pue=Decimal("1.4")), ["the PUE of 1.4", "CO2 is of the energy"]),
        (
            Prices(kwh=Decimal(1), co2=Decimal(1), pue=Decimal(2)),
            ["PUE of 2", "cost and CO2 are of the energy"],
        ),
    ],
)
def test_what_a_pue_is_in_is_said(run: Run, prices: Prices, notes: list[str]) -> None:
    told = Asker(run, prices).told("since=24h")["notes"]
    assert len(told) == bool(notes)
    assert all(words in told[0] for words in notes)


@pytest.mark.parametrize(
    ("by", "keys"),
    [("gpu", ["uuid", "gpu", "model"]), ("pod", ["namespace", "pod"]), ("label:team", ["team"])],
)
def test_every_grouping_of_the_report_is_one_here(run: Run, by: str, keys: list[str]) -> None:
    told = Asker(run).told(f"since=24h&by={by}")
    assert (told["by"], told["keys"]) == (by, keys)
    assert {len(row["key"]) for row in told["rows"]} == {len(keys)}


def test_who_asks_for_the_same_gets_the_same_report_for_a_while(run: Run) -> None:
    asker = Asker(run)
    for query in ("since=24h", "since=1440m", "since=24h&limit=3"):
        asker.told(query)
    assert asker.reports.computed == 1
    asker.told("since=24h&by=pod")
    assert asker.reports.computed == 2
    asker.clock.now_elapsed += FRESH
    asker.told("since=24h")
    assert asker.reports.computed == 3


def test_pages_are_of_one_report_however_the_books_go_on(run: Run) -> None:
    asker = Asker(run)
    whole = [row["key"] for row in asker.told("since=24h")["rows"]]
    told = asker.told("since=24h&limit=3")
    found = [row["key"] for row in told["rows"]]
    energy = 10**6
    while told["next"] is not None:
        energy += 10**6
        # Whoever was last uses most from now on.
        run.tick({CARD: energy}, PEOPLE[-1:])
        asker.clock.now_elapsed += FRESH
        told = asker.told(f"since=24h&limit=3&cursor={told['next']}")
        found += [row["key"] for row in told["rows"]]
    assert (found, asker.reports.computed) == (whole, 1)


def test_a_report_that_is_no_longer_held_is_said_to_be_so(run: Run) -> None:
    asker = Asker(run)
    cursor = asker.told("since=24h&limit=3")["next"]
    asker.clock.now_elapsed += HELD + 1
    with pytest.raises(Refused) as refused:
        asker.told(f"since=24h&cursor={cursor}")
    assert (refused.value.status, refused.value.code) == (404, "cursor_expired")


@pytest.mark.parametrize("numbers", [[1, 0], [1, -1], [1, 10**6], [1], [1, 2, 3]])
def test_a_cursor_that_no_answer_had_is_refused(run: Run, numbers: list[int]) -> None:
    asker = Asker(run)
    asker.told("since=24h")
    with pytest.raises(Refused) as refused:
        asker.told(f"since=24h&cursor={cursor_of(numbers)}")
    assert (refused.value.status, refused.value.parameter) == (400, "cursor")


def test_a_cursor_of_another_grouping_is_refused(run: Run) -> None:
    asker = Asker(run)
    cursor = asker.told("since=24h&limit=3")["next"]
    with pytest.raises(Refused, match="cursor"):
        asker.told(f"since=24h&by=pod&cursor={cursor}")


def test_a_cursor_alone_goes_on_and_the_same_parameters_may_be_given(run: Run) -> None:
    asker = Asker(run)
    whole = [row["key"] for row in asker.told("since=24h&by=pod")["rows"]]
    told = asker.told("since=24h&by=pod&limit=2")
    times = f"since={told['since']}&until={told['until']}"
    for beside in ("limit=2", "since=24h", "until=now&by=pod", times):
        rest = asker.told(f"cursor={told['next']}&{beside}")["rows"]
        assert [row["key"] for row in rest] == whole[2 : 2 + (2 if "limit" in beside else 200)]
    second = asker.told(f"cursor={told['next']}&limit=2")["next"]
    assert asker.told(f"cursor={second}&since=24h&by=pod")["rows"][0]["key"] == whole[4]


@pytest.mark.parametrize(("name", "value"), [("since", "23h"), ("until", "1h"), ("by", "user")])
def test_another_parameter_than_the_cursor_was_made_with_is_refused_and_named(
    run: Run, name: str, value: str
) -> None:
    asker = Asker(run)
    cursor = asker.told("since=24h&limit=3")["next"]
    with pytest.raises(Refused) as refused:
        asker.told(f"cursor={cursor}&{name}={value}")
    assert (refused.value.status, refused.value.parameter) == (400, name)


def test_only_few_reports_are_held(run: Run) -> None:
    asker = Asker(run)
    first = asker.told("since=24h&limit=1")["next"]
    for by in ("pod", "user", "job", "gpu"):
        asker.told(f"since=24h&by={by}")
    with pytest.raises(Refused, match="no longer held"):
        asker.told(f"since=24h&cursor={first}")


def test_without_books_the_remedy_is_said() -> None:
    reports = EnergyReports(BooksAsRead(FakeClock()), Prices)
    with pytest.raises(Refused) as refused:
        reports.told(PAGE, asked())
    assert (refused.value.status, refused.value.code) == (503, "no_books")
    assert "--state-dir" in refused.value.message


def test_books_that_are_no_books_are_said_to_be_so(tmp_path: Path) -> None:
    file = tmp_path / "gpuledger.db"
    file.write_bytes(b"SQLite format 3\0" + bytes(4096))
    with pytest.raises(Refused) as refused:
        EnergyReports(BooksAsRead(FakeClock(), lambda: History(file)), Prices).told(PAGE, asked())
    assert (refused.value.status, refused.value.code) == (503, "no_books")


@pytest.mark.parametrize(
    "query",
    [
        "since=2023-11-14&until=2023-11-13",
        "since=now",
        "since=0h",
        "since=00d&until=0s",
        f"since={UNIX}&until={UNIX}",
    ],
)
def test_a_range_that_is_none_is_refused(run: Run, query: str) -> None:
    with pytest.raises(Refused, match="since is not before until") as refused:
        Asker(run).told(query)
    assert (refused.value.status, refused.value.parameter) == (400, "since")


def test_made_up_books_have_a_today_of_their_own(run: Run) -> None:
    run.store.close()
    books = BooksAsRead(FakeClock(UNIX + 30 * 86_400), lambda: History(run.store.file), made_up=True)
    told = EnergyReports(books, Prices).told(PAGE, asked())
    assert told["since"] <= UNIX < told["until"] <= UNIX + 86_400 + HOUR
    assert told["rows"]


def test_reports_do_not_stay_when_nobody_asks_any_more(run: Run) -> None:
    clock = FakeClock(run.clock.now_unix, 0.0)
    api = Api(PAGE, BooksAsRead(clock, lambda: History(run.store.file)), clock)
    handlers = Handlers(api, Terms(), held=0.01)

    async def within() -> tuple[int, bool]:
        answer = handlers.respond(Request("GET", "/api/v1/energy", "since=24h"))
        assert not isinstance(answer, Response)
        told: Response = await answer
        while handlers.reports.holds:
            await asyncio.sleep(0)
        return told.status, handlers.reports.holds

    async def patiently() -> tuple[int, bool]:
        return await asyncio.wait_for(within(), 20)

    assert asyncio.run(patiently()) == (200, False)
