"""Every number of every dashboard is that of the accounts, also if pods are replaced and scraped twice.

`scraped_worlds.py` describes the nodes. promtool evaluates; `tests/release` runs this with version 3.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dashboards import DASHBOARDS, PanelQuery, column, panel, panel_queries
from running import assert_each
from scraped_worlds import (
    AT,
    ENDS,
    GONE,
    JOB_JOULES,
    JOB_SECONDS,
    PERIOD,
    RANGE,
    RECORDING,
    REPLACED,
    SHORT_JOBS,
    WATTS,
    Row,
    query_series,
    query_worlds,
    short_jobs,
)

pytestmark = pytest.mark.group("pods-replaced")

QUERIES = [query for uid in DASHBOARDS for query in panel_queries(uid)]
# What the range contains: both jobs of ten minutes.
JOBS = 2 * RANGE // PERIOD
ENERGY = {name: watts * RANGE for name, watts in WATTS.items()} | {"jobs": float(JOBS * JOB_JOULES)}
KWH = 3.6e6
# Two scrapes of the range, and what increase() extrapolates of the series of a job, which is short.
BOUND = 0.03


# While both pods are scraped.
OVERLAPS = (REPLACED + 15, GONE + 15)
Results = dict[str, dict[PanelQuery, Mapping[Row, float]]]


@pytest.fixture(scope="module")
def at_moments(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    """The results of all panels at the end and during both overlaps."""
    expressions = [one.expression for one in QUERIES]
    found = query_worlds(tmp_path_factory.mktemp("worlds"), expressions, (AT, *OVERLAPS), [RECORDING])
    return {
        at: {world: dict(zip(QUERIES, rows, strict=True)) for world, rows in worlds.items()}
        for at, worlds in found.items()
    }


@pytest.fixture(scope="module")
def results(at_moments: dict[int, Results]) -> Results:
    return at_moments[AT]


def test_every_panel_has_the_numbers_of_a_node_that_one_target_scrapes(
    results: Results,
) -> None:
    def is_equal(query: PanelQuery) -> None:
        expected, found = results["plain"][query], results["rollout"][query]
        # Held seconds restart with the program: up to five minutes are counted late, in this hour.
        bound = 0.1 if "[1h]" in query.expression else BOUND
        assert found == pytest.approx(expected, rel=bound)

    assert_each(QUERIES, is_equal)


def test_every_sum_of_a_time_range_is_compared(
    results: Results,
) -> None:
    sums = [query for query in QUERIES if "increase(" in query.expression]
    assert len(sums) > 40
    assert [str(query) for query in sums if not results["plain"][query]] == []


SUMS = {
    ("gpuledger-energy", "GPU energy", ""): sum(ENERGY.values()) / KWH,
    ("gpuledger-energy", "Energy of owners", ""): (ENERGY["train"] + ENERGY["api"] + ENERGY["jobs"]) / KWH,
    ("gpuledger-energy", "GPU-hours of owners", ""): (RANGE + JOBS * JOB_SECONDS) / 3600,
    ("gpuledger-energy", "Held idle GPU-hours", ""): 2 * 0.2 * RANGE / 3600,
    ("gpuledger-energy", "Idle GPU-hours", ""): (RANGE - JOBS * JOB_SECONDS) / 3600,
    ("gpuledger-energy", "Cost of GPU time", ""): 2.0 * 2 * RANGE / 3600,
    ("gpuledger-energy", "Energy by namespace", "ci"): ENERGY["jobs"] / 2 / KWH,
    ("gpuledger-energy", "Energy by namespace", "ml"): ENERGY["train"] / KWH,
    ("gpuledger-fleet", "GPUs, power and energy by node", ""): sum(ENERGY.values()) / KWH,
    ("gpuledger-usage", "GPU-hours by namespace", "ci"): JOBS / 2 * JOB_SECONDS / 3600,
    ("gpuledger-usage", "GPU-hours by namespace", "ml"): RANGE / 2 / 3600,
    ("gpuledger-health", "Uncorrected ECC errors", ""): 6.0,
}


@pytest.mark.parametrize(("uid", "title", "namespace"), SUMS)
def test_a_sum_is_that_of_the_accounts(results: Results, uid: str, title: str, namespace: str) -> None:
    """Jobs of five seconds have all their energy and time, at scrape intervals of 30 and 60 s."""
    shown = panel(uid, title)
    expression = column(uid, title, "Energy") if shown["type"] == "table" else shown["targets"][0]["expr"]
    (query,) = (one for one in QUERIES if one.expression == expression and one.panel["title"] == title)
    rows = results["rollout"][query]
    (value,) = (value for row, value in rows.items() if not namespace or ("namespace", namespace) in row)
    assert value == pytest.approx(SUMS[uid, title, namespace], rel=0.04)


def test_jobs_of_five_seconds_have_all_their_energy(tmp_path: Path) -> None:
    intervals = (15, 30, 60)
    series = [one for interval in intervals for one in short_jobs(interval)]
    query = "sum by (uuid) (increase(gpuledger:energy_joules:max[2h]))"
    (rows,) = query_series(tmp_path, series, [(query, ENDS)], [RECORDING])
    found = {dict(row)["uuid"]: joules for row, joules in rows.items()}
    expected = {f"GPU-{interval}": float(SHORT_JOBS * JOB_JOULES) for interval in intervals}
    # increase() extrapolates each series to both sides by half the distance of its samples.
    assert found == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("at", OVERLAPS)
def test_no_panel_fails_while_two_pods_overlap(at: int, at_moments: dict[int, Results]) -> None:
    """Rows are the same. Values are not compared: counters that restart are counted five minutes later."""
    plain, rollout = at_moments[at].values()
    assert [str(query) for query in QUERIES if plain[query].keys() != rollout[query].keys()] == []


def test_without_recording_rules_a_sum_is_missing_and_not_zero(tmp_path: Path) -> None:
    sums = [query for query in QUERIES if "increase(gpuledger:" in query.expression]
    found = query_worlds(tmp_path, [query.expression for query in sums], [AT], [])[AT]
    assert [str(query) for query, rows in zip(sums, found["plain"], strict=True) if rows] == []
    texts = {query.panel["fieldConfig"]["defaults"]["noValue"] for query in sums}
    assert [text for text in texts if "recording rules are missing" not in text] == []
