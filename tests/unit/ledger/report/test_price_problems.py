"""What a price list says about its entries: never applied, without a match, or with a hole between dates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Any

import pytest

from gpuledger.ledger.report.gpu_time import GpuPart
from gpuledger.ledger.report.prices import PriceUse
from unit.ledger.report.price_lists import H100, L4, SMALL, UNCOVERED, WHOLE, at, price_list


def problems(
    entries: Sequence[object], *uses: PriceUse, key: str = "gpu_hour", zone: tzinfo = UTC
) -> list[str]:
    values: dict[str, Any] = {key: entries, "zone": zone}
    return price_list(**values).problems(uses)


def use(
    part: GpuPart = WHOLE, since: str = "2026-03-01", until: str = "2026-03-08", node: str = "lab-1"
) -> PriceUse:
    return PriceUse(part, node, at(since), at(until))


HIDDEN = [
    (
        [{"price": 2}, {"price": 3}],
        "entry 2 (price 3) never applies, because entry 1 (price 2) matches first",
    ),
    ([{"price": 2}, {"mig": "1g.*", "price": 3}], "entry 2 (mig 1g.*, price 3) never applies"),
    (
        [{"gpu": "*H100*", "price": 2}, {"gpu": H100, "price": 3}],
        f"entry 2 (gpu {H100}, price 3) never applies",
    ),
    ([{"gpu": "*H100*", "price": 2}, {"gpu": "NVIDIA*H100*80?", "price": 3}], "entry 2 "),
    (
        [
            {"until": "2026-06-01", "price": 2},
            {"from": "2026-06-01", "price": 3},
            {"from": "2026-01-01", "price": 4},
        ],
        "entry 3 (from 2026-01-01, price 4) never applies, because entry 1 (until 2026-06-01, price 2) and "
        "entry 2 (from 2026-06-01, price 3) match first; move it up, or remove it",
    ),
    (
        [{"from": "2026-01-01", "price": 2}, {"from": "2026-03-01", "until": "2026-04-01", "price": 3}],
        "entry 2 ",
    ),
    (
        [
            *({"until": f"2026-0{month}-01", "price": month} for month in range(2, 6)),
            {"price": 6},
            {"price": 7},
        ],
        "entry 6 (price 7) never applies, because entry 1 (until 2026-02-01, price 2) and entry 2 (until "
        "2026-03-01, price 3) and entry 3 (until 2026-04-01, price 4) and 2 more match first; ",
    ),
]


@pytest.mark.parametrize(("entries", "message"), HIDDEN)
def test_an_entry_that_can_never_apply_is_named(entries: list[object], message: str) -> None:
    found = problems(entries)
    assert len(found) == 1
    assert found[0].startswith(f"price.gpu_hour: {message}")


@pytest.mark.parametrize(
    "entries",
    [
        [{"mig": "*", "price": 2}, {"price": 3}],
        [{"mig": "1g.*", "price": 2}, {"mig": "*", "price": 3}],
        [{"gpu": "*H100*", "price": 2}, {"price": 3}],
        [{"gpu": "*H100*", "price": 2}, {"gpu": "NVIDIA*", "price": 3}],
        [{"gpu": "*H100*", "node": "a", "price": 2}, {"gpu": "*H100*", "node": "b*", "price": 3}],
        [{"until": "2026-06-01", "price": 2}, {"price": 3}],
        [{"until": "2026-06-01", "price": 2}, {"from": "2026-07-01", "price": 3}, {"price": 4}],
    ],
)
def test_an_entry_that_can_apply_is_not_named(entries: list[object]) -> None:
    assert problems(entries) == []


def test_an_entry_that_matches_nothing_here_is_named() -> None:
    entries = [{"gpu": "*A100*", "price": 2}, {"gpu": "*H100*", "price": 4}]
    assert problems(entries, use()) == [
        "price.gpu_hour: entry 1 (gpu *A100*, price 2) matches no GPU of this report and has no effect; "
        f"it has {H100}"
    ]
    found = problems(
        [{"gpu": "*H100*", "mig": "7g.*", "node": "lab-*", "price": 2}, {"price": 1}], use(SMALL)
    )
    assert found[0].endswith(f"; it has {H100} 1g.10gb on node lab-1")
    assert problems([{"node": "labs", "price": 2}, {"price": 1}], use(), key="kwh") == [
        "price.kwh: entry 1 (node labs, price 2) matches no node of this report and has no effect; "
        "it has node lab-1"
    ]


def test_an_entry_of_another_time_is_not_named() -> None:
    assert problems([{"until": "2020-01-01", "price": 1}, {"price": 2}], use()) == []


def test_a_gpu_that_no_entry_matches_is_named() -> None:
    part = GpuPart("GPU-9", L4)
    assert problems([{"gpu": "*H100*", "price": 4}], use(), use(part)) == [
        f"price.gpu_hour: no entry matches {L4} on node lab-1: this time has no price; add an entry for it"
    ]


HOLES = [
    ("gpu_hour", "price.gpu_hour", f"{H100} on node lab-1", "this time has no price"),
    ("kwh", "price.kwh", "node lab-1", "this energy has no price"),
    ("pue", "pue", "node lab-1", "it counts as 1"),
    ("co2", "co2.g_per_kwh", "node lab-1", "the CO2 of this energy is unknown"),
]


@pytest.mark.parametrize(("key", "setting", "name", "what"), HOLES)
def test_a_hole_in_the_dates_is_named_with_the_entries_beside_it(
    key: str, setting: str, name: str, what: str
) -> None:
    entries = [{"until": "2026-03-02", "price": 2}, {"from": "2026-03-04", "price": 3}]
    if key == "gpu_hour":
        entries = [{**entry, "gpu": "*"} for entry in entries]
    pattern = "gpu *, " if key == "gpu_hour" else ""
    found = problems(entries, use(), use(since="2026-03-05"), key=key, zone=UTC)
    assert found == [
        f"{setting}: no entry applies to {name} from 2026-03-02 00:00 until 2026-03-04 00:00: {what}; "
        f"entry 1 ({pattern}until 2026-03-02, price 2) ends before it and "
        f"entry 2 ({pattern}from 2026-03-04, price 3) begins after it"
    ]


def test_a_hole_is_named_once_and_with_the_entry_that_ends_last_before_it() -> None:
    entries = [{"from": "2026-02-20", "until": "2026-02-25", "price": 2}, {"until": "2026-03-02", "price": 3}]
    found = problems(entries, use(until="2026-03-04"), use(since="2026-03-04"))
    assert len(found) == 1
    assert found[0].endswith(
        "from 2026-03-02 00:00 until 2026-03-08 00:00: this time has no price; "
        "entry 2 (until 2026-03-02, price 3) ends before it"
    )


def test_a_hole_without_time_in_it_is_not_named() -> None:
    entries = [{"until": "2026-03-02", "price": 2}, {"from": "2026-03-04", "price": 3}]
    assert problems(entries, use(until="2026-03-02"), use(since="2026-03-04")) == []


def test_each_part_of_a_gpu_has_its_own_holes() -> None:
    found = problems([{"mig": "1g.*", "price": 2}], use(SMALL), use(UNCOVERED))
    assert found == [
        f"price.gpu_hour: no entry matches {H100} on node lab-1: this time has no price; add an entry for it"
    ]


def test_the_same_hole_of_several_parts_of_one_model_is_one_line() -> None:
    other = GpuPart("GPU-1", H100, "MIG-9", "3g.40gb", 46)
    uses = [use(WHOLE), use(SMALL), use(other)]
    what = f"{H100} (whole GPU, 1g.10gb, 3g.40gb) on node lab-1"
    assert problems([{"gpu": "*A10", "price": 2}], *uses)[1:] == [
        f"price.gpu_hour: no entry matches {what}: this time has no price; add an entry for it"
    ]
    assert problems([{"until": "2026-03-02", "price": 2}], *uses) == [
        f"price.gpu_hour: no entry applies to {what} from 2026-03-02 00:00 until 2026-03-08 00:00: this time "
        "has no price; entry 1 (until 2026-03-02, price 2) ends before it"
    ]
    found = problems([{"until": "2026-03-02", "price": 2}], *uses, use(SMALL, node="lab-2"))
    assert [line.partition(" applies to ")[2].partition(" from ")[0] for line in found] == [
        what,
        f"{H100} 1g.10gb on node lab-2",
    ]
