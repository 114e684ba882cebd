"""`gpuledger explain`: itemize a row of a report, or a process, interval by interval."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from gpuledger.app.flags import parse_command
from gpuledger.app.ledger_file import current_time_of, node_of_ledger, open_history
from gpuledger.config.node import EXPLAIN_GROUPS
from gpuledger.config.report import ExplainSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.report.explain import Explanation
from gpuledger.ledger.report.explain_formats import write_explanation_csv, write_explanation_json
from gpuledger.ledger.report.explain_text import explanation_text
from gpuledger.ledger.report.ranges import choose_period, parse_range
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.store.explain_query import ExplainLists, ExplainScope, explain_usage
from gpuledger.ledger.store.watched_range import resolve_watched_range
from gpuledger.model.settings import build_settings

_ABOUT = """\
Itemize a row of `gpuledger report`: the row, and its intervals of GPU time and of energy in order of time,
with whom the GPU was shared, by which method the energy was split, and why it was not measured.

WHO is KIND:NAME, with any KIND of `gpuledger report --by KIND`: user:dan, namespace:ml, pod:ml/train-0,
team:vision, gpu:0, label:team=blue. NAME may omit the first parts of the row's name; - is the row without a
name. pid:NUMBER is a process; idle, unattributed, unobserved and down are the GPUs' own accounts. Without
KIND, all kinds are searched.
"""
_EXAMPLES = """\
  gpuledger explain ml/train-0                            everything in the ledger
  gpuledger explain ml/train-0 --in 2026-11
  gpuledger explain user:dan --since month --price.kwh 0.32
  gpuledger explain idle --in yesterday --all             all intervals, not only the largest
  gpuledger explain team:vision --format csv > vision.csv
  gpuledger explain pid:4711 --format json | jq '.intervals[] | select(.method != "measured")'

The row is that of `gpuledger report --by KIND` over the same range, by the same basis and prices. The
intervals sum to it, to the microsecond and the millijoule.
"""
# Lines of each list in the text, unless --limit is set.
_LIMIT = 100


def run(arguments: Sequence[str]) -> int:
    """Print the explanation."""
    who = "WHO: KIND:NAME of a report's row, a name, or a process id"
    given, read = parse_command(
        "explain", _ABOUT, _EXAMPLES, EXPLAIN_GROUPS, arguments, (DialectSettings,), argument=who
    )
    values = read()
    settings = build_settings(ExplainSettings, values)
    period = choose_period(values, given.flags, "explain")
    zone = configured_time_zone(values)
    with open_history(values) as history:
        since = settings.since or "1970-01-02"
        requested = parse_range(since, settings.until, period, current_time_of(history), zone)
        scope = ExplainScope(
            resolve_watched_range(history, requested),
            build_settings(Prices, values),
            build_settings(TeamSettings, values).teams,
            node_of_ledger(history, values),
        )
        found = explain_usage(history, given.arguments[0], scope, _lists(settings))
        if settings.format != "text":
            sys.stderr.writelines(f"{note}\n" for note in found.notes)
        write_explanation(found, settings.format, sys.stdout)
    return 0


def _lists(settings: ExplainSettings) -> ExplainLists:
    """Which lines are shown."""
    is_text = settings.format == "text"
    limit = settings.limit
    if limit is None:
        limit = _LIMIT if is_text else 0
    return ExplainLists(0 if settings.show_all else limit, is_text, settings.format == "csv")


def write_explanation(found: Explanation, form: str, out: TextIO) -> None:
    """Write the explanation in a format, line by line: a list can be too long to keep."""
    if form == "csv":
        write_explanation_csv(found, out)
    elif form == "json":
        write_explanation_json(found, out)
    else:
        out.writelines(f"{line}\n" for line in explanation_text(found))
