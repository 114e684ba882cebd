"""What idle GPUs cost this week: the nodes' own time at the fleet's prices."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from builders import FakeClock
from gpuledger.fleet.idle_week import IdleWeek
from gpuledger.fleet.node_client import NodeRequestFailed, describe_refusal
from gpuledger.ledger.report.price_entries import GPU_HOUR, KWH, price_parser
from gpuledger.ledger.report.settings import Prices
from unit.fleet.support import ListedNodes, ScriptedNodes, a_fleet, address, answer, body, read_all

gpu_hours = price_parser(GPU_HOUR)
# A Wednesday noon.
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()
MONDAY = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
HOUR = 3_600_000_000
ENERGY = "/api/v1/energy"


def row(uuid: str = "GPU-0", model: str = "NVIDIA H100", **more: Any) -> dict[str, Any]:
    return {"key": [uuid, "0", model], "gpu_microseconds": 0, "millijoules": 0, "held_gpu_seconds": 0, **more}


def energy(idle: int = 0, held: float = 0, model: str = "NVIDIA H100") -> dict[str, Any]:
    own = [
        row(model=model, account="idle", gpu_microseconds=idle, millijoules=3_600_000_000),
        row(model=model, account="unattributed", gpu_microseconds=99 * HOUR),
    ]
    return {"own": own, "rows": [row(model=model, held_gpu_seconds=held)]}


class Lab:
    """A fleet with a manual clock."""

    def __init__(self, prices: Prices, *hosts: str) -> None:
        self.nodes = ScriptedNodes({f"http://{host}:9400": body(host) for host in hosts})
        self.list = ListedNodes(*map(address, hosts))
        self.fleet, self.clock = a_fleet(self.nodes, self.list, clock=FakeClock(NOON))
        asyncio.run(read_all(self.fleet))
        self.week = IdleWeek(lambda: self.fleet.nodes, prices, UTC, self.clock)

    def read(self, **answers: Any) -> dict[str, Any]:
        self.nodes.answers |= {f"http://{host}:9400{ENERGY}": found for host, found in answers.items()}
        asyncio.run(self.week.read_once())
        return self.week.fields()

    def queries(self) -> list[tuple[str, str]]:
        found = [parse_qs(urlsplit(path).query) for _, path, _ in self.nodes.requests if ENERGY in path]
        return [(query["since"][0], query["until"][0]) for query in found]


def test_idle_time_and_energy_have_the_prices_of_the_fleet() -> None:
    lab = Lab(Prices(gpu_hour=gpu_hours("2.50"), kwh=gpu_hours("0.30"), currency="EUR"), "a", "b")
    found = lab.read(a=energy(4 * HOUR, 7200), b=energy(2 * HOUR))
    # Six hours at 2.50, and two kilowatt-hours at 0.30; two hours held.
    assert (found["idle_gpu_microseconds"], found["idle_cost"]) == (6 * HOUR, "15.60")
    assert (found["held_gpu_seconds"], found["held_cost"]) == (7200, "5.00")
    assert (found["nodes"], found["missing"], found["currency"]) == (2, [], "EUR")
    assert (found["since"], lab.queries()) == (MONDAY, [(f"{MONDAY:.0f}", "now")] * 2)


def test_prices_can_depend_on_node_and_model() -> None:
    prices = Prices(gpu_hour=gpu_hours('[{"node": "a", "price": 1}, {"gpu": "*A100*", "price": 3}]'))
    found = Lab(prices, "a", "b").read(a=energy(HOUR), b=energy(HOUR, model="NVIDIA A100"))
    assert found["idle_cost"] == "4.00"


def test_gpus_without_a_price_are_named_and_not_free_of_charge() -> None:
    prices = Prices(gpu_hour=gpu_hours('[{"gpu": "*A100*", "price": 3}]'))
    lab = Lab(prices, "a", "b")
    assert lab.read(a=energy(0), b=energy(HOUR, model="NVIDIA A100"))["notes"] == []
    found = lab.read(a=energy(HOUR), b=energy(HOUR, model="NVIDIA A100"))
    assert (found["idle_gpu_microseconds"], found["idle_cost"]) == (2 * HOUR, "3.00")
    assert found["notes"] == ["Some of this GPU time has no price and is not in the cost"]
    held = lab.read(a=energy(0, 3600), b=energy(0))
    assert held["notes"] == found["notes"]


def test_energy_without_a_price_is_named_and_not_free_of_charge() -> None:
    prices = Prices(gpu_hour=gpu_hours("1"), kwh=price_parser(KWH)('[{"node": "a", "price": "0.30"}]'))
    lab = Lab(prices, "a", "b")
    assert lab.read(a=energy(HOUR))["notes"] == []
    found = lab.read(a=energy(HOUR), b=energy(HOUR))
    assert found["idle_cost"] == "2.30"
    assert found["notes"] == ["Some of the idle energy has no price and is not in the cost"]


@pytest.mark.parametrize(("instance", "is_named"), [("1_0", True), ("", False)])
@pytest.mark.parametrize("pattern", ['"mig": "1g*", ', ""])
def test_prices_of_mig_profiles_are_named_where_there_are_instances(
    instance: str, pattern: str, is_named: bool
) -> None:
    lab = Lab(Prices(gpu_hour=gpu_hours(f'[{{{pattern}"price": 1}}, {{"price": 3}}]')), "a")
    lab.nodes.answers["http://a:9400"] = body("a", {"uuid": "GPU-0", "gpu": "0", "instance": instance})
    asyncio.run(read_all(lab.fleet))
    found = lab.read(a=energy(HOUR))
    assert bool(found["notes"]) == (is_named and bool(pattern))
    assert found["idle_cost"] == ("3.00" if pattern else "1.00")


def test_a_price_that_changes_in_the_week_counts_from_then() -> None:
    prices = Prices(
        gpu_hour=gpu_hours('[{"until": "2026-11-24", "price": 1}, {"from": "2026-11-24", "price": 10}]')
    )
    lab = Lab(prices, "a")
    assert lab.read(a=energy(HOUR))["idle_cost"] == "11.00"
    tuesday = f"{MONDAY + 86_400:.0f}"
    assert lab.queries() == [(f"{MONDAY:.0f}", tuesday), (tuesday, "now")]


@pytest.mark.parametrize("watched", range(4))
def test_a_part_of_the_week_in_which_a_node_was_off_does_not_cost_the_others(watched: int) -> None:
    prices = Prices(
        gpu_hour=gpu_hours('[{"until": "2026-11-24", "price": 1}, {"from": "2026-11-24", "price": 10}]')
    )
    lab = Lab(prices, "a")
    error = {"code": "not_watched", "message": "nothing was watched"}
    off = NodeRequestFailed(*describe_refusal(answer({"error": error}, status=404)))
    for at, (begin, end) in enumerate(pairwise([f"{MONDAY:.0f}", f"{MONDAY + 86_400:.0f}", "now"])):
        path = f"{ENERGY}?by=gpu&since={begin}&until={end}&limit=1000"
        lab.nodes.answers[f"http://a:9400{path}"] = energy(HOUR) if watched >> at & 1 else off
    found = lab.read()
    assert found["idle_cost"] == [None, "1.00", "10.00", "11.00"][watched]
    assert len(found["missing"]) == (watched == 0)


def test_without_prices_there_are_hours_and_no_cost() -> None:
    found = Lab(Prices(), "a").read(a=energy(HOUR))
    assert (found["idle_gpu_microseconds"], found["idle_cost"], found["held_cost"]) == (HOUR, None, None)


def test_nodes_without_an_answer_are_missing_and_cost_nothing_else() -> None:
    lab = Lab(Prices(), "a", "b", "c")
    found = lab.read(a=energy(HOUR), b=NodeRequestFailed("no ledger on disk", "refused"), c={"own": [{}]})
    assert (found["nodes"], found["idle_gpu_microseconds"]) == (1, HOUR)
    assert [one["node"] for one in found["missing"]] == ["b", "c"]
    assert found["missing"][0]["reason"] == "no ledger on disk"


def test_before_the_next_round_only_new_nodes_are_read_and_errors_are_not_repeated() -> None:
    lab = Lab(Prices(), "a", "b")
    lab.read(a=energy(HOUR), b=NodeRequestFailed("no ledger on disk", "refused"))
    asyncio.run(lab.week.read_new())
    assert len(lab.queries()) == 2
    lab.nodes.answers |= {"http://c:9400": body("c"), f"http://c:9400{ENERGY}": energy(HOUR)}
    lab.list.addresses = [*lab.list.addresses, address("c")]
    asyncio.run(read_all(lab.fleet))
    asyncio.run(lab.week.read_new())
    assert len(lab.queries()) == 3
    assert lab.week.fields()["idle_gpu_microseconds"] == 2 * HOUR


def test_a_node_that_is_not_listed_any_more_does_not_count() -> None:
    lab = Lab(Prices(), "a", "b")
    lab.read(a=energy(HOUR), b=energy(3 * HOUR))
    lab.list.addresses = [address("a")]
    asyncio.run(read_all(lab.fleet))
    found = lab.week.fields()
    assert (found["nodes"], found["idle_gpu_microseconds"], found["missing"]) == (1, HOUR, [])


def test_a_node_that_shows_only_own_rows_has_no_idle_time_of_zero() -> None:
    lab = Lab(Prices(), "a")
    denied = NodeRequestFailed("the node denies access to this user (403): see access.admins", "login")
    lab.nodes.answers["http://a:9400/api/v1/xids"] = denied
    found = lab.read(a=energy(HOUR))
    assert found["idle_gpu_microseconds"] is None
    assert found["missing"] == [{"node": "a", "reason": str(denied)}]


def test_before_the_first_reading_nothing_is_known() -> None:
    found = Lab(Prices(), "a").week.fields()
    assert (found["idle_gpu_microseconds"], found["held_gpu_seconds"], found["since"]) == (None, None, None)


def test_a_new_week_begins_at_zero_and_a_node_that_is_gone_keeps_its_sum_until_then() -> None:
    lab = Lab(Prices(), "a")
    lab.read(a=energy(HOUR))
    lab.nodes.answers.clear()
    asyncio.run(read_all(lab.fleet))
    assert lab.read()["idle_gpu_microseconds"] == HOUR
    lab.clock.advance(7 * 86_400)
    assert lab.read()["idle_gpu_microseconds"] is None


@pytest.mark.parametrize("wrong", ["x", [1], {"own": 3}, {"own": [row(account="idle")], "rows": [{}]}])
def test_a_malformed_report_is_a_missing_node(wrong: Any) -> None:
    assert len(Lab(Prices(), "a").read(a=wrong)["missing"]) == 1
