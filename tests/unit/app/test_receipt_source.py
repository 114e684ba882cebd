"""Receipts that a node answers over its control socket, and that a command reads from another node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock, gpu, process
from gpuledger.app import receipt_source
from gpuledger.app.receipt_source import fetch_receipt, receipt_of
from gpuledger.ledger.store.history import History
from gpuledger.model.access import Reader
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.workload import Workload
from ledger_helpers import UNIX, Run, as_simulated
from receipt_helpers import receipt

CARD = gpu(0)
DAN, MIRA = (Workload("user", user=name) for name in ("dan", "mira"))
VALUES: dict[str, Any] = {"report.timezone": "UTC", "node_name": "n1"}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """Half an hour of two users."""
    run = Run(tmp_path, clock=FakeClock(UNIX))
    for minute in range(30):
        here = [process(CARD, 10 + place, workload=one) for place, one in enumerate((DAN, MIRA))]
        run.tick({CARD: minute * 10_000_000}, here, seconds=60.0)
    run.store.close()
    # That of a simulator has a separate time.
    with closing(History(as_simulated(run.store.file, tmp_path / "simulator.db"))) as opened:
        yield opened


def test_a_request_names_an_owner_and_a_range(history: History) -> None:
    found = receipt_of(history, {"of": "user:dan", "since": "1h", "basis": "residence"}, VALUES)
    assert (found["who"]["explain"], found["basis"], found["nodes"]) == ("user:dan", "residence", ["n1"])


def test_mine_is_what_the_reader_used(history: History) -> None:
    history.restrict(Reader("mira", frozenset({"mira"}), 1001))
    assert receipt_of(history, {"mine": "true"}, VALUES)["who"]["explain"] == "user:mira"


def test_who_used_nothing_reads_that_and_not_how_to_name_rows(history: History) -> None:
    history.restrict(Reader("eve", frozenset({"eve"}), 1003))
    with pytest.raises(GpuledgerError, match="no GPU time of user:eve in this range") as raised:
        receipt_of(history, {"mine": "true"}, VALUES)
    assert "KIND:NAME" not in str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"of": "user:nobody"}, "is not in"),
        ({"mine": "true"}, "give user:NAME"),
        ({"of": "user:dan", "in": "2023", "since": "1h"}, "excludes since and until"),
        ({"of": "user:dan", "basis": "luck"}, "basis: expected one of allocation, residence"),
        ({"of": "user:dan", "format": "html"}, "unknown parameter format"),
    ],
)
def test_a_wrong_request_is_answered_by_one_line(
    history: History, parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(GpuledgerError, match=message):
        receipt_of(history, parameters, VALUES)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What another node answers, and then the requests that it got."""
    found: list[Any] = []

    def answer(_: object, access: Any, command: str, parameters: dict[str, str]) -> dict[str, Any]:
        found.append((access.url, command, parameters))
        return {"receipt": found[0]}

    monkeypatch.setattr(receipt_source, "fetch_node_answer", answer)
    return found


def test_another_node_is_requested_with_the_range(answers: list[Any]) -> None:
    answers.append(receipt())
    values = {"node.url": "http://n1:9400", "receipt.since": "30d", "receipt.format": "html"}
    flags = ("node.url", "receipt.since", "receipt.format")
    assert fetch_receipt("job:4711", flags, values, "") == answers[0]
    assert answers[1:] == [("http://n1:9400", "receipt", {"of": "job:4711", "since": "30d"})]


def test_mine_is_requested_without_a_name(answers: list[Any]) -> None:
    answers.append(receipt())
    fetch_receipt("", ("node.url", "receipt.mine"), {"node.url": "http://n1:9400", "receipt.mine": True}, "")
    assert answers[1][2] == {"mine": "true"}


def test_a_price_is_not_sent_to_another_node(answers: list[Any]) -> None:
    with pytest.raises(GpuledgerError, match="omit this flag"):
        fetch_receipt("job:1", ("price.kwh",), {"node.url": "http://n1:9400", "price.kwh": 1}, "")


@pytest.mark.parametrize("answer", [{"version": 2}, {}, "text", None])
def test_a_receipt_of_another_version_is_refused(answers: list[Any], answer: object) -> None:
    answers.append(answer)
    with pytest.raises(GpuledgerError, match="run the same version of gpuledger there and here"):
        fetch_receipt("job:1", (), {"node.url": "http://n1:9400"}, "")
