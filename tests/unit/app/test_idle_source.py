"""`idle` through the running gpuledger: parameters as texts, and for ordinary users only their own rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from builders import gpu, process
from gpuledger.app.idle_source import answer_idle
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.watched_range import NothingWatched
from gpuledger.model.access import Reader
from gpuledger.model.errors import UsageError
from gpuledger.model.workload import Workload
from ledger_helpers import Run

A, B = gpu(0, name="NVIDIA H100"), gpu(1, name="NVIDIA H100")
ANN, BOB = (Workload("user", user=name) for name in ("ann", "bob"))
VALUES = {"price.gpu_hour": Decimal(2), "price.currency": "EUR", "report.timezone": "UTC"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ann and Bob hold a GPU each for three hours."""
    run = Run(tmp_path_factory.mktemp("books"))
    idle = [
        replace(one, usage=replace(one.usage, sm=0.0))
        for one in (process(A, 7, workload=ANN), process(B, 8, workload=BOB))
    ]
    for minute in range(180):
        run.tick({A: 60_000 * minute, B: 60_000 * minute}, idle, 60.0, busy=False)
    return run.store.file


@pytest.fixture
def history(recorded: Path) -> Iterator[History]:
    with closing(History(recorded)) as opened:
        yield opened


def answered(history: History, **parameters: str) -> dict[str, Any]:
    answer = answer_idle(history, {"format": "json", **parameters}, VALUES)
    assert answer["user"] == history.reader.name
    return dict(json.loads(answer["text"]))


def restricted(history: History, name: str) -> History:
    history.restrict(Reader(name, frozenset({name}), 1000))
    return history


def test_parameters_are_those_of_the_flags(history: History) -> None:
    assert [one["owner"] for one in answered(history)["holds"]] == ["ann", "bob"]
    assert answered(history, **{"for": "4h"})["holds"] == []
    digest = answered(history, digest="user", **{"in": "2023-W46"})
    assert [one["name"] for one in digest["entries"]] == ["ann", "bob"]


@pytest.mark.parametrize(
    "parameters", [{"fro": "4h"}, {"for": "soon"}, {"digest": "gpu"}, {"format": "mail"}, {"only": "ann"}]
)
def test_wrong_parameters_are_refused(history: History, parameters: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        answer_idle(history, parameters, VALUES)


@pytest.mark.parametrize("readings", [0, 1])
@pytest.mark.parametrize("parameters", [{}, {"format": "json"}, {"digest": "user"}])
def test_a_ledger_without_a_watched_second_has_no_answer(
    readings: int, parameters: dict[str, str], tmp_path: Path
) -> None:
    run = Run(tmp_path)
    for _ in range(readings):
        run.tick({gpu(0): 0})
    run.store.close()
    with closing(History(run.store.file)) as history, pytest.raises(NothingWatched):
        answered(history, **parameters)


def test_users_see_their_own_holds_and_nothing_of_others(history: History) -> None:
    body = answered(restricted(history, "ann"), **{"for": "1h"})
    (one,) = body["holds"]
    assert (one["owner"], one["cost"]) == ("ann", body["total_cost"])
    assert body["unjudged"] == 0
    assert "bob" not in str(body)
    digest = answered(history, digest="user", **{"in": "2023-W46"})
    assert [one["name"] for one in digest["entries"]] == ["ann"]
    assert "bob" not in str(digest)


def test_a_user_sees_the_administrators_row(history: History) -> None:
    everything = answered(history)["holds"]
    (own,) = answered(restricted(history, "bob"))["holds"]
    assert own == next(one for one in everything if one["owner"] == "bob")
