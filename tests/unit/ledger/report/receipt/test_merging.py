"""Receipts of several nodes become one: sums are exact, and the order of the nodes does not matter."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.report.receipt.content import Amounts, ReceiptJson
from gpuledger.ledger.report.receipt.merging import merge_receipts, sum_amounts
from gpuledger.model.errors import GpuledgerError
from receipt_helpers import BEGIN, HOUR, amounts, gpu_row, host_row, receipt

INTEGERS = ("gpu_microseconds", "millijoules", "high_millijoules", "sessions")
SECONDS = ("allocated_seconds", "resident_seconds", "co2_grams")
MONEY = ("time_cost", "cost")

some_amounts = st.builds(
    amounts,
    **{name: st.none() | st.integers(0, 10**15) for name in INTEGERS},
    **{name: st.none() | st.integers(0, 10**12).map(lambda value: value / 1e6) for name in SECONDS},
    **{
        name: st.none() | st.decimals(0, 10**9, places=10).map(lambda value: f"{value:.10f}")
        for name in MONEY
    },
)


@st.composite
def some_receipts(draw: st.DrawFn) -> list[ReceiptJson]:
    """Receipts of two to four nodes, with amounts, times, facts and currencies that differ."""
    found = []
    for number in range(draw(st.integers(2, 4))):
        node = f"n{number}"
        rows = [
            gpu_row(node, str(index)) for index in draw(st.sets(st.integers(0, 12), min_size=1, max_size=3))
        ]
        more: dict[str, Any] = {
            "total": draw(some_amounts),
            "begins": draw(st.none() | st.floats(0, 1e9)),
            "ends": draw(st.none() | st.floats(0, 1e9)),
            "running": draw(st.booleans()),
            "currency": draw(st.sampled_from(["EUR", "EUR", "USD"])),
            "price_list": draw(st.sampled_from([None, "a", "b"])),
            "zone": draw(st.sampled_from(["UTC", "Europe/Berlin"])),
            "program": draw(st.sampled_from(["0.1.0", "0.2.0"])),
            "bars": draw(st.sampled_from([None, {"begins": 0, "step_seconds": 60, "count": 1}])),
            "notes": draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=2)),
        }
        made = receipt(node, *rows, **more)
        assert made["owner"] is not None
        made["owner"]["user"] = draw(st.sampled_from(["", "dan", "eva"]))
        found.append(made)
    return found


@given(some_receipts(), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(parts: list[ReceiptJson], random: Any) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert merge_receipts(shuffled) == merge_receipts(parts)


@given(some_receipts(), st.data())
def test_it_does_not_matter_which_nodes_are_merged_first(
    parts: list[ReceiptJson], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(parts) - 1))
    in_steps = merge_receipts([merge_receipts(parts[:cut]), merge_receipts(parts[cut:])])
    assert in_steps == merge_receipts(parts)


@given(st.lists(some_amounts, min_size=1, max_size=5))
def test_sums_are_exact_and_an_unknown_amount_makes_the_sum_unknown(parts: list[Amounts]) -> None:
    summed: Any = sum_amounts(parts)
    rows: list[Any] = list(parts)
    for name in INTEGERS:
        values = [row[name] for row in rows]
        assert summed[name] == (None if None in values else sum(values))
    for name in MONEY:
        texts = [row[name] for row in rows]
        assert summed[name] == (None if None in texts else f"{sum(map(Decimal, texts)):.10f}")
    for name in SECONDS:
        seconds = [row[name] for row in rows]
        exact = None if None in seconds else sum(round(value * 1e6) for value in seconds)
        assert (summed[name] is None) == (exact is None)
        assert exact is None or round(summed[name] * 1e6) == exact


def test_a_single_receipt_is_returned_as_it_is() -> None:
    one = receipt()
    assert merge_receipts([one]) is one


def test_gpus_hosts_and_nodes_of_all_are_listed_by_node_and_number() -> None:
    parts = [receipt("n2", gpu_row("n2", "10"), gpu_row("n2", "9")), receipt("n1", gpu_row("n1", "0"))]
    merged = merge_receipts(parts)
    assert merged["nodes"] == ["n1", "n2"]
    assert [(gpu["node"], gpu["index"]) for gpu in merged["gpus"]] == [("n1", "0"), ("n2", "9"), ("n2", "10")]
    assert merged["hosts"] == [host_row("n1"), host_row("n2")]


def test_the_times_are_those_from_the_first_to_the_last_node() -> None:
    parts = [
        receipt("n1", begins=BEGIN + 10, ends=BEGIN + 90, ledger_until=BEGIN + 100, running=True),
        receipt("n2", begins=BEGIN + 5, ends=BEGIN + 80, ledger_until=BEGIN + 95),
        receipt("n3", begins=None, ends=None, ledger_until=BEGIN + 99),
    ]
    merged = merge_receipts(parts)
    times = merged["begins"], merged["ends"], merged["ledger_until"], merged["running"]
    assert times == (BEGIN + 5, BEGIN + 90, BEGIN + 95, True)


def test_costs_in_different_currencies_have_no_sum() -> None:
    merged = merge_receipts([receipt("n1"), receipt("n2", currency="USD")])
    total = merged["total"]
    assert (merged["currency"], total["cost"], total["time_cost"]) == ("", None, None)
    assert total["gpu_microseconds"] == 2 * HOUR * 1_000_000
    assert any("currencies" in note for note in merged["notes"])


def test_an_owner_on_several_nodes_is_one_row() -> None:
    row = {**amounts(), "name": "slurm 4711", "explain": "owner:slurm//4711", "gpus": 2}
    other = {**amounts(), "name": "slurm 12", "explain": "owner:slurm//12", "gpus": 1}
    merged = merge_receipts([receipt("n1", owners=[row, other]), receipt("n2", owners=[row])])
    found = {one["name"]: (one["gpus"], one["cost"]) for one in merged["owners"]}
    assert found == {"slurm 4711": (4, "4.4200000000"), "slurm 12": (1, "2.2100000000")}


def test_advice_is_judged_for_all_nodes_together() -> None:
    """What one node advised from its part is not repeated."""
    stale = {"rule": "unused_gpu", "text": "stale", "evidence": [], "gpus": [], "values": {}, "saving": None}
    merged = merge_receipts([receipt("n1", advice=[stale]), receipt("n2")])
    assert "stale" not in [one["text"] for one in merged["advice"]]


REFUSED = {
    "none at all": ([], "no receipts"),
    "two of one node": ([receipt("n1"), receipt("n1")], "two receipts are of the node n1"),
    "another owner": (
        [receipt("n1"), receipt("n2", who={"kind": "job", "key": ["", "12"], "name": "", "explain": ""})],
        "not of the same owner",
    ),
    "another basis": ([receipt("n1"), receipt("n2", basis="resident")], "different bases"),
    "another version": ([receipt("n1"), receipt("n2", version=2)], "version 2"),
}


@pytest.mark.parametrize(("parts", "message"), REFUSED.values(), ids=REFUSED)
def test_receipts_without_a_meaningful_sum_are_refused(parts: list[ReceiptJson], message: str) -> None:
    with pytest.raises(GpuledgerError, match=message):
        merge_receipts(parts)


def test_every_order_of_three_nodes_gives_the_same_bytes() -> None:
    parts = [
        receipt(f"n{number}", gpu_row(f"n{number}", "0", sm_seconds=0.1 * number)) for number in range(3)
    ]
    assert len({repr(merge_receipts(order)) for order in itertools.permutations(parts)}) == 1
