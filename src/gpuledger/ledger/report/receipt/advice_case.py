"""What the rules of advice judge, and how a rule states its advice."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from gpuledger.ledger.report.formats import number_text
from gpuledger.ledger.report.money import FILE_DIGITS, round_decimal
from gpuledger.ledger.report.receipt.content import (
    ABOUT,
    ReceiptAdvice,
    ReceiptGpu,
    ReceiptHost,
    ReceiptJson,
    Saving,
    billed_part,
    gpu_label,
)
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.receipt.wording import join_words
from gpuledger.ledger.watched_time import MICRO

# Billed time of at least this part of the time that the GPU was there: nobody else paid for it.
_EXCLUSIVE: Final = Fraction(95, 100)


class AdviceCase(NamedTuple):
    """A receipt that is judged, with the GPUs that were there long enough."""

    receipt: ReceiptJson
    settings: AdviceSettings
    gpus: Sequence[ReceiptGpu]

    def names(self, gpus: Sequence[ReceiptGpu]) -> str:
        """`GPU 1`, `GPUs 1 and 3`."""
        labels = [gpu_label(gpu, self.receipt["nodes"]) for gpu in gpus]
        return f"GPU{'s' if len(gpus) > 1 else ''} {join_words(labels)}"

    def used(self) -> list[ReceiptGpu]:
        """The GPUs that an engine used."""
        return [gpu for gpu in self.gpus if gpu["active_seconds"]]

    def host_of(self, gpu: ReceiptGpu) -> ReceiptHost | None:
        """CPU and memory on the node of a GPU, if the receipt has them for exactly one job there."""
        found = [host for host in self.receipt["hosts"] if host["node"] == gpu["node"]]
        return found[0] if len(found) == 1 else None

    def advice(
        self,
        rule: str,
        text: str,
        evidence: list[str],
        gpus: Sequence[ReceiptGpu],
        values: dict[str, Any],
        saved: Sequence[Fraction] = (),
        kind: str = ABOUT,
    ) -> ReceiptAdvice:
        """The advice. It saves these parts of the billed time of `gpus`; without parts that is not known."""
        return ReceiptAdvice(
            rule=rule,
            text=text,
            evidence=evidence,
            gpus=[gpu_label(gpu, self.receipt["nodes"]) for gpu in gpus],
            values=values,
            saving=_saving(list(zip(gpus, saved, strict=True)), kind) if saved else None,
        )


def device_seconds(gpu: ReceiptGpu, seconds: float | None) -> float:
    """Seconds of whole GPUs as seconds of the device; 0 for None."""
    return (seconds or 0.0) / (gpu["sm_share"] or 1.0)


def is_exclusive(gpu: ReceiptGpu) -> bool:
    """Whether the owner paid for (nearly) all of the time that it had the GPU."""
    return (gpu["gpu_microseconds"] or 0) >= _EXCLUSIVE * gpu["present_seconds"] * MICRO


def verb(gpus: Sequence[object], one: str, several: str) -> str:
    """The form of a verb for one or several GPUs."""
    return several if len(gpus) > 1 else one


def _saving(parts: Sequence[tuple[ReceiptGpu, Fraction]], kind: str) -> Saving | None:
    """What the parts cost; None if nothing of them was billed, as by residence without a process."""
    saved = [billed_part(gpu, part) for gpu, part in parts]
    if not any(microseconds for microseconds, _ in saved):
        return None
    known = [cost for _, cost in saved if cost is not None]
    total = round_decimal(sum(known, Fraction(0)), FILE_DIGITS) if len(known) == len(saved) else None
    return Saving(
        gpu_microseconds=sum(microseconds for microseconds, _ in saved),
        cost=None if total is None else number_text(total),
        kind=kind,
    )
