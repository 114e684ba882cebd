"""One Finding for all Gpus with the same verdict: eight equal GPUs are one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.model.checks import Finding, Subject, Verdict
from gpuledger.model.devices import Gpu
from gpuledger.sources.device_selection import format_indexes


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """The verdict of a check for one Gpu; `why` does not name it."""

    gpu: Gpu
    verdict: Verdict
    why: str
    remedy: str = ""


def fold(subject: Subject, verdicts: Iterable[GpuVerdict]) -> Iterator[Finding]:
    """Yield a Finding for each different verdict, with the indexes of its Gpus; the worst first."""
    groups: dict[tuple[Verdict, str, str], set[int]] = {}
    for one in verdicts:
        groups.setdefault((one.verdict, one.why, one.remedy), set()).add(one.gpu.index)
    for (verdict, why, remedy), indexes in sorted(groups.items(), key=lambda item: _rank(item[0][0])):
        yield Finding(subject.check, verdict, subject.what, f"{format_indexes(indexes)}: {why}", remedy)


def _rank(verdict: Verdict) -> int:
    return (Verdict.FAILS, Verdict.WARNING, Verdict.UNKNOWN, Verdict.WORKS, Verdict.SKIPPED).index(verdict)
