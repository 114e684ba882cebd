"""New series are exported as 0 for as long as before a restart, and full series stay full."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from builders import gpu, process
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.session import LedgerState
from gpuledger.model.workload import Workload
from ledger_helpers import Run

CARD = gpu(0)
OWNERS = [Workload("pod", namespace="ci", pod=f"build-{number}", container="main") for number in range(3)]
SETTINGS = LedgerSettings(zero_hold=2.0, retention=60.0)


def joules_of(state: LedgerState, number: int) -> list[int]:
    return [row.millijoules for row in state.energy.owners if row.labels[5] == f"build-{number}"]


def ticks(run: Run, number: int, seconds: int) -> list[int]:
    """Exported energy of an owner that runs for these seconds, at each tick."""
    found = []
    for _ in range(seconds):
        joules = round(run.clock.now_elapsed) * 100_000
        state = run.tick(
            {CARD: joules}, [process(CARD, 10 + number, ticks=number + 1, workload=OWNERS[number])]
        )
        found += joules_of(state, number) or [0]
    return found


def scraped(run: Run, hold: float) -> Run:
    """The run, with clients that need this hold."""
    run.ledger._scrape_hold = lambda: hold
    return run


def restarted(run: Run, settings: LedgerSettings = SETTINGS) -> Run:
    run.store.close()
    return Run(run.store.file.parent, clock=run.clock, settings=settings)


def test_a_full_series_stays_full_if_a_restart_makes_the_hold_longer(tmp_path: Path) -> None:
    first = Run(tmp_path, settings=SETTINGS)
    before = ticks(first, 0, 8)
    assert before[-1] > 0
    second = restarted(first, LedgerSettings(zero_hold=60.0, retention=60.0))
    state = second.tick({CARD: 1_000_000})
    assert joules_of(state, 0) >= before[-1:]
    assert not any(ticks(second, 1, 30))


def test_the_hold_of_a_scrape_interval_is_kept_over_a_restart(tmp_path: Path) -> None:
    first = scraped(Run(tmp_path, settings=SETTINGS), 20.0)
    assert not any(ticks(first, 0, 12))
    second = restarted(first)
    found = ticks(second, 1, 25)
    assert not any(found[:19])
    assert found[-1] > 0


@pytest.mark.parametrize("known", [0.0, 5.0])
def test_an_earlier_hold_ends_when_clients_are_known_or_do_not_return(tmp_path: Path, known: float) -> None:
    first = scraped(Run(tmp_path, settings=SETTINGS), 20.0)
    ticks(first, 0, 3)
    second = scraped(restarted(first), known)
    # Six scrapes of 20 s.
    second.clock.advance(0 if known else 121)
    second.tick({CARD: 10_000_000}, seconds=1)
    second.clock.advance(0 if known else 121)
    assert second.tick({CARD: 11_000_000}).zero_hold == max(known, 2.0)


def test_a_hold_that_clients_make_longer_is_logged_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run = Run(tmp_path, settings=SETTINGS)
    with caplog.at_level(logging.INFO, "gpuledger.ledger"):
        for late in (0.0, 0.1, 0.2):
            scraped(run, 70.0 + late).tick({CARD: 0})
    (line,) = (record.getMessage() for record in caplog.records if "zero_hold" in record.getMessage())
    assert "energy.zero_hold is 2 s" in line
    assert "Set energy.zero_hold to 70s" in line
