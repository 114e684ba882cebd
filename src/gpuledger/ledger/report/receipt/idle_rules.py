"""Rules of advice on GPUs that did nothing: never, before the first use, after the last, and between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from gpuledger.ledger.report.receipt.advice_case import AdviceCase, device_seconds, is_exclusive, verb
from gpuledger.ledger.report.receipt.content import (
    ABOUT,
    AT_MOST,
    EXACT,
    ReceiptAdvice,
    ReceiptGpu,
    is_cut_off,
)
from gpuledger.ledger.report.receipt.settings import HELD_MEMORY, IDLE_SINCE, LATE_START, UNUSED_GPU
from gpuledger.ledger.report.receipt.wording import bytes_text, duration_text

# Gaps of at least this part of the time are more than pauses of a program.
_GAP_PART: Final = 0.5
# Seconds in which nobody looked that do not matter: a restart of gpuledger.
_UNWATCHED: Final = 60.0
# A context that does nothing has less memory.
_LEAST_MEMORY: Final = 1 << 30

_Idle = Sequence[tuple[ReceiptGpu, int]]


def judge_unused_gpus(case: AdviceCase) -> ReceiptAdvice | None:
    """GPUs that were there and that no engine used in any second."""
    found = [gpu for gpu in case.gpus if _is_unused(gpu, case.settings.unused)]
    if not found:
        return None
    total = len(case.receipt["gpus"])
    beside = [gpu for gpu in case.receipt["gpus"] if gpu not in found and _is_beside(gpu, found)]
    if case.receipt["owner"] is None:
        do = "request fewer GPUs, or let the programs use them"
    elif len(found) == total:
        do = "end what is still running, and check that the program uses the GPU (CUDA_VISIBLE_DEVICES)"
    elif beside:
        do = f"request {len(beside)}, or let the program use all of them"
    else:
        # One after the other: it did not request too many.
        do = "it had the others at other times: check that the program uses each GPU that it gets"
    is_part = any(gpu["begun_before"] or is_cut_off(case.receipt, gpu["ends"]) for gpu in found)
    not_used = "not used in this range" if is_part else "never used"
    text = f"{case.names(found)} {verb(found, 'was', 'were')} {not_used} ({len(found)} of {total}): {do}."
    values = {"gpus": total, "unused": len(found), "seconds": [gpu["present_seconds"] for gpu in found]}
    evidence = [f"{case.names([gpu])}: {_nothing_text(gpu)}" for gpu in found]
    return case.advice(UNUSED_GPU, text, evidence, found, values, [Fraction(1)] * len(found), EXACT)


def _is_beside(gpu: ReceiptGpu, others: Sequence[ReceiptGpu]) -> bool:
    """Whether it was there at the same time as another one, as far as that is known."""

    def overlaps(one: ReceiptGpu) -> bool:
        if None in (gpu["begins"], gpu["ends"], one["begins"], one["ends"]):
            return True
        return (gpu["begins"] or 0) < (one["ends"] or 0) and (one["begins"] or 0) < (gpu["ends"] or 0)

    return any(map(overlaps, others))


def _is_unused(gpu: ReceiptGpu, threshold: float) -> bool:
    """Every second is known to be without use; a sample of SM utilization above 0 contradicts that."""
    known = gpu["active_seconds"] == 0 and gpu["unknown_seconds"] == 0
    watched = gpu["unwatched_seconds"] <= _UNWATCHED
    return known and watched and not gpu["sm_peak"] and gpu["present_seconds"] >= threshold


def _nothing_text(gpu: ReceiptGpu) -> str:
    resident = device_seconds(gpu, gpu["resident_seconds"])
    there = f"a process was there for {duration_text(resident)}" if resident else "no process was there"
    return f"{duration_text(gpu['present_seconds'])}, {there}; no engine was busy in any second"


def judge_late_start(case: AdviceCase) -> ReceiptAdvice | None:
    """A long time from having a GPU to its first use."""
    found = _idle(case, lambda gpu: gpu["wait_seconds"], case.settings.late_start)
    text = (
        "{names} waited {longest} for the first use: prepare data and environment before the GPU is "
        "allocated, such as in a job without a GPU on which this one depends."
    )
    return _idle_advice(case, LATE_START, text, "first use after {seconds} of {all}", found)


def judge_idle_since(case: AdviceCase) -> ReceiptAdvice | None:
    """A long time since the last use, until now or until the end."""
    found = _idle(case, lambda gpu: gpu["tail_seconds"], case.settings.idle_since)
    text = "{names} {were} idle for the last {longest}: let the job end when its work is done."
    if case.receipt["running"]:
        text = "{names} {have} been idle for {longest}: end the job or the process if its work is done."
    return _idle_advice(case, IDLE_SINCE, text, "no engine was busy in the last {seconds} of {all}", found)


def judge_held_memory(case: AdviceCase) -> ReceiptAdvice | None:
    """Long gaps between uses, while processes keep memory of the GPU: an interactive session."""
    found = [
        (gpu, seconds)
        for gpu, seconds in _idle(case, lambda gpu: gpu["gap_seconds"], case.settings.held_memory)
        if seconds >= _GAP_PART * gpu["present_seconds"] and (gpu["memory_mean_bytes"] or 0) >= _LEAST_MEMORY
    ]
    share = ", or share it (time-slicing, MIG)" if any(is_exclusive(gpu) for gpu, _ in found) else ""
    text = (
        "Memory of {names} was held without use for {longest} between uses: release the GPU between uses "
        f"(stop the kernel of a notebook){share}."
    )
    evidence = (
        "idle for {seconds} of {all} between the first and the last use, with {memory} in use on average"
    )
    # At most: some gaps are too short to release the GPU.
    return _idle_advice(case, HELD_MEMORY, text, evidence, found, AT_MOST)


def _idle(case: AdviceCase, seconds_of: Callable[[ReceiptGpu], int | None], threshold: float) -> _Idle:
    """The GPUs that were used, with their known idle seconds, if these are at least the threshold."""
    values = [(gpu, seconds_of(gpu)) for gpu in case.used()]
    return [(gpu, seconds) for gpu, seconds in values if seconds is not None and seconds >= threshold]


def _idle_advice(
    case: AdviceCase, rule: str, text: str, evidence: str, found: _Idle, kind: str = ABOUT
) -> ReceiptAdvice | None:
    """Advice that saves these seconds: about, because prices and shares can change with time."""
    if not found:
        return None
    gpus = [gpu for gpu, _ in found]
    filled = text.format(
        names=case.names(gpus),
        longest=duration_text(max(seconds for _, seconds in found)),
        were=verb(gpus, "was", "were"),
        have=verb(gpus, "has", "have"),
    )
    lines = [f"{case.names([gpu])}: {_fill(evidence, gpu, seconds)}" for gpu, seconds in found]
    parts = [Fraction(seconds, gpu["present_seconds"]) for gpu, seconds in found]
    return case.advice(rule, filled, lines, gpus, {"seconds": [seconds for _, seconds in found]}, parts, kind)


def _fill(evidence: str, gpu: ReceiptGpu, seconds: int) -> str:
    return evidence.format(
        seconds=duration_text(seconds),
        all=duration_text(gpu["present_seconds"]),
        memory=bytes_text(gpu["memory_mean_bytes"]),
    )
