"""`gpuledger receipt`: what one job, pod, user or process used, what it cost, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger.app.flag_checks import ONE_NODE, choose_period, require_once, require_words
from gpuledger.app.flags import parse_command
from gpuledger.app.receipt_output import format_receipt
from gpuledger.app.receipt_source import fetch_receipt
from gpuledger.config.commands import RECEIPT_GROUPS
from gpuledger.config.report import ReceiptSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings

_ABOUT = """\
Show what a job, pod, user or process used on the GPUs, GPU by GPU: billed time, utilization over time,
memory, energy with its bounds, cost and CO2, and advice: what would have cost less, why, and how much.

WHO is KIND:NAME as in `gpuledger explain`: job:4711, pod:ml/train-0, user:dan, pid:4711. A number alone is a
job if the ledger has batch jobs, else a process id. The amounts equal the row of `gpuledger report` for the
same range: by default the last week.
"""
_EXAMPLES = """\
  gpuledger receipt 4711                                  a job of Slurm
  gpuledger receipt ml/train-0 --in yesterday
  gpuledger receipt --mine --since 30d                    all that you used, by job
  gpuledger receipt job:4711 --format html > 4711.html    a page to print or to mail
  gpuledger receipt job:4711 --format markdown            for an issue or a chat
  gpuledger receipt job:4711 --json | jq '.advice[] | {rule, saving}'

docs/receipts.md explains each rule of advice. Thresholds are settings: gpuledger receipt --help-all
"""


def run(arguments: Sequence[str]) -> int:
    """Print the receipt."""
    who = "WHO: KIND:NAME, a name, or the number of a job or process (or --mine)"
    given, read = parse_command(
        "receipt",
        _ABOUT,
        _EXAMPLES,
        RECEIPT_GROUPS,
        arguments,
        (DialectSettings,),
        argument=who,
        is_optional=True,
    )
    require_words(given.flags, {"node.url": "a URL"})
    require_once(given.flags, ONE_NODE)
    values = read()
    settings = build_settings(ReceiptSettings, values)
    if settings.mine == bool(given.arguments):
        raise UsageError(f"receipt needs one {who}; see gpuledger receipt --help")
    period = choose_period(values, given.flags, "receipt")
    target = "" if settings.mine else given.arguments[0]
    receipt = fetch_receipt(target, given.flags, values, period)
    sys.stdout.write(format_receipt(receipt, settings.format))
    return 0
