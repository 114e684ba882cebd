"""`gpuledger explain`: itemize a row of a report, or a process, interval by interval."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger.app.flag_checks import ONE_NODE, choose_period, require_once, require_words
from gpuledger.app.flags import parse_command
from gpuledger.app.ledger_commands import make_explanation, write_explanation
from gpuledger.app.ledger_requests import EXPLAIN_PARAMETERS
from gpuledger.app.node_requests import (
    fetch_node_answer,
    print_answer,
    request_parameters,
    with_ledger_or_node,
)
from gpuledger.config.commands import EXPLAIN_GROUPS
from gpuledger.config.report import ExplainSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.store.history import History
from gpuledger.model.settings import build_settings
from gpuledger.terminal.settings import NodeUrlSettings

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


def run(arguments: Sequence[str]) -> int:
    """Print the explanation."""
    who = "WHO: KIND:NAME of a report's row, a name, or a process id"
    given, read = parse_command(
        "explain", _ABOUT, _EXAMPLES, EXPLAIN_GROUPS, arguments, (DialectSettings,), argument=who
    )
    require_words(given.flags, {"node.url": "a URL"})
    require_once(given.flags, ONE_NODE)
    values = read()
    settings = build_settings(ExplainSettings, values)
    access = build_settings(NodeUrlSettings, values)
    period = choose_period(values, given.flags, "explain")

    def explain(history: History) -> None:
        found = make_explanation(history, given.arguments[0], settings, values, period)
        if settings.format != "text":
            sys.stderr.writelines(f"{note}\n" for note in found.notes)
        write_explanation(found, settings.format, sys.stdout)

    def ask() -> None:
        parameters = request_parameters(values, given.flags, EXPLAIN_PARAMETERS, access)
        answer = fetch_node_answer(values, access, "explain", {**parameters, "of": given.arguments[0]})
        print_answer(answer, access)

    with_ledger_or_node(values, access, explain, ask)
    return 0
