"""Reading a ledger takes memory for what is being read, and keeps nothing of it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from builders import FakeClock, process
from gpuledger.app.idle_source import answer_idle
from gpuledger.app.ledger_commands import write_explanation
from gpuledger.ledger.report.formats import as_json
from gpuledger.ledger.report.ranges import parse_range
from gpuledger.ledger.report.settings import SPREAD, Prices
from gpuledger.ledger.store import explain_energy, explain_time, history, time_history, time_sums
from gpuledger.ledger.store.explain_query import ExplainScope, explain_usage
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.receipt_query import ReceiptScope, read_receipt
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.time_sums import gpu_time_sums
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.access import Reader
from gpuledger.model.workload import Workload
from ledger_helpers import Run
from time_books import HOUR, A, B

TICKS, PER_TICK = 40, 4
OWNERS = [Workload("user", user=name) for name in ("dan", "ann", "eve")]
PRICES = Prices(gpu_hour=Decimal(3), kwh=Decimal("0.4"), currency="EUR", idle=SPREAD)
DAN = Reader("dan", frozenset({"dan"}), None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half an hour in which each process lives for two ticks, and each tick has other ones."""
    node = Run(tmp_path_factory.mktemp("history"), clock=FakeClock(HOUR))
    for tick in range(TICKS):
        runs = [
            process(card, 1000 + 100 * (tick // 2) + 10 * card.index + seat, workload=OWNERS[seat % 3])
            for card in (A, B)
            for seat in range(PER_TICK)
        ]
        node.tick({A: 1_000_000 + 50_000 * tick, B: 1_000_000 + 30_000 * tick}, runs, seconds=50.0)
    node.store.close()
    return node.store.file


def within(opened: History) -> Any:
    return resolve_watched_range(opened, parse_range("2023-11-14", "now", "", opened.last, None))


def report(opened: History) -> object:
    return as_json(build_report(opened, "user,command", PRICES, within(opened)))


def receipt(who: str) -> Callable[[History], object]:
    return lambda opened: read_receipt(opened, who, ReceiptScope(within(opened), PRICES))


class _Lines(list[str]):
    """What an explanation writes."""

    def write(self, text: str) -> None:
        self.append(text)

    writelines = list.extend


def explanation(opened: History) -> object:
    lines: Any = _Lines()
    write_explanation(explain_usage(opened, "user:dan", ExplainScope(within(opened), PRICES)), "csv", lines)
    return list(lines)


READS: dict[str, Callable[[History], object]] = {
    "report": report,
    "receipt of a process": receipt("pid:1501"),
    "receipt of a user": receipt("user:dan"),
    "explanation": explanation,
    "idle": lambda opened: answer_idle(opened, {}, {}),
}
READERS = {"all rows": None, "own rows": DAN}


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def opened_for(file: Path, reader: Reader | None) -> History:
    found = History(file)
    if reader is not None:
        found.restrict(reader)
    return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("read", [name for name in READS if name != "receipt of a process"])
def test_a_ledger_that_was_read_is_freed_without_the_garbage_collector(
    file: Path, read: str, reader: str
) -> None:
    """Reference cycles keep what a request has read until Python looks for them: many requests later."""
    with without_collector():
        opened = opened_for(file, READERS[reader])
        READS[read](opened)
        opened.close()
        known, splits = ref(opened), ref(opened.time_reader)
        del opened
        assert known() is None
        assert splits() is None


@pytest.mark.parametrize("read", READS)
def test_many_requests_keep_as_little_as_few(file: Path, read: str) -> None:
    def objects_after(requests: int) -> int:
        for _ in range(requests):
            with closing(History(file)) as opened:
                READS[read](opened)
        return len(gc.get_objects())

    # Modules are imported, and what is shared by all requests is cached.
    objects_after(2)
    with without_collector():
        few = objects_after(2)
        assert objects_after(10) - few <= 8


@pytest.mark.parametrize("read", READS)
def test_no_amount_depends_on_what_is_remembered(
    file: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(History(file)) as opened:
        expected = READS[read](opened)
    for module in (history, time_history, explain_energy, explain_time):
        monkeypatch.setattr(module, "_CACHED", 1)
    monkeypatch.setattr(time_sums, "_MOST_SUMMED", 1)
    with closing(History(file)) as opened:
        found = READS[read](opened)
    assert json.dumps(found, default=str) == json.dumps(expected, default=str)


def test_a_report_sums_accounts_while_it_reads_them(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range has an account for each process: summing them all at once needs memory for each."""
    monkeypatch.setattr(time_sums, "_MOST_SUMMED", 20)
    with closing(History(file)) as opened:
        since, until = opened.first_quarter or 0, opened.end_quarter
        whole = list(opened.time_spans(since, until))
        read = 0

        def spans(*_: int) -> Iterator[Any]:
            nonlocal read
            for span in whole:
                read += 1
                yield span

        monkeypatch.setattr(opened.time_reader, "spans", spans)
        sums = gpu_time_sums(opened, since, until)
        first = next(sums)
        assert read < len(whole) / 4
        amounts = [one.allocation for one in (first, *sums)]
        assert sum(amounts) == sum(span.microseconds for span in whole)
