"""Advice on a receipt: what would cost less, with the evidence and what it would save.

A rule is silent if its evidence is incomplete: an unknown second can have been a busy one.
docs/receipts.md has a paragraph for each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpuledger.ledger.report.receipt.advice_case import AdviceCase
from gpuledger.ledger.report.receipt.content import ReceiptAdvice, ReceiptJson
from gpuledger.ledger.report.receipt.idle_rules import (
    judge_held_memory,
    judge_idle_since,
    judge_late_start,
    judge_unused_gpus,
)
from gpuledger.ledger.report.receipt.load_rules import (
    judge_host_memory,
    judge_smaller_gpu,
    judge_throttling,
    judge_waiting,
)
from gpuledger.ledger.report.receipt.settings import (
    HELD_MEMORY,
    HOST_MEMORY,
    IDLE_SINCE,
    LATE_START,
    SMALLER_GPU,
    THROTTLED,
    UNUSED_GPU,
    WAITING,
    AdviceSettings,
)

# By name, in the order in which a receipt shows them.
RULES: Final[Mapping[str, Callable[[AdviceCase], ReceiptAdvice | None]]] = {
    UNUSED_GPU: judge_unused_gpus,
    LATE_START: judge_late_start,
    IDLE_SINCE: judge_idle_since,
    HELD_MEMORY: judge_held_memory,
    SMALLER_GPU: judge_smaller_gpu,
    WAITING: judge_waiting,
    THROTTLED: judge_throttling,
    HOST_MEMORY: judge_host_memory,
}


def advise(receipt: ReceiptJson, settings: AdviceSettings) -> list[ReceiptAdvice]:
    """All advice on a receipt, in the order of the rules. The advice that it has does not matter."""
    gpus = [gpu for gpu in receipt["gpus"] if gpu["present_seconds"] >= settings.shortest]
    case = AdviceCase(receipt, settings, gpus)
    found = [judge(case) for name, judge in RULES.items() if name not in settings.without]
    return [one for one in found if one is not None]
