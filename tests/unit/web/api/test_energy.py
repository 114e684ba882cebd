"""/api/v1/energy: the numbers of a report, shared by equal requests and consistent over its pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import jsonschema_rs
import pytest

from builders import FakeClock, gpu, node_state, process, reading, snapshot
from gpuledger.ledger.report.formats import as_json
from gpuledger.ledger.report.report_table import report_table
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.teams import parse_teams
from gpuledger.ledger.store.history import History
from gpuledger.model.node_state import Health
from gpuledger.model.workload import Workload
from gpuledger.web.api.api import ApiOptions
from gpuledger.web.api.endpoints import ENDPOINTS
from gpuledger.web.api.energy import EnergyReports
from gpuledger.web.api.ledger_access import LedgerAccess
from gpuledger.web.api.responses import ApiError
from gpuledger.web.api.schemas import SCHEMAS
from ledger_helpers import UNIX, Run
from report_helpers import report_of
from unit.web.api.energy_client import STATE, EnergyClient, parameters, shared_ledger

QUARTER, HOUR = 900, 3600


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = shared_ledger(tmp_path)
    yield found
    found.store.close()


def test_a_gpu_that_is_not_measured_has_null_in_place_of_joules(tmp_path: Path) -> None:
    run, card = Run(tmp_path), gpu(1, name="GTX 1050 Ti")
    for _ in range(12):
        run.clock.advance(1.0)
        seen = reading(card, process(card, 1, workload=Workload("pod", "team-1", "p-1", "c")), values={})
        run.ledger.post(replace(snapshot(seen, unix=run.clock.now_unix), elapsed=run.clock.now_elapsed))
    body = EnergyClient(run, Prices(kwh=Decimal("0.3"))).request("since=24h")
    run.store.close()
    (row,) = body["rows"]
    amounts = ("joules", "measured_joules", "apportioned_joules", "cost")
    assert [row[name] for name in (*amounts, "low_joules", "high_joules")] == [None] * 6
    assert [body["total"][name] for name in amounts] == [None] * 4
    assert (row["unmetered_gpus"], body["total"]["unmetered_gpus"], row["gpu_seconds"]) == (1, 1, 11.0)
    assert {one["joules"] for one in (*body["own"], *body["gpus"])} == {None}
    assert "not measured" in body["notes"][0]
    (schema,) = (one.schema for one in ENDPOINTS if one.name == "energy")
    components = {"components": {"schemas": SCHEMAS}, "$ref": f"#/components/schemas/{schema}"}
    jsonschema_rs.validator_for(components).validate(body)


def test_rows_match_the_report_highest_energy_first(run: Run) -> None:
    body, expected = EnergyClient(run).request("since=24h"), report_of(run.store.file, "namespace")
    assert body["keys"] == ["namespace"]
    assert [(row["key"], row["joules"]) for row in body["rows"]] == [
        (list(line.key), line.millijoules / 1000) for line in expected.lines
    ]
    assert [row["gpu_microseconds"] for row in body["rows"]] == [
        line.gpu_microseconds for line in expected.lines
    ]
    assert {row["resident_gpu_seconds"] for row in body["rows"]} == {8.0}
    assert all(row["low_joules"] <= row["joules"] <= row["high_joules"] for row in body["rows"])
    assert [row["joules"] for row in body["rows"]] == sorted(
        (r["joules"] for r in body["rows"]), reverse=True
    )


def test_rows_and_own_accounts_sum_to_the_total_to_the_millijoule(run: Run) -> None:
    body = EnergyClient(run).request("since=24h")
    parts = sum(round(one["joules"] * 1000) for one in (*body["rows"], *body["own"]))
    assert parts == round(body["total"]["joules"] * 1000) == round(body["gpus"][0]["joules"] * 1000) > 0
    total = body["total"]
    shared = round((total["measured_joules"] + total["apportioned_joules"]) * 1000)
    assert shared == sum(round(one["joules"] * 1000) for one in body["rows"])


@pytest.mark.parametrize("by", ["owner", "gpu", "namespace"])
def test_measured_and_apportioned_are_energy_of_owners_in_api_and_report(by: str, tmp_path: Path) -> None:
    run, one = Run(tmp_path), gpu(1)
    for second in range(30):
        present = [process(one, 1), process(one, 2)] if second in range(6, 12) else []
        run.tick({one: second * 100_000}, present or ([process(one, 1)] if second in range(18, 24) else []))
    report = report_of(run.store.file, by, (0, 2**21 * QUARTER))
    total = EnergyClient(run).request(f"since=24h&by={by}")["total"]
    run.store.close()
    found = as_json(report)
    assert [row["kwh"] > 0 for row in found["own"] if row["account"] == "idle"] == [True]
    for name in ("measured", "apportioned"):
        assert {row[f"{name}_kwh"] for row in found["own"]} == {None}
        of_owners = found["total"][f"{name}_kwh"]
        assert of_owners == round(sum(row[f"{name}_kwh"] for row in found["rows"]), 9) > 0
        assert of_owners == round(total[f"{name}_joules"] / 3_600_000, 9)
    table = report_table(report, 0, plain=True).split("\n")
    assert [line.split()[-1] for line in table if ": idle " in line or line.startswith("idle: ")] == [
        "." * 16
    ]


def test_ends_are_moved_to_cuts_of_the_ledger_and_the_last_reading(run: Run) -> None:
    begins = int(UNIX // QUARTER) * QUARTER
    for query in (f"since={begins + 30}", f"since={begins - 30}&until={UNIX + HOUR}"):
        body = EnergyClient(run).request(query)
        assert (body["since"], body["until"]) == (begins, UNIX + 12)
    assert "2023-11-14 22:13 +0000, the last posting" in body["notes"][0]


def test_a_range_without_a_cut_names_the_nearest_ones(run: Run) -> None:
    with pytest.raises(
        ApiError, match=r"the nearest are .* 22:00 .* and .* 22:13 .* as since and until"
    ) as refused:
        EnergyClient(run).request(f"since={UNIX + 2}&until={UNIX + 8}")
    assert (refused.value.status, refused.value.parameter) == (400, "since")


def test_a_range_that_begins_before_the_ledger_is_incomplete(run: Run) -> None:
    client = EnergyClient(run)
    assert client.request("since=24h")["complete"] is False
    assert client.request("since=13m")["complete"] is True


def test_costs_are_null_without_prices(run: Run) -> None:
    client = EnergyClient(run)
    bare = client.request("since=24h")
    assert {row["cost"] for row in bare["rows"]} == {None}
    assert (bare["total"]["co2_grams"], bare["currency"]) == (None, "")
    client.prices = Prices(kwh=Decimal(3600), currency="EUR", co2=Decimal(3600))
    priced = client.request("since=24h")
    # A millieuro and a milligram for each joule.
    assert [round(row["cost"] * 1000, 3) for row in priced["rows"]] == [
        row["joules"] for row in priced["rows"]
    ]
    assert priced["total"]["co2_grams"] == pytest.approx(priced["total"]["joules"] / 1000)
    assert priced["currency"] == "EUR"


def test_own_accounts_have_their_co2_and_with_the_rows_sum_to_the_total(run: Run) -> None:
    client = EnergyClient(run)
    assert {one["co2_grams"] for one in client.request("since=24h")["own"]} == {None}
    client.prices = Prices(co2=Decimal(3600))
    body = client.request("since=24h")
    assert [round(one["co2_grams"] * 1000, 3) for one in body["own"]] == [
        one["joules"] for one in body["own"]
    ]
    parts = sum(one["co2_grams"] for one in (*body["rows"], *body["own"]))
    assert parts == pytest.approx(body["total"]["co2_grams"])


@pytest.mark.parametrize(
    ("prices", "notes"),
    [
        (Prices(), []),
        (Prices(pue=Decimal("1.4")), []),
        (Prices(kwh=Decimal(1), co2=Decimal(380), pue=Decimal("1.0")), []),
        (Prices(gpu_hour=Decimal(1), pue=Decimal("1.4")), []),
        (Prices(kwh=Decimal(1), pue=Decimal("1.4")), ["the PUE of 1.4", "cost is computed from the energy"]),
        (Prices(co2=Decimal(1), pue=Decimal("1.4")), ["the PUE of 1.4", "CO2 is computed from the energy"]),
        (
            Prices(kwh=Decimal(1), co2=Decimal(1), pue=Decimal(2)),
            ["PUE of 2", "cost and CO2 are computed from the energy"],
        ),
    ],
)
def test_a_note_names_what_includes_the_pue(run: Run, prices: Prices, notes: list[str]) -> None:
    body = EnergyClient(run, prices).request("since=24h")["notes"]
    assert len(body) == bool(notes)
    assert all(words in body[0] for words in notes)


@pytest.mark.parametrize(
    ("by", "keys"),
    [("gpu", ["uuid", "gpu", "model"]), ("pod", ["namespace", "pod"]), ("label:team", ["team"])],
)
def test_every_grouping_of_reports_is_supported(run: Run, by: str, keys: list[str]) -> None:
    body = EnergyClient(run).request(f"since=24h&by={by}")
    assert (body["by"], body["keys"]) == (by, keys)
    assert {len(row["key"]) for row in body["rows"]} == {len(keys)}


def test_without_a_ledger_on_disk_the_error_names_the_remedy() -> None:
    reports = EnergyReports(LedgerAccess(FakeClock()), ApiOptions)
    with pytest.raises(ApiError) as refused:
        reports.report_page(STATE, parameters())
    assert (refused.value.status, refused.value.code) == (503, "no_books")
    assert "--state-dir" in refused.value.message


def test_an_invalid_ledger_file_returns_503(tmp_path: Path) -> None:
    file = tmp_path / "gpuledger.db"
    file.write_bytes(b"SQLite format 3\0" + bytes(4096))
    with pytest.raises(ApiError) as refused:
        EnergyReports(LedgerAccess(FakeClock(), lambda: History(file)), ApiOptions).report_page(
            STATE, parameters()
        )
    assert (refused.value.status, refused.value.code) == (503, "no_books")


@pytest.mark.parametrize(
    ("query", "known"),
    [
        ("since=2020-01-01&until=2020-02-01", "begins at 2023-11-14 22:13"),
        ("since=2023-11-20&until=2023-11-21", "ends at 2023-11-14 22:13"),
    ],
)
def test_a_range_without_data_names_what_the_ledger_has(run: Run, query: str, known: str) -> None:
    with pytest.raises(ApiError, match="nothing was watched from") as refused:
        EnergyClient(run).request(query)
    assert known in refused.value.message
    assert (refused.value.status, refused.value.code, refused.value.parameter) == (
        404,
        "not_watched",
        "since",
    )


@pytest.mark.parametrize("simulated", [False, True])
def test_a_ledger_without_readings_says_why(tmp_path: Path, simulated: bool) -> None:
    run = Run(tmp_path)
    run.store.close()
    ledger_access = LedgerAccess(FakeClock(UNIX), lambda: History(run.store.file), simulated)
    state = node_state(None, health=Health(status="nvidia-smi was not found: install the driver"))
    with pytest.raises(ApiError, match="no GPU has been read yet") as refused:
        EnergyReports(ledger_access, ApiOptions).report_page(state, parameters())
    assert (refused.value.status, refused.value.code) == (503, "no_books")
    assert refused.value.message.endswith("nvidia-smi was not found: install the driver")


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
def test_an_empty_range_is_refused(run: Run, query: str) -> None:
    with pytest.raises(ApiError, match="since is not before until") as refused:
        EnergyClient(run).request(query)
    assert (refused.value.status, refused.value.parameter) == (400, "since")


def test_today_in_a_simulated_ledger_is_its_last_day(run: Run) -> None:
    run.store.close()
    ledger_access = LedgerAccess(
        FakeClock(UNIX + 30 * 86_400), lambda: History(run.store.file), simulated=True
    )
    body = EnergyReports(ledger_access, ApiOptions).report_page(STATE, parameters())
    assert body["since"] <= UNIX < body["until"] == UNIX + 12
    assert body["rows"]


def priced() -> Prices:
    return Prices(kwh=Decimal("0.31"), gpu_hour=Decimal("2.47"), currency="EUR", basis="allocation")


EXACT = ("gpu_microseconds", "millijoules", "unpriced_microseconds", "unmetered_gpus")


@pytest.mark.parametrize("by", ["namespace", "pod,gpu", "user", "owner"])
def test_rows_are_those_of_the_report_in_json(run: Run, by: str) -> None:
    body = EnergyClient(run, priced()).request(f"since=24h&by={by}")
    expected = as_json(report_of(run.store.file, by, (0, 2**21 * QUARTER), priced()))
    assert (body["schema"], body["basis"], body["price_list"]) == (
        expected["version"],
        expected["basis"],
        expected["price_list"],
    )
    for part in ("rows", "own"):
        keys = [[row[name] for name in body["keys"]] for row in expected[part]]
        assert [row["key"] for row in body[part]] == keys
    for name in EXACT:
        whole = [*expected["rows"], *expected["own"], expected["total"]]
        assert [row[name] for row in (*body["rows"], *body["own"], body["total"])] == [
            row[name] for row in whole
        ]
    for name in ("resident_gpu", "held_gpu", "active_gpu", "unknown_gpu"):
        assert [row[f"{name}_seconds"] for row in body["rows"]] == [
            pytest.approx(row[f"{name}_hours"] * HOUR, abs=0.01) for row in expected["rows"]
        ]
    assert [row["decimals"] for row in (*body["rows"], *body["own"], body["total"])] == [
        row["decimals"] for row in (*expected["rows"], *expected["own"], expected["total"])
    ]
    assert [(one["account"], one["gpu_microseconds"]) for one in body["not_billed"]] == [
        (one["account"], one["gpu_microseconds"]) for one in expected["not_billed"]
    ]


@pytest.mark.parametrize("by", ["namespace", "pod,gpu", "gpu", "command", "user", "auto"])
def test_time_and_money_of_all_pages_sum_to_a_total_that_does_not_depend_on_the_grouping(
    run: Run, by: str
) -> None:
    client = EnergyClient(run, priced())
    body = page = client.request(f"since=24h&by={by}&limit=3")
    rows = [*page["rows"]]
    while page["next"] is not None:
        page = client.request(f"cursor={page['next']}&limit=3")
        rows += page["rows"]
    found = [*rows, *body["own"]]
    total = client.request("since=24h&by=owner")["total"]
    assert sum(row["gpu_microseconds"] or 0 for row in found) == total["gpu_microseconds"] == 11_000_000
    for name in ("time_cost", "energy_cost", "cost"):
        known = [Decimal(row["decimals"][name]) for row in found if name in row["decimals"]]
        assert sum(known) == Decimal(total["decimals"][name]) > 0
        assert all(amount.as_tuple().exponent == -10 for amount in known if amount)
    cost = Fraction(11, 3600) * Fraction("2.47") + Fraction(total["millijoules"], 3_600_000_000) * Fraction(
        "0.31"
    )
    assert abs(Fraction(total["decimals"]["cost"]) - cost) <= Fraction(1, 2 * 10**10)


def test_the_basis_is_that_of_the_settings_or_of_the_request(run: Run) -> None:
    client = EnergyClient(run, replace(priced(), basis="residence"))
    assert client.request("since=24h")["basis"] == "residence"
    assert client.request("since=24h&basis=allocation")["basis"] == "allocation"


def test_every_makes_rows_for_each_period(run: Run) -> None:
    client = EnergyClient(run, priced())
    whole = client.request("since=24h")
    assert (whole["periods"], {row["period"] for row in whole["rows"]}) == ([], {None})
    body = client.request("since=24h&every=day")
    assert [one["period"] for one in body["periods"]] == ["2023-11-14"]
    assert {row["period"] for row in (*body["rows"], *body["own"], *body["not_billed"])} == {"2023-11-14"}
    assert body["total"] == whole["total"]


def test_a_whole_period_is_that_of_the_time_zone_of_reports(run: Run) -> None:
    client = EnergyClient(run)
    assert client.request("in=2023-11-14")["since"] == UNIX // 86_400 * 86_400
    client.timezone = "Asia/Kolkata"
    with pytest.raises(ApiError, match=r"2023-11-14 00:00 \+0530") as refused:
        client.request("in=2023-11-14")
    assert refused.value.code == "not_watched"
    assert client.request("in=2023-11-15")["since"] == UNIX // 86_400 * 86_400 + 18.5 * 3600
    assert client.request("since=2023-11-15")["since"] == UNIX // 86_400 * 86_400 + 18.5 * 3600


@pytest.mark.parametrize("query", ["since=1h", "until=now", "since=today&until=now"])
def test_a_period_excludes_its_ends(run: Run, query: str) -> None:
    with pytest.raises(ApiError, match="exclude each other") as refused:
        EnergyClient(run).request(f"in=today&{query}")
    assert (refused.value.status, refused.value.parameter) == (400, "in")


@pytest.mark.parametrize(
    ("query", "name", "words"),
    [
        ("in=7d", "in", "expected a month"),
        ("in=", "in", "expected a month"),
        ("in=2023-13", "in", "expected a month"),
        ("every=minute", "every", "expected one of hour, day, week, month"),
        ("every=", "every", "expected one of"),
        ("basis=cost", "basis", "expected one of allocation, residence"),
        ("by=user,user", "by", "user is given twice"),
        ("by=user,", "by", "expected auto, or one or more of"),
        ("by=auto,user", "by", "expected auto, or one or more of"),
        ("by=colour", "by", "slurm_account"),
        ("by=team", "by", "no teams are set"),
        ("by=label:", "by", "label:NAME"),
    ],
)
def test_an_invalid_parameter_is_named_in_one_line(run: Run, query: str, name: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as refused:
        EnergyClient(run).request(query)
    assert (refused.value.status, refused.value.parameter) == (400, name)
    assert refused.value.message.isprintable()
    assert "--" not in refused.value.message


def test_teams_and_the_node_are_keys(run: Run) -> None:
    client = EnergyClient(run)
    client.teams = parse_teams([{"team": "few", "namespace": ["team-1", "team-2"]}])
    body = client.request("since=24h&by=team,node")
    assert (body["keys"], len(body["rows"])) == (["team", "node"], 2)
    assert {tuple(row["key"]) for row in body["rows"]} == {("few", "node-17"), ("", "node-17")}


def test_auto_is_the_first_key_with_several_names_of_those_that_exist(run: Run) -> None:
    client = EnergyClient(run)
    body = client.request("since=24h&by=auto")
    names = {one["by"]: one["names"] for one in body["groupings"]}
    assert (body["by"], names) == ("namespace", {"namespace": 7, "pod": 7, "gpu": 1, "command": 1})
    assert client.request("since=24h&by=auto&limit=3")["next"] is not None
    client.teams = parse_teams([{"team": "few", "namespace": ["team-1", "team-2"]}])
    assert client.request("since=24h&by=auto")["by"] == "namespace"
    client.teams = parse_teams([{"team": f"t-{n}", "namespace": f"team-{n}"} for n in (1, 2)])
    assert client.request("since=24h&by=auto")["by"] == "team"
