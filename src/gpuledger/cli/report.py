"""`gpuledger report`: who used the GPUs, for how long, and what it cost."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger.cli.books import now_in, open_history
from gpuledger.cli.command import begin
from gpuledger.cli.fleet import from_prometheus
from gpuledger.cli.promql import Prometheus
from gpuledger.cli.report_table import table
from gpuledger.config.report import ReportSettings
from gpuledger.ledger.report.focus import as_focus
from gpuledger.ledger.report.grouping import NODE
from gpuledger.ledger.report.moments import period
from gpuledger.ledger.report.report import Report
from gpuledger.ledger.report.settings import FleetSettings, Prices
from gpuledger.ledger.report.shapes import as_csv, as_json
from gpuledger.ledger.seconds import HOUR
from gpuledger.ledger.settings import StoreSettings
from gpuledger.ledger.store.billing import report_of
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.model.text import is_utf8

_ABOUT = """\
Who used the GPUs, for how long, and what it cost: from the books that `gpuledger serve` keeps on this
machine, or for a whole fleet from the Prometheus that scrapes it.

Rows sum to the GPUs' own energy counters: idle, unattributed and unobserved energy have rows of their own.
Times are exact at full hours: --since is rounded down to one, --until up.
"""
_EXAMPLES = """\
the last week:
  gpuledger report                                   by owner: pods, jobs, containers, users
  gpuledger report --by namespace --since month      this month's bill of each team
  gpuledger report --by label:team --since 30d       by a pod label (see kubernetes.labels)

for a spreadsheet, a program, a FinOps tool:
  gpuledger report --since 2026-11-01 --until 2026-12-01 --format csv > november.csv
  gpuledger report --format json | jq .total
  gpuledger report --price.kwh 0.32 --price.currency EUR --format focus

for a fleet, with the bound of what scraped counters cannot tell:
  gpuledger report --prometheus http://prometheus:9090 --by namespace --since 30d
  gpuledger report --prometheus https://metrics.example.com/prometheus --by node \\
      --prometheus.header "Authorization: Bearer $TOKEN" --prometheus.match 'cluster="a"'

without a GPU:
  gpuledger serve --source simulator --state-dir /tmp/books &
  gpuledger report --state-dir /tmp/books

who disputes a row asks `gpuledger explain`.
"""


GROUPS: dict[str, type] = {
    "the report": ReportSettings,
    "a fleet": FleetSettings,
    "prices": Prices,
    "the books": StoreSettings,
}


def run(arguments: Sequence[str]) -> int:
    """Print the report."""
    given, read = begin("report", _ABOUT, _EXAMPLES, GROUPS, arguments)
    values = read()
    settings = build(ReportSettings, values)
    fleet = build(FleetSettings, values)
    if fleet.url and "state_dir" in given.flags and "prometheus.url" in given.flags:
        raise UsageError("--prometheus and --state-dir: which of them is to be asked?")
    if fleet.url and "state_dir" not in given.flags:
        found, account = from_fleet(settings, fleet, values), Prometheus(fleet.url).host
    else:
        found, account = from_books(settings, values), socket.gethostname()
    sys.stdout.write(written(found, settings, account))
    return 0


def from_fleet(settings: ReportSettings, fleet: FleetSettings, values: Mapping[str, Any]) -> Report:
    """The report out of a Prometheus. Raises GpuledgerError."""
    now = time.time()
    between = period(settings.since, settings.until, now)
    with Progress() as progress:
        return from_prometheus(
            fleet,
            settings.by,
            build(Prices, values),
            between,
            now,
            progress.show,
            lambda text: print(text, file=sys.stderr),  # noqa: T201  (as the books' own warning)
        )


def from_books(settings: ReportSettings, values: Mapping[str, Any]) -> Report:
    """The report out of this machine's books. Raises GpuledgerError."""
    if settings.by == NODE:
        raise UsageError("--by node wants --prometheus: books are of one node")
    with open_history(values) as history, Progress() as progress:
        since, until = period(settings.since, settings.until, now_in(history))
        if settings.until == "now":
            # The clock may have been set back: what was booked before is not of tomorrow.
            until = max(until, history.end_hour * HOUR)
        found = report_of(history, settings.by, build(Prices, values), (since, until), progress.show)
    if settings.format != "table":
        for note in found.notes:
            sys.stderr.write(f"{note}\n")
    return found


def written(found: Report, settings: ReportSettings, account: str) -> str:
    """The report in the shape that was asked for; `account` is whose bill it is, as FOCUS wants to know."""
    if settings.format == "csv":
        return as_csv(found)
    if settings.format == "json":
        return json.dumps(as_json(found), indent=2) + "\n"
    if settings.format == "focus":
        return as_focus(found, account)
    return table(found, settings.top, plain=not is_utf8(sys.stdout.encoding))


class Progress:
    """How far long work has come, on a terminal's stderr; nothing where it is soon done or nobody looks."""

    def __init__(self, after: float = 1.0) -> None:
        self._due = time.monotonic() + after
        self._shown = False
        self._looking = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def show(self, what: str, done: float) -> None:
        """`done` of it, from 0 to 1."""
        if self._looking and time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.2
            self._shown = True
            sys.stderr.write(f"\rreading {what}: {done:4.0%} ")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K")
