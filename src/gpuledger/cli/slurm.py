"""`gpuledger slurm`: write the receipts of jobs into Slurm's accounting, and show those of several nodes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuledger.app.flags import Action, build_parser, choose_action, parse_flags
from gpuledger.app.receipt_output import format_receipt
from gpuledger.app.slurm_receipts.accounting import JobRow, SlurmCommands
from gpuledger.app.slurm_receipts.node_receipts import NodeReceipts
from gpuledger.app.slurm_receipts.pass_file import PassFile, PassRuns
from gpuledger.app.slurm_receipts.updates import KEPT, CommentUpdate, JobOutcome
from gpuledger.config.commands import ALL_GROUPS, SLURM_GROUPS
from gpuledger.config.load import load_values
from gpuledger.config.slurm import SlurmReceiptSettings
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.ledger.report.receipt.merging import merge_receipts
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.text import list_some, to_short_line

_ABOUT = """\
Receipts of Slurm jobs on several nodes. Run it where Slurm's commands are, on one machine of the cluster.

  update        write the summary of each GPU job into its AdminComment, in the format of jobstats, which
                jobstats, reportseff and jobscope read; run it every minute (gpuledger-slurm.timer)
  receipt JOB   show the receipt of one job, merged of those of its nodes
"""
_EXAMPLES = """\
examples:
  gpuledger slurm update --dry-run                          what would be written
  gpuledger slurm update --from 'https://{node}:9400' --user slurm --password-file /etc/gpuledger/slurm.pw
  gpuledger slurm update --from /shared/gpuledger           from files of the nodes' epilogs
  gpuledger slurm receipt 4711
  gpuledger slurm receipt 4711_3 --format html > receipt.html

A comment of another program or person is never replaced. Before Slurm 23.02, summaries can be written only
while a job runs: they have what was known at the last update. More: docs/slurm.md
"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand; return 1 if a job could not be updated."""
    made = build_parser("slurm", _ABOUT, _EXAMPLES, SLURM_GROUPS)
    made.usage = "gpuledger slurm update|receipt [JOB] [FLAGS]"
    given = parse_flags(made, SLURM_GROUPS.values(), arguments, os.environ)
    _, action, words = choose_action("slurm", given.arguments, _ACTIONS)
    values = load_values(SLURM_GROUPS.values(), given.flags, os.environ, given.config, ALL_GROUPS)
    return action.run(words, build_settings(SlurmReceiptSettings, values), values)


def _update(_: Sequence[str], settings: SlurmReceiptSettings, __: Mapping[str, Any]) -> int:
    receipts = _receipts(settings)
    file = PassFile(Path(settings.state))
    update = CommentUpdate(
        SlurmCommands(settings.timeout),
        receipts,
        time.time(),
        refresh=settings.refresh,
        is_dry=settings.dry_run,
    )
    if settings.dry_run:
        outcomes = update.run(file.read())[1]
    else:
        try:
            with file.locked():
                state, outcomes = update.run(file.read())
                file.write(state)
        except PassRuns as error:
            # It does the same work: a slow pass is no failure of the timer.
            sys.stderr.write(f"{error}\n")
            return 0
        receipts.remove_old_files()
    for outcome in outcomes:
        sys.stdout.write(_outcome_line(outcome, is_dry=settings.dry_run))
    return 0


def _outcome_line(outcome: JobOutcome, *, is_dry: bool) -> str:
    words = f"job {outcome.name}: {outcome.result}"
    if is_dry and outcome.result != KEPT and outcome.comment:
        words = f"job {outcome.name}: would write {len(outcome.comment)} characters: {outcome.comment}"
    return f"{words}{f': {to_short_line(outcome.reason)}' if outcome.reason else ''}\n"


def _show_receipt(words: Sequence[str], settings: SlurmReceiptSettings, values: Mapping[str, Any]) -> int:
    (name,) = words
    if not re.fullmatch(r"\d+(?:[_+]\d+)?", name, re.ASCII):
        raise UsageError(
            f"'{to_short_line(name)}' is no job id: expected a number, ARRAY_TASK, or JOB+OFFSET of a "
            "heterogeneous job"
        )
    job = _find_job(SlurmCommands(settings.timeout).read_jobs([name]), name)
    parts = _receipts(settings).read(job)
    if not parts:
        raise GpuledgerError(
            f"no node has seen job {name} on a GPU: it ran on {', '.join(job.nodes)}, or before gpuledger did"
        )
    receipt = merge_receipts(parts, build_settings(AdviceSettings, values))
    sys.stdout.write(format_receipt(receipt, settings.format))
    return 0


def _find_job(rows: Sequence[JobRow], name: str) -> JobRow:
    """The job with this id. The number of an array, or of a heterogeneous job, is also that of one part."""
    for sign, what in (("_", "an array: name one of its tasks"), ("+", "heterogeneous: name a component")):
        parts = [job.name for job in rows if job.name.startswith(f"{name}{sign}")]
        if parts:
            raise GpuledgerError(f"{name} is {what} ({list_some(parts, 8)})")
    found = [job for job in rows if name in (job.name, job.number)]
    if not found:
        raise GpuledgerError(f"Slurm's accounting has no job {name} that has begun (sacct -j {name})")
    return found[0]


def _receipts(settings: SlurmReceiptSettings) -> NodeReceipts:
    access = ClientAccessSettings(
        user=settings.user, password_file=settings.password_file, ca_file=settings.ca_file
    )
    return NodeReceipts(settings.place, access, settings.timeout)


_ACTIONS: dict[str, Action[SlurmReceiptSettings]] = {
    "update": Action(_update, "no argument", 0, 0),
    "receipt": Action(_show_receipt, "one job id", 1, 1),
}
