"""The books of a file as a report: what the command, the page and the API ask for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from gpuledger.ledger.energy.slices import share_of
from gpuledger.ledger.report.grouping import grouping
from gpuledger.ledger.report.report import Period, Report, report
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.tally import Tally
from gpuledger.ledger.seconds import HOUR
from gpuledger.ledger.store.history import History, Progress


def report_of(
    history: History,
    by: str,
    prices: Prices,
    between: tuple[int, int],
    progress: Progress | None = None,
) -> Report:
    """The report of these unix seconds, at full hours. What lies before the first hour is not looked for.

    Raises UsageError for a grouping that is not there.
    """
    by_whom = grouping(by, history.devices)
    shares = {uuid: share_of(device) for uuid, device in history.devices.items()}
    tally = Tally(by_whom, lambda uuid: shares.get(uuid, Fraction(1)))
    since, until = (unix // HOUR for unix in between)
    end, first = history.end_hour, history.first_hour
    begin = end if first is None else first
    hours = (max(since, begin), min(until, end))
    for energy in history.energy(*hours, progress):
        tally.add_energy(energy)
    for times in history.times(*hours, tally.settle, progress):
        tally.add_times(times)
    tally.finish()
    period = Period(*between, begin * HOUR, history.last)
    found = report(tally, by_whom, prices, history.devices, period)
    if not period.whole:
        return found
    missing = history.missing({uuid: gpu.millijoules for uuid, gpu in tally.gpus.items()})
    notes = [
        f"THE BOOKS DO NOT MEET: {uuid} has {millijoules / 1000:+.3f} J in its total that no row has."
        for uuid, millijoules in missing.items()
    ]
    return replace(found, notes=notes) if notes else found
