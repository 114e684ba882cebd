"""Fleet reports of periods without a reading name what the Prometheus has."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from gpuledger.app import fleet_reports
from gpuledger.app.fleet_queries import DEVICES
from gpuledger.app.fleet_reports import report_from_prometheus
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.model.errors import GpuledgerError, UsageError

NOW = 1_700_000_000.0
BETWEEN = (int(NOW) - 7200, int(NOW) - 3600)


class ScriptedClient:
    """A Prometheus with samples of gpuledger's ticks and GPUs at these times; instant vectors are empty."""

    url = "http://prometheus:9090"
    bases: tuple[str, ...] = ()
    times_of_bases: dict[str, list[float]] = {}  # noqa: RUF012
    ticks: list[float] = []  # noqa: RUF012  (replaced by each test)
    hours: list[float] = []  # noqa: RUF012
    gpus: tuple[str, ...] = ()
    hold = 30.0

    def __init__(self, *_: Any) -> None:
        pass

    def query_vector(self, query: str, _at: float) -> list[tuple[dict[str, str], float]]:
        if query.startswith("count by (basis)"):
            return [({"basis": basis}, 1.0) for basis in self.bases]
        if "gpuledger_zero_hold_seconds" in query:
            return [({"node": "node-1"}, self.hold)]
        is_info = query.startswith("last_over_time(gpuledger_device_info")
        return [({"uuid": uuid}, 1.0) for uuid in self.gpus] if is_info else []

    def query_sample_times(self, query: str, _at: float) -> list[tuple[dict[str, str], list[float]]]:
        if query.startswith("count by (basis)"):
            return [({"basis": basis}, times) for basis, times in self.times_of_bases.items()]
        times = self.ticks if query.startswith("gpuledger_ticks_total") else self.hours
        return [({}, times)] if times else []


def report(by: str = "owner", every: str = "") -> UsageReport:
    return report_from_prometheus(
        FleetSettings(url="http://prometheus:9090"),
        by,
        Prices(),
        RequestedRange(*BETWEEN, "--since", "--until", UTC),
        NOW,
        lambda *_: None,
        lambda _: None,
        every=every,
    )


def error_of(monkeypatch: pytest.MonkeyPatch, ticks: list[float], hours: list[float]) -> str:
    monkeypatch.setattr(ScriptedClient, "ticks", ticks)
    monkeypatch.setattr(ScriptedClient, "hours", hours)
    monkeypatch.setattr(fleet_reports, "PrometheusClient", ScriptedClient)
    with pytest.raises(GpuledgerError) as refused:
        report()
    assert refused.value.exit_code == 1
    return str(refused.value)


def test_a_period_without_metrics_names_the_times_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    line = error_of(monkeypatch, [], [NOW - 864_000, NOW - 100_000, NOW - 90_000])
    assert f"has no {DEVICES} in this period" in line
    assert "from 2023-11-04 22:13 +0000 to 2023-11-13 21:13 +0000, to the hour" in line


def test_without_any_metrics_the_remedy_is_to_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "let it scrape gpuledger's /metrics" in error_of(monkeypatch, [], [])


def test_a_fleet_without_a_gpu_is_no_empty_report(monkeypatch: pytest.MonkeyPatch) -> None:
    line = error_of(monkeypatch, [NOW - 3700, NOW - 3685, NOW - 3670], [])
    assert "scrapes gpuledger, but no GPU was read in this period" in line


def test_a_fleet_of_idle_gpus_without_energy_is_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedClient, "ticks", [NOW - 3700, NOW - 3685])
    monkeypatch.setattr(ScriptedClient, "gpus", ("GPU-1",))
    monkeypatch.setattr(fleet_reports, "PrometheusClient", ScriptedClient)
    assert report().lines == []


@pytest.mark.parametrize(("hold", "noted"), [(30.0, True), (59.5, False), (70.0, False)])
def test_a_hold_shorter_than_the_scrape_interval_is_noted(
    monkeypatch: pytest.MonkeyPatch, hold: float, noted: bool
) -> None:
    monkeypatch.setattr(ScriptedClient, "ticks", [NOW - 3760, NOW - 3700])
    monkeypatch.setattr(ScriptedClient, "gpus", ("GPU-1",))
    monkeypatch.setattr(ScriptedClient, "hold", hold)
    monkeypatch.setattr(fleet_reports, "PrometheusClient", ScriptedClient)
    line = "node-1: new counters are 0 for 30 s, but the scrape interval is 60 s, so what short jobs used is"
    assert [note.startswith(line) for note in report().notes if "new counters" in note] == [True] * noted


def test_parts_of_the_range_without_data_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days before the first scrape, of which a FOCUS file has a row for each."""
    monkeypatch.setattr(ScriptedClient, "ticks", [NOW - 3700, NOW - 3685])
    monkeypatch.setattr(ScriptedClient, "gpus", ("GPU-1",))
    monkeypatch.setattr(fleet_reports, "PrometheusClient", ScriptedClient)
    second = NOW // 3600 * 3600 - 3600
    monkeypatch.setattr(fleet_reports.FleetQueries, "has_data", lambda _, begins, __: begins >= second)
    found = report(every="hour")
    assert [part.begins * 900 for part in found.periods] == [second]
    assert found.notes[0] == "1 of 2 parts of the range have no data in Prometheus."


@pytest.mark.parametrize(
    ("bases", "expected"),
    [
        (("residence",), "Prometheus has GPU time by residence only, and price.basis is allocation"),
        (
            ("allocation", "residence"),
            "(allocation from 2023-11-14 20:26 +0000 to 2023-11-14 20:43 +0000; residence from "
            "2023-11-14 20:48 +0000 to 2023-11-14 20:48 +0000)",
        ),
    ],
)
def test_a_range_in_which_gpu_time_has_another_basis_is_refused(
    monkeypatch: pytest.MonkeyPatch, bases: tuple[str, ...], expected: str
) -> None:
    times = {"allocation": [NOW - 6400, NOW - 5400], "residence": [NOW - 5100]}
    monkeypatch.setattr(ScriptedClient, "ticks", [NOW - 3700, NOW - 3685])
    monkeypatch.setattr(ScriptedClient, "gpus", ("GPU-1",))
    monkeypatch.setattr(ScriptedClient, "bases", bases)
    monkeypatch.setattr(ScriptedClient, "times_of_bases", {basis: times[basis] for basis in bases})
    monkeypatch.setattr(fleet_reports, "PrometheusClient", ScriptedClient)
    with pytest.raises(UsageError) as refused:
        report()
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("by", ["command", "unit", "team,command"])
def test_keys_without_labels_are_refused_before_the_first_query(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(ScriptedClient, "query_vector", None)
    monkeypatch.setattr(fleet_reports, "PrometheusClient", ScriptedClient)
    with pytest.raises(UsageError, match="owner series have no"):
        report(by)
