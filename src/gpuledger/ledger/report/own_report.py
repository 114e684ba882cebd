"""The report of a reader of own rows: rows of others are dropped, and the total is the sum of the rest.

A report is computed from everything, so that each remaining row equals that of an administrator: the shares
of a shared GPU, upper bounds of energy and the spread of idle GPUs depend on what others used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpuledger.ledger.report.grouping import Grouping
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.usage_report import GpuLine, UsageReport, sum_lines

# The key of all rows that are dropped. No name has this character.
_HIDDEN: Final = ("\0others",)


def own_grouping(grouping: Grouping, is_own: Callable[[Party], bool]) -> Grouping:
    """The grouping, with one key for the parties of others. Idempotent."""
    key = grouping.key
    return replace(grouping, key=lambda party: key(party) if is_own(party) else _HIDDEN)


def own_report(report: UsageReport) -> UsageReport:
    """The report without the rows of others, and without amounts of whole GPUs.

    The GPUs' own accounts (idle, unattributed, unobserved), time without a price, and the time in which
    anybody was on a GPU would reveal what others did.
    """
    lines = [line for line in report.lines if line.key != _HIDDEN]
    total = replace(sum_lines(lines, ("total",)), period=0, high=None)
    gpus = [GpuLine(gpu.uuid, gpu.index, gpu.model, None, None) for gpu in report.gpus]
    return replace(report, lines=lines, gpu_accounts=(), total=total, gpus=gpus, occupied=None, unbilled=())
